"""The limits of a simulation: beyond them it would fill the memory, or not end, and is refused at once.

Each is named in the refusal, with its unit. They are meant to be out of the way of every load that one process can
simulate, and to turn a slip of the pen into a line that says so.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = [
    "ARRIVALS_PER_SECOND_MAX",
    "DAYS_MAX",
    "JOBS_MAX",
    "KEYS_MAX",
    "NAME_BYTES_MAX",
    "NODES_MAX",
    "RECORDED_MAX",
    "RECORD_CHARS_MAX",
    "SECONDS_MAX",
    "SEEDS_MAX",
    "STEP_SECONDS_MIN",
    "TOML_BYTES_MAX",
    "check_most",
]

# Jobs that wait at a time, on all nodes of an executor: some 100 bytes each, 2 GB.
JOBS_MAX: Final = 20_000_000
# Keys of a population: some 400 bytes each while they are made, 2 GB.
KEYS_MAX: Final = 10_000_000
# Executors of a fleet: some 15 kB each, and a minute to set them up.
NODES_MAX: Final = 10_000
# A minute's arrivals are in memory at a time; executors simulate about as many jobs in a second of the machine.
ARRIVALS_PER_SECOND_MAX: Final = 100_000
# 300 years; steps are told apart by floats of seconds, and forecasts look twice as far as 100 years.
DAYS_MAX: Final = 110_000
SECONDS_MAX: Final = DAYS_MAX * 86_400
# Over which values are summed up: steps of less would be all that is done.
STEP_SECONDS_MIN: Final = 0.001
# Runs of a forecast: its chance is known to 1 % then.
SEEDS_MAX: Final = 10_000
# Lines of a recording, some 100 bytes each in memory, 10 GB; and characters of one of them.
RECORDED_MAX: Final = 100_000_000
RECORD_CHARS_MAX: Final = 1024**2
# A scenario in a file: ten thousand times what one needs.
TOML_BYTES_MAX: Final = 16 * 1024**2
# Of a scenario's name in UTF-8: file systems take 255, and a suffix follows.
NAME_BYTES_MAX: Final = 200


def check_most(name: str, value: Any, most: float, unit: str) -> None:
    """Refuse a number beyond a limit.

    Raises:
        ValueError: naming the parameter, the limit and its unit.
    """
    if value > most:
        raise ValueError(f"{name} must be at most {most:,} {unit}, got {value!r}")
