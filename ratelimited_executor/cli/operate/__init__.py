"""The commands that show and change what runs elsewhere: ``peers``, ``slots``, ``tasks``, ``dashboard``."""
