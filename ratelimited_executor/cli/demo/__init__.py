"""``demo``: deliveries to a real server, by the executor and by plain ``call_later``, as seen by the server."""
