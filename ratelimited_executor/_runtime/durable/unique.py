"""Unique puts: what makes a durable task unique, and what becomes of a duplicate."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ratelimited_executor._core.durable.tasks import CHANGING, REMEMBERED_US, SPAN_MAX, OnDuplicate, UniqueKey
from ratelimited_executor._core.durations import format_duration
from ratelimited_executor._runtime.arguments import flag_of, member_of, seconds_of
from ratelimited_executor._runtime.durable.codec import check_keys

if TYPE_CHECKING:
    import inspect

    from ratelimited_executor._core.durations import DurationLike

__all__ = ["Unique", "key_of_call", "unique_of"]

_US: Final = 1_000_000
_PERIOD_MAX: Final = REMEMBERED_US / _US
_ENCODER: Final = json.JSONEncoder(allow_nan=False, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Unique:
    """What makes a task unique: a put is a *duplicate* if a task of the same function and arguments exists.

    A task exists from its put to its end. Dead letters, expired and cancelled tasks do not count.

    Attributes:
        by: the names of the parameters that are compared, ``()`` for none of them; all if None.
        period: seconds, at most a day, for which a task counts after its put, by the store's clock, even if it has ended
            meanwhile or is a dead letter; None to count it only while it exists.
        while_running: False if a task that a process has claimed does not count, so that another is put beside it. By
            default it counts for KEEP and REFUSE; for REPLACE and DEBOUNCE it does not, as the arguments would be lost.
        on_duplicate: what becomes of a duplicate.
        delay_max: seconds after its first put for which DEBOUNCE may delay a task; None for no limit.

    Raises:
        TypeError: if a value has a wrong type, or does not fit ``on_duplicate``.
        ValueError: if a value is out of range.
    """

    by: Sequence[str] | None = None
    period: DurationLike | None = None
    while_running: bool | None = None
    on_duplicate: OnDuplicate = OnDuplicate.KEEP
    delay_max: DurationLike | None = None

    def __post_init__(self) -> None:
        if self.by is not None:
            is_listed = isinstance(self.by, Sequence) and not isinstance(self.by, (str, bytes))
            if not is_listed or not all(isinstance(name, str) for name in self.by):
                raise TypeError(f"by must be a tuple of names of parameters, such as ('tenant',), got {self.by!r}")
            object.__setattr__(self, "by", tuple(self.by))
        member_of("on_duplicate", self.on_duplicate, OnDuplicate)
        if self.while_running is not None:
            flag_of("while_running", self.while_running)
        if self.period is not None:
            if self.on_duplicate in CHANGING:
                raise TypeError(
                    f"period= does not fit {self.on_duplicate}, which would be lost after the task has begun: use delay= of put()"
                )
            if seconds_of("period", self.period) > _PERIOD_MAX:
                raise ValueError(f"period must be at most {format_duration(_PERIOD_MAX)}, got {self.period!r}")
        if self.delay_max is not None:
            if self.on_duplicate is not OnDuplicate.DEBOUNCE:
                raise TypeError(f"delay_max= fits OnDuplicate.DEBOUNCE only, got {self.on_duplicate}")
            if seconds_of("delay_max", self.delay_max) > SPAN_MAX:
                raise ValueError(f"delay_max must be at most {SPAN_MAX:.0e} seconds, got {self.delay_max!r}")


def unique_of(name: str, value: Any) -> Unique | None:
    """Return what ``unique=`` asks for; None for nothing."""
    if value is None or value is False:
        return None
    if value is True:
        return Unique()
    if not isinstance(value, Unique):
        raise TypeError(f"{name} must be True, or a Unique such as Unique(by=('tenant',)), got {value!r}")
    return value


def key_of_call(
    unique: Unique, signature: inspect.Signature, scope: Sequence[Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> UniqueKey:
    """Return the unique key of a call; the same however the arguments are passed.

    Args:
        unique: what is compared.
        signature: the signature of the function, which the arguments fit.
        scope: what else distinguishes keys: the queue, and the function's name and version.
        args: the positional arguments.
        kwargs: the keyword arguments.

    Raises:
        TypeError: if an argument that is compared cannot be written as JSON.
        ValueError: if the function has no such parameter.
    """
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    compared: dict[str, Any] = bound.arguments
    if unique.by is not None:
        if unknown := [name for name in unique.by if name not in compared]:
            raise ValueError(
                f"by must name parameters of the function, which has {', '.join(compared)}; got {unknown[0]!r}"
            )
        compared = {name: compared[name] for name in unique.by}
    try:
        check_keys(compared)
        text = _ENCODER.encode([*scope, compared])
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"unique: the arguments cannot be compared: {error}; name those that can by Unique(by=...)"
        ) from error
    by_default = unique.on_duplicate not in CHANGING
    return UniqueKey(
        hashlib.blake2b(text.encode(), digest_size=16).hexdigest(),
        period_us=0 if unique.period is None else round(seconds_of("period", unique.period) * _US),
        while_running=by_default if unique.while_running is None else unique.while_running,
        on_duplicate=unique.on_duplicate,
        delay_max_us=None if unique.delay_max is None else round(seconds_of("delay_max", unique.delay_max) * _US),
    )
