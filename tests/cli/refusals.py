"""What tests of commands share: how they refuse what cannot be."""


def assert_refused(result, *words: str) -> None:
    """Assert status 2, and a message with all of these words and no traceback."""
    assert (2, True) == (result.exit_code, isinstance(result.exception, SystemExit)), result.output + repr(
        result.exception
    )
    for word in words:
        assert word in result.stderr
