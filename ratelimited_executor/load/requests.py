"""Templates of HTTP requests, with the number of the request in them, and the file that lists several."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urljoin, urlsplit

from ratelimited_executor._core.escapes import int_of_digits, shown
from ratelimited_executor._core.urls import is_secret, masked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = [
    "RequestTemplate",
    "check_body",
    "check_credentials",
    "check_method",
    "check_url",
    "describe_requests",
    "fill",
    "in_turn",
    "names_class",
    "parse_header",
    "parse_requests",
    "percent_format",
    "templates_of_class",
    "with_content_type",
]

_NUMBER: Final = re.compile(r"\{n(?::(?P<spec>0?[0-9]{0,3}[dxX]?))?\}")
_METHOD: Final = re.compile(r"[A-Z][A-Z-]*")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FIELDS: Final = frozenset({"method", "url", "headers", "body", "class", "weight"})
_WEIGHT_MAX: Final = 1_000  # a request is sent at least once in so many turns of another
_CLASS: Final = "{class}"
_JSON: Final = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTemplate:
    """One kind of request; ``{n}`` in the URL and the body is the number of the request.

    Attributes:
        url: an absolute URL, http or https.
        method: the method in upper case.
        headers: the headers by name.
        body: the body; None for none.
        class_name: the class that the request is for; None for all classes.
        weight: how often it is sent, compared with others of its class, 1 to 1,000.
    """

    url: str
    method: str = "GET"
    headers: dict[str, str] = field(default_factory=dict)
    body: str | None = None
    class_name: str | None = None
    weight: int = 1


def in_turn(templates: Sequence[RequestTemplate]) -> list[RequestTemplate]:
    """Return the order in which requests are sent, again and again: each as often as its weight, evenly spread.

    >>> kinds = [RequestTemplate(url="http://host/a", weight=2), RequestTemplate(url="http://host/b", weight=4)]
    >>> [each.url[-1] for each in in_turn(kinds)]
    ['b', 'a', 'b']
    """
    divisor = math.gcd(*(each.weight for each in templates))
    places = [
        ((number + 0.5) / (each.weight // divisor), index)
        for index, each in enumerate(templates)
        for number in range(each.weight // divisor)
    ]
    return [templates[index] for _, index in sorted(places)]


def templates_of_class(templates: Iterable[RequestTemplate], name: str) -> list[RequestTemplate]:
    """Return the requests of one class, with its name in place of ``{class}`` in URLs, headers and bodies.

    Raises:
        ValueError: if there is no request for the class.

    >>> [each.url for each in templates_of_class([RequestTemplate(url="http://host/{class}/{n}")], "urgent")]
    ['http://host/urgent/{n}']
    """
    found = [
        replace(
            each,
            url=each.url.replace(_CLASS, name),
            headers={header: text.replace(_CLASS, name) for header, text in each.headers.items()},
            body=None if each.body is None else each.body.replace(_CLASS, name),
        )
        for each in templates
        if each.class_name in (None, name)
    ]
    if not found:
        raise ValueError(f"there is no request for the class {name!r}")
    return found


def with_content_type(template: RequestTemplate) -> RequestTemplate:
    """Return a request that says that its body is JSON, if it is an object or an array and no header says otherwise.

    >>> body = '{"id": {n}}'
    >>> with_content_type(RequestTemplate(url="http://host/", body=body)).headers
    {'Content-Type': 'application/json'}
    """
    if template.body is None or _content_type_of(template) is not None or not _is_json(fill(template.body, 0)):
        return template
    return replace(template, headers=template.headers | _JSON)


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text, parse_int=str), (dict, list))
    except (ValueError, RecursionError):
        return False


def _content_type_of(template: RequestTemplate) -> str | None:
    return next((text for name, text in template.headers.items() if name.lower() == "content-type"), None)


def names_class(template: RequestTemplate) -> bool:
    """Return True if ``{class}`` occurs in a request."""
    texts = (template.url, template.body or "", *template.headers.values())
    return any(_CLASS in text for text in texts)


def describe_requests(classes: Sequence[Sequence[RequestTemplate]]) -> str:
    """Describe the requests in a few words, with a digest that distinguishes different ones.

    The description and the digest include no secrets.

    Args:
        classes: the requests of each class.

    >>> describe_requests([[RequestTemplate(url="http://host/")]])
    'GET'
    >>> describe_requests([[RequestTemplate(url="http://host/", method="POST", body="{n}")]])
    'POST, 3 bytes, digest b2b3c231'
    """
    templates = [each for group in classes for each in group]
    methods = "/".join(dict.fromkeys(each.method for each in templates))
    headers = len({name.lower() for each in templates for name in each.headers})
    types = list(dict.fromkeys(text for each in templates if (text := _content_type_of(each)) is not None))
    size = sum(len((each.body or "").encode()) for each in templates)
    words = [
        methods if len(templates) == 1 else f"{len(templates):,} kinds of {methods}",
        *([f"{headers:,} header{'s' if headers > 1 else ''}"] if headers else []),
        *([f"{size:,} byte{'s' if size > 1 else ''}"] if size else []),
        *([f"content type {' and '.join(types)}"] if types else []),
    ]
    if len(templates) > 1 or headers or size:
        sent = [[_identity(each) for each in group] for group in classes]
        words.append(f"digest {hashlib.sha256(json.dumps(sent).encode()).hexdigest()[:8]}")
    return ", ".join(words)


def _identity(template: RequestTemplate) -> list[object]:
    """Return the identity of a request for the digest, without its host and without values that are likely secret."""
    parts = urlsplit(template.url)
    headers = {
        name.lower(): "" if is_secret(name) else text  # else it could be guessed from the digest
        for name, text in template.headers.items()
    }
    weight = [] if template.weight == 1 else [template.weight]
    return [template.method, parts.path, masked(f"?{parts.query}")[1:], sorted(headers.items()), template.body, *weight]


def fill(text: str, number: int) -> str:
    """Return a text with the number of the request in it; other braces stay.

    >>> fill('{"id": {n}, "file": "{n:05}.txt"}', 42)
    '{"id": 42, "file": "00042.txt"}'
    """
    return _NUMBER.sub(lambda match: format(number, match["spec"] or ""), text)


def percent_format(text: str, encoded: Callable[[str], str] = str) -> tuple[str, int]:
    """Return a format for the operator ``%`` that does what :func:`fill` does, and how often the number stands in it.

    Args:
        text: the text with ``{n}``.
        encoded: a function that is applied to the text around the numbers.

    >>> percent_format('{"id": {n}, "file": "{n:05}.txt", "part": "5%"}')
    ('{"id": %d, "file": "%05d.txt", "part": "5%%"}', 2)
    """
    pieces, position = [], 0
    numbers = list(_NUMBER.finditer(text))
    for match in numbers:
        spec = match["spec"] or ""
        pieces.append(encoded(text[position : match.start()]).replace("%", "%%"))
        pieces.append(f"%{spec}" if spec[-1:].isalpha() else f"%{spec}d")
        position = match.end()
    return "".join([*pieces, encoded(text[position:]).replace("%", "%%")]), len(numbers)


def check_url(url: str) -> str:
    """Return a URL if requests can be sent to it.

    Raises:
        ValueError: if it is not absolute, or neither http nor https.
    """
    try:
        urlsplit(url)  # braces are no digits of an address in brackets
        parts = urlsplit(fill(url, 0))
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_good = False
    if not is_good:
        raise ValueError(f"a URL must look like http://host:8000/path, got {masked(url)!r}")
    return url


def check_credentials(template: RequestTemplate) -> RequestTemplate:
    """Return a request that has one kind of credentials at most.

    Raises:
        ValueError: if it has a user name in its URL beside a header ``Authorization``: no client can send both.
    """
    has_user = urlsplit(fill(template.url, 0)).username is not None
    if has_user and any(name.lower() == "authorization" for name in template.headers):
        raise ValueError("there is a user name or password in the URL beside a header Authorization: give one of them")
    return template


def check_body(body: str) -> str:
    """Return a body that can be sent.

    Raises:
        ValueError: if UTF-8 cannot write it.
    """
    try:
        body.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"a body must be a text that UTF-8 can write, got {body[error.start]!r} in it") from error
    return body


def check_method(method: str) -> str:
    """Return a method in upper case.

    Raises:
        ValueError: if the method is not a word.
    """
    if not _METHOD.fullmatch(method.upper()):
        raise ValueError(f"method must be a word such as GET, got {method!r}")
    return method.upper()


def parse_header(text: str) -> tuple[str, str]:
    """Return the name and the value of ``Name: value``.

    Raises:
        ValueError: if the text has another form.
    """
    name, colon, value = text.partition(":")
    if not colon or not _HEADER_NAME.fullmatch(name.strip()) or not value.isprintable():
        raise ValueError("a header must look like 'Name: value'")  # it is not shown, as it may hold a secret
    return name.strip(), value.strip()


def parse_requests(
    lines: Iterable[str], base: RequestTemplate, class_names: Sequence[str] = ()
) -> list[RequestTemplate]:
    """Read JSON Lines with ``method``, ``url``, ``headers``, ``body``, ``class`` and ``weight``, all optional.

    Args:
        lines: the lines of the file; blank ones are skipped.
        base: the defaults of a line, and the base of its URL. A line's headers are added to the base's. A body that is
            not a text is sent as JSON.
        class_names: the classes that a line may be for.

    Raises:
        ValueError: if a line is not a valid request, with its number; if there is no request.
    """
    templates = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                templates.append(_template_of(json.loads(line, parse_int=int_of_digits), base, class_names))
            except json.JSONDecodeError as error:
                raise ValueError(
                    f'line {number} must be a JSON object such as {{"url": "/"}}: {error.msg} at column {error.colno}'
                ) from error
            except RecursionError as error:
                raise ValueError(f"line {number} is nested too deeply") from error
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
    if not templates:
        raise ValueError("the file has no requests")
    return templates


def _template_of(value: Any, base: RequestTemplate, class_names: Sequence[str]) -> RequestTemplate:
    if not isinstance(value, dict):
        raise ValueError(f'a request must be a JSON object such as {{"url": "/"}}, got {shown(value)}')  # noqa: TRY004  # a line of a file, no argument
    if unknown := sorted(value.keys() - _FIELDS):
        raise ValueError(f"unknown field {unknown[0]!r}: a request has method, url, headers, body, class and weight")
    class_name = value.get("class")
    if class_name is not None and class_name not in class_names:
        raise ValueError(f"the class {class_name!r} has no rate: give it one, such as --rate urgent=20")
    weight = value.get("weight", base.weight)
    if type(weight) is not int or not 1 <= weight <= _WEIGHT_MAX:
        raise ValueError(f"weight must be a whole number from 1 to {_WEIGHT_MAX:,}, got {shown(weight)}")
    headers = value.get("headers", {})
    if not isinstance(headers, dict) or not all(isinstance(each, str) for each in headers.values()):
        raise ValueError("headers must be an object of strings")  # they are not shown, as they may hold a secret
    pairs = dict(parse_header(f"{name}: {text}") for name, text in headers.items())
    url, method = value.get("url", base.url), value.get("method", base.method)
    if not isinstance(url, str) or not isinstance(method, str):
        raise ValueError("url and method must be strings")  # noqa: TRY004  # callers expect ValueError for every bad line
    body = value.get("body", base.body)
    if body is not None and not isinstance(body, str):
        body = json.dumps(body, ensure_ascii=False)
        pairs = pairs if any(name.lower() == "content-type" for name in base.headers | pairs) else _JSON | pairs
    template = RequestTemplate(
        url=check_url(urljoin(base.url, url)),
        method=check_method(method),
        headers=base.headers | pairs,
        body=None if body is None else check_body(body),
        class_name=class_name,
        weight=weight,
    )
    return check_credentials(with_content_type(template))
