"""Claims in turn by key, as moves: ``Turns`` in ``_core/durable/tasks.py`` has the rules.

No statement reads a backlog: ``turn_keys`` goes from key to key by an index, and ``turn_tasks`` reads the first tasks of keys.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ratelimited_executor._core.durable.tasks import Claim, Turns
    from ratelimited_executor.stores.tasks.statements import Moves

__all__ = ["in_turn"]

_KEYS_MIN: Final = 100  # keys in the answer to one statement, unless more tasks are asked for
_EVER: Final = 2**62  # after all times; minus this, before all
_FIRST: Final = ""  # before all keys


def in_turn(now_us: int, asked: Claim, turns: Turns) -> Moves[tuple[list[list[Any]], bool]]:
    """Claim tasks in turn by key; return their rows, and True if there are more."""
    choice = _Choice(now_us, asked, turns)
    for dues in ((-_EVER, now_us), (now_us, _EVER)):
        priority = math.inf
        while not choice.is_full and not choice.is_more:
            [(priority,)] = yield "level", [(asked.queue, priority)]
            if priority is None or priority < asked.above or (priority == asked.above and asked.before_us is None):
                break
            yield from choice.of_level(priority, *dues)
    is_more = choice.is_full or choice.is_more
    if not choice.numbers:
        return [], is_more
    [(text,)] = yield "take", [(asked.owner, json.dumps(choice.numbers), now_us)]
    rows = {row[0]: row for row in json.loads(text)}
    return [rows[number] for number in choice.numbers if number in rows], is_more


class _Choice:
    """The tasks that a claim has chosen so far.

    Attributes:
        numbers: the numbers of these tasks.
        is_full: True if no more fit: the count or the size of the claim is reached.
        is_more: True if some key has more tasks than its quota.
    """

    def __init__(self, now_us: int, asked: Claim, turns: Turns) -> None:
        self.numbers: list[int] = []
        self.is_full = False
        self.is_more = False
        self._asked = asked
        self._turns = turns
        self._now_us = now_us
        self._before_us = _EVER if asked.before_us is None else now_us + asked.before_us  # at the least priority
        self._unknown = json.dumps(sorted(asked.unknown))
        self._size = 0

    def of_level(self, priority: float, since_us: int, until_us: int) -> Moves[None]:
        """Choose tasks of one priority that are due after a time, and not after another."""
        if priority == self._asked.above:
            until_us = min(until_us, self._before_us - 1)
        after, limit = self._turns.after.get(priority, _FIRST), max(_KEYS_MIN, self._asked.count)
        for begin, end in ((after, None), (_FIRST, after)):
            first, is_end = begin, end == _FIRST
            while not is_end and not self.is_full:
                [(text,)] = yield "turn_keys", [(self._asked.queue, priority, first, limit)]
                found = json.loads(text)
                keys = [key for key in found if end is None or key <= end]
                is_end = len(keys) < limit
                first = found[-1] if found else first
                while keys and not self.is_full:
                    keys = yield from self._of_keys(keys, priority, since_us, until_us)

    def _of_keys(self, keys: list[str], priority: float, since_us: int, until_us: int) -> Moves[list[str]]:
        """Choose tasks of the first of some keys, as many keys as may be needed; return the others."""
        asked, quotas, by_quota = self._asked, {}, defaultdict(list)
        room = asked.count - len(self.numbers)
        for key in keys:
            if room <= 0:
                break
            quotas[key] = 0
            if key not in asked.full_keys:
                quotas[key] = quota = min(room, self._turns.quota(priority, key))
                room -= quota
                by_quota[quota].append(key)
        texts = yield (
            "turn_tasks",
            [
                (asked.queue, priority, json.dumps(some), since_us, until_us, self._now_us, self._unknown, quota + 1)
                for quota, some in by_quota.items()
                if quota or not self.is_more
            ],
        )
        tasks = defaultdict(list)
        for (text,) in texts:
            for key, *task in json.loads(text):
                tasks[key].append(task)
        for key, quota in quotas.items():
            if not self.is_full:
                self._choose(sorted(tasks[key]), quota)
        return keys[len(quotas) :]

    def _choose(self, tasks: list[list[int]], quota: int) -> None:
        """Choose the first of a key's tasks, given as due time, number and size."""
        for _, number, size in tasks:
            if not quota:
                self.is_more = True
                return
            self._size += size
            self.is_full = bool(self.numbers) and self._size > self._asked.size
            if not self.is_full:
                self.numbers.append(number)
                self.is_full = len(self.numbers) == self._asked.count
            if self.is_full:
                return
            quota -= 1
