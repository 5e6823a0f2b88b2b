"""URLs for people: whatever a password looks like, nothing of it is shown."""

import json
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ratelimited_executor._core.urls import is_secret, masked, masked_text

# A password of words, so that a part of it can be told from the rest of a text, and of characters that end it early.
WORDS = ("hunter", "zebra", "maple")
PASSWORDS = st.lists(st.sampled_from([*WORDS, *"@:/?#[]%&=;,+ '\"\\\0\n~é", "%40", "%2F", "//", "80"]), min_size=1).map(
    "".join
)


def holds(text: str) -> list[str]:
    """Return the words of a password that a text holds."""
    return [word for word in WORDS if word in text]


@pytest.mark.parametrize(("url", "expected"), [
    ("http://host:8000/path?page=2#top", "http://host:8000/path?page=2#top"),
    ("http://user:pass@host/?q=1&api_key=abc&Token=d;sig=1&X-Amz-Signature=ff", "http://***@host/?q=1&api_key=***&Token=***;sig=***&X-Amz-Signature=***"),
    ("http://host/#access_token=abc", "http://host/#access_token=***"),
    ("http://host/?%61uth=abc", "http://host/?%61uth=***"),
    ("postgresql://user@host/db?password=abc", "postgresql://***@host/db?password=***"),
    ("//user:pass@host", "//***@host"),
    ("http://host/?token=abc@def", "http://***"),
    ("http://host/?user=x&pass=abc&jwt=def&passenger=1", "http://host/?user=x&pass=***&jwt=***&passenger=1"),
    ("http://host/?next=/x?token=abc&page=1", "http://host/?next=***&page=1"),
    ("http://host/?next=%2Fx%3Ftoken%3Dabc", "http://host/?next=***"),
    ("http://host/?q=monkey&author=ann", "http://host/?q=monkey&author=***"),
    (" http://user:abc@host/", " http://***@host/"),
    ("host=db password=abc user=x", "host=db password=*** user=x"),
    ("password = 'a b\\'c' host=db", "password = *** host=db"),
    ("user:pass@host:8000/", "user:***@host:8000/"),
    ("file:tasks.db?mode=ro&key=abc", "file:tasks.db?mode=ro&key=***"),
    ("/var/lib/a@b/tasks.db", "/var/lib/a@b/tasks.db"),
    ("C:\\a@b\\tasks.db", "C:\\a@b\\tasks.db"),
    ("module:function", "module:function"),
    ("", ""),
])  # fmt: skip
def test_secrets_are_hidden_and_the_rest_stays(url, expected):
    """User, password and values of secret names are hidden; all else stays, so that a reader knows what is meant."""
    assert expected == masked(url)
    assert expected == masked(expected)


@given(PASSWORDS, st.sampled_from(["http", "https", "redis", "rediss", "postgresql", "ftp"]))
@example("hunter/zebra@maple", "http")
@example("80/hunter?zebra=1#maple", "http")
def test_nothing_of_a_password_is_shown(password, scheme):
    """A password of any characters, encoded or not, is hidden whole."""
    for user in ("user:", "", ":"):
        assert [] == holds(masked(f"{scheme}://{user}{password}@host:80/path"))


@pytest.mark.parametrize("name", ["Authorization", "Cookie", "X-Api-Key", "csrf_token", "PASSWORD", "pwd"])
def test_names_of_secrets_are_known(name):
    """The usual names of secrets are known in any case."""
    assert is_secret(name)
    assert not is_secret("page")


def test_url_without_its_host_hides_its_secrets():
    """A library may tell the host apart from the rest of a URL, in which secrets are hidden as well."""
    text = (
        "HTTPConnectionPool(host='h', port=9): Max retries exceeded with url: /v1/x?page=2&api_key=abc (Caused by ...)"
    )
    assert text.replace("abc", "***") == masked_text(text)
    assert "what/is?key=this" == masked_text("what/is?key=this")


@pytest.mark.parametrize("text", ['"http://h/?key=abc"', "http://h/?key=abc\\", "\\"])
def test_json_stays_json(text):
    """A URL in JSON, or in JSON within JSON, ends before the escape of the quote that follows it."""
    once = json.dumps([text, "next"])
    hidden = [text.replace("abc", "***").rstrip("\\"), "next"]
    for written, read in ((once, json.loads), (json.dumps(once), lambda found: json.loads(json.loads(found)))):
        found = [each.rstrip("\\") for each in read(masked_text(written))]
        assert (found, "abc" in masked_text(written)) == (hidden, False)


@pytest.mark.parametrize(
    "text",
    [
        "x://" + "?" * 200_000,
        "/a" * 100_000,
        "/a?" * 70_000,
        " /" * 70_000 + "?",
        "x://" + "?a" * 100_000,
        "a" * 200_000 + " x://y",
    ],
)
def test_the_time_rises_with_the_length_alone(text):
    """A text that a stranger has written is looked at once, and not once more for each of its characters."""
    assert text == masked_text(text)
