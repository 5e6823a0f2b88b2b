"""``run``: calls a target for each line of its input under a rate, and loses no line however it ends."""
