"""Untrusted text: what a terminal, a browser or a log would obey is shown and not obeyed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimited_executor._core.escapes import visible


@pytest.mark.parametrize("character", "\x1b\n\r\x00\x9b\u202a\u202e\u2066\u2069\u200f\u061c\u200b\u2028\ufeff\ud800")
def test_character_that_is_obeyed_or_unseen_is_an_escape(character):
    """Controls of terminals, line ends, bidi controls and invisible characters become escapes, unless they are kept."""
    assert visible(f"a{character}b") == f"a{character.encode('unicode_escape').decode()}b"
    assert visible(f"a{character}b", keep=character) == f"a{character}b"


@given(st.text())
def test_rest_of_a_text_stays(text):
    """A text can be printed, and has the printable characters of the original, in order."""
    assert visible(text).isprintable()
    if text.isprintable():
        assert visible(text) == text
