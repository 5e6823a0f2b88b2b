"""``demo``: real deliveries to a real server, by the executor and by plain ``call_later``, as the server saw them."""
