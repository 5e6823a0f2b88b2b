"""Requests written as texts: URLs, headers, files of requests."""

from __future__ import annotations

import json

import pytest

from ratelimited_executor.load.requests import (
    RequestTemplate,
    check_url,
    describe_requests,
    fill,
    in_turn,
    parse_header,
    parse_requests,
    templates_of_class,
)

BASE = RequestTemplate(url="http://service:8000/v1/", headers={"X-Base": "1"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("{n}/{n:04}", "42/0042"),
        ('{"a": {n}, "b": {}}', '{"a": 42, "b": {}}'),
        ("{n:x}", "2a"),
        ("{name} {n!r} {n:>1000000000}", "{name} {n!r} {n:>1000000000}"),
    ],
)
def test_number_is_filled_in_and_other_braces_stay(text, expected) -> None:
    """``{n}``, with a format or without, becomes the number, and other braces stay, as a JSON body has them."""
    assert expected == fill(text, 42)


@pytest.mark.parametrize("url", ["http://service", "https://service:1/{n}", "http://[::1]:80/a?b={n}"])
def test_url_is_taken(url) -> None:
    """An absolute URL of HTTP or HTTPS is taken, with ``{n}`` in its path and query too."""
    assert url == check_url(url)


@pytest.mark.parametrize(
    "url", ["service/x", "ftp://service", "http://", "http://a:0/", "http://a:b/", "http://[/", "http://[::{n}]/"]
)
def test_other_url_is_refused(url) -> None:
    """A URL that is not one of HTTP is refused with an example."""
    with pytest.raises(ValueError, match="must look like http://"):
        check_url(url)


def test_refusals_show_no_secret() -> None:
    """What is refused is named without its secrets, and a request has one kind of credentials at most."""
    for call in (
        lambda: check_url("http://user:hunter2@host:x/?api_key=hunter2"),
        lambda: parse_header("Bearer hunter2"),
        lambda: parse_requests(['{"url": "ftp://user:hunter2@host/"}'], BASE),
        lambda: parse_requests(['{"headers": {"Authorization": ["hunter2"]}}'], BASE),
        lambda: parse_requests(
            ['{"url": "http://u:hunter2@host/{n:05}", "headers": {"authorization": "hunter2"}}'], BASE
        ),
    ):
        with pytest.raises(ValueError, match=r".") as caught:
            call()
        assert "hunter2" not in str(caught.value)
    assert "give one of them" in str(caught.value)


def test_header_is_name_and_value() -> None:
    """The value of a header may have colons or be empty; a text without a valid name is refused."""
    assert ("A", "b: c") == parse_header("A: b: c")
    assert ("A", "") == parse_header("A:")
    for text in ("A", ": b", "A b: c", "A: b\r\nC: d"):
        with pytest.raises(ValueError, match="Name: value"):
            parse_header(text)


def test_line_overrides_the_base_and_adds_to_its_headers() -> None:
    """URLs are relative to the base, bodies other than texts are sent as JSON, and blank lines are skipped."""
    found = parse_requests(
        [
            "{}",
            "",
            '{"method": "put", "url": "items/{n}", "headers": {"Y": "2"}, "body": {"id": 1}}',
            '{"url": "http://b/"}',
        ],
        BASE,
    )

    assert [
        BASE,
        RequestTemplate(
            method="PUT",
            url="http://service:8000/v1/items/{n}",
            headers={"X-Base": "1", "Content-Type": "application/json", "Y": "2"},
            body='{"id": 1}',
        ),
        RequestTemplate(url="http://b/", headers={"X-Base": "1"}),
    ] == found


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", 'line 2 must be a JSON object such as {"url": "/"}: Expecting property name'),
        ("GET /", "Expecting value at column 1"),
        ("[]", "line 2: a request must be a JSON object"),
        ('{"uri": "/"}', "unknown field 'uri'"),
        ('{"headers": []}', "headers must be"),
        ('{"headers": {"A": 1}}', "headers must be"),
        ('{"headers": {"A B": "1"}}', "Name: value"),
        ('{"url": 1}', "must be strings"),
        ('{"method": "GET /"}', "method must be a word"),
        ('{"url": "ftp://x"}', "must look like http://"),
        ('{"body": "a\\ud800"}', "UTF-8 can write, got '\\ud800'"),
        ('{"body": {"a": "\\ud800"}}', "UTF-8 can write"),
        ("[" * 100_000, "line 2 is nested too deeply"),
        ('{"body": %s}' % ("9" * 9000), "line 2: an integer has at most 4,000 digits, got one of 9,000"),
    ],
)
def test_line_that_is_no_request_is_named(line, reason) -> None:
    """A line that is not a request is refused with its number and the reason."""
    with pytest.raises(ValueError, match="line 2.*") as caught:
        parse_requests(["{}", line], BASE)
    assert reason in str(caught.value)


def test_file_without_requests_is_refused() -> None:
    """A file with blank lines only is refused, as it has no request."""
    with pytest.raises(ValueError, match="no request"):
        parse_requests(["", "  "], BASE)


def test_class_gets_its_own_requests_and_those_of_all() -> None:
    """A class gets its own requests and those without a class, with its name filled in."""
    lines = [
        '{"url": "{class}", "headers": {"P": "{class}!"}, "body": "{class} {n}"}',
        '{"url": "now", "class": "urgent"}',
    ]
    templates = parse_requests(lines, BASE, ["ordinary", "urgent"])
    ordinary, urgent = (templates_of_class(templates, name) for name in ("ordinary", "urgent"))

    assert ["http://service:8000/v1/ordinary"] == [each.url for each in ordinary]
    assert ["http://service:8000/v1/urgent", "http://service:8000/v1/now"] == [each.url for each in urgent]
    assert ({"X-Base": "1", "P": "urgent!"}, "urgent {n}") == (urgent[0].headers, urgent[0].body)


def test_class_without_a_rate_or_without_a_request_is_refused() -> None:
    """A line of a class that has no rate is refused, and so is a class for which there is no request."""
    with pytest.raises(ValueError, match="line 1: the class 'urgent' has no rate"):
        parse_requests(['{"class": "urgent"}'], BASE, ["ordinary"])
    with pytest.raises(ValueError, match="no request for the class 'ordinary'"):
        templates_of_class(parse_requests(['{"class": "urgent"}'], BASE, ["ordinary", "urgent"]), "ordinary")


def test_description_tells_requests_apart() -> None:
    """Anything sent makes a difference, and so do order and classes, but neither the host nor credentials do."""
    one, two = (RequestTemplate(url=f"http://h/{name}", body="b") for name in "ab")
    described = [
        describe_requests(classes)
        for classes in (
            [[one]], [[one, two]], [[two, one]], [[one], [two]], [[one, two], [one]],
            [[RequestTemplate(url="http://h/a", body="c")]],
            [[RequestTemplate(url="http://h/a", body="b", method="PUT")]],
            [[RequestTemplate(url="http://h/a", body="b", headers={"Accept": "a/b"})]],
            [[RequestTemplate(url="http://h/a", body="b", headers={"Accept": "a/c"})]],
            [[RequestTemplate(url="http://h/a", body="b", headers={"X-Api-Key": "1"})]],
        )
    ]  # fmt: skip
    assert len(described) == len(set(described))
    assert "2 kinds of GET, 2 bytes, digest " in described[1]
    assert "GET, 1 byte, digest " in described[0]
    for header in ("Authorization", "Cookie", "X-API-Key", "Proxy-Authorization", "X-Password", "X-Session-Id"):
        texts = {describe_requests([[RequestTemplate(url="http://h/", headers={header: text})]]) for text in "ab"}
        assert 1 == len(texts)
    queries = [
        RequestTemplate(url=f"http://h/?api_key={key}&page={page}", body="b") for key, page in ((1, 1), (2, 1), (2, 2))
    ]
    assert [True, False] == [describe_requests([[each]]) == describe_requests([[queries[0]]]) for each in queries[1:]]
    assert describe_requests([[RequestTemplate(url="http://h/")]]) == describe_requests(
        [[RequestTemplate(url="http://i/")]]
    )


@pytest.mark.parametrize(
    ("weights", "order"), [((1, 1, 1), "abc"), ((3, 1), "aaba"), ((2, 4), "bab"), ((5,), "a"), ((1, 4), "bbabb")]
)
def test_requests_are_sent_as_often_as_their_weights(weights, order) -> None:
    """Each in proportion, evenly spread, and in the order of the lines if all weigh the same."""
    templates = [
        RequestTemplate(url=f"http://h/{name}", weight=weight) for name, weight in zip("abc", weights, strict=False)
    ]
    found = "".join(each.url[-1] for each in in_turn(templates))

    assert order == found


@pytest.mark.parametrize("weight", [0, 1001, 1.5, "2", True, None])
def test_bad_weight_is_refused(weight) -> None:
    """A weight is a whole number from 1 to 1,000."""
    with pytest.raises(ValueError, match="line 1: weight must be a whole number from 1 to 1,000"):
        parse_requests([json.dumps({"weight": weight})], RequestTemplate(url="http://h/"))


def test_weights_are_part_of_the_digest() -> None:
    """Requests in another proportion are another load."""
    kinds = [[RequestTemplate(url=f"http://h/{name}", weight=weight) for name in "ab"] for weight in (1, 2)]

    assert describe_requests([kinds[0]]) != describe_requests([kinds[1]])
