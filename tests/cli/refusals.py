"""An assertion shared by tests of commands: that a command refuses bad input."""


def assert_refused(result, *words: str) -> None:
    """Assert status 2, and a message with all ``words`` and no traceback."""
    assert (2, True) == (result.exit_code, isinstance(result.exception, SystemExit)), result.output + repr(
        result.exception
    )
    for word in words:
        assert word in result.stderr
