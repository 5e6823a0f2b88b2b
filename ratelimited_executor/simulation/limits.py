"""Limits of a simulation: beyond them it would exhaust memory or never end, so it is refused at once.

Each error names the limit and its unit. The limits are beyond every load that one process can simulate; they turn a
typing error in a number into a clear message.
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

# Jobs pending at a time, on all nodes of an executor: some 100 bytes each, 2 GB.
JOBS_MAX: Final = 20_000_000
# Keys of a population: some 400 bytes each while they are made, 2 GB.
KEYS_MAX: Final = 10_000_000
# Executors of a fleet: some 15 kB each, and a minute to set them up.
NODES_MAX: Final = 10_000
# The arrivals of one minute are in memory at a time; executors simulate about this many jobs in a real second.
ARRIVALS_PER_SECOND_MAX: Final = 100_000
# 300 years: floats of seconds still tell steps apart, and forecasts run for twice their limit of up to 100 years.
DAYS_MAX: Final = 110_000
SECONDS_MAX: Final = DAYS_MAX * 86_400
# Seconds over which values are summed up: with shorter steps, summing up would take all the time.
STEP_SECONDS_MIN: Final = 0.001
# Runs of a forecast: with as many, the probability is known to 1 %.
SEEDS_MAX: Final = 10_000
# Lines of a recording, some 100 bytes each in memory, 10 GB; and characters of one line.
RECORDED_MAX: Final = 100_000_000
RECORD_CHARS_MAX: Final = 1024**2
# Size of a scenario file: ten thousand times the usual size.
TOML_BYTES_MAX: Final = 16 * 1024**2
# Length of a scenario's name in UTF-8: file systems take 255, and a suffix follows.
NAME_BYTES_MAX: Final = 200


def check_most(name: str, value: Any, most: float, unit: str) -> None:
    """Refuse a number beyond a limit.

    Raises:
        ValueError: if the number is larger; names the parameter, the limit and its unit.
    """
    if value > most:
        raise ValueError(f"{name} must be at most {most:,} {unit}, got {value!r}")
