"""All families of limits hold through faults of servers, networks, clocks and processes, counted at the resource.

Real elapsed time cannot be avoided here: other processes, signals and a server's own clock are what is tested. Laws have
no tolerance, and times have only what tells a delay from a standstill. ``python -m tests.peers.battery`` has all faults.
"""

from __future__ import annotations

import socket
import time
from dataclasses import replace

import pytest

from .battery.clock import NoShimError
from .battery.families import FAMILIES
from .battery.faults import FAULTS, TWO_MASTERS
from .battery.resource import EFFECT, LEAVE, MESSAGE, START, AtOnce, Bucket, Fences, Law, Resource, spare
from .battery.run import Outcome, run
from .binaries import REDIS, VALKEY
from .certificates import NoOpensslError

pytestmark = [pytest.mark.real_time("processes and servers of their own"), pytest.mark.slow]
SETTINGS = {"lease": 0.6}
MOST_SECONDS = 25.0  # to the next start of each family, on a machine that is busy with other tests
# Each with another topology; the server is the one that the fault has more to do with, or the other one.
CASES = [
    ("kill", REDIS),
    ("kill", VALKEY),
    ("processes_stopped", VALKEY),
    ("sentinel_kill", REDIS),
    ("cluster_failover", VALKEY),
    ("clock_back", REDIS),
    ("net_stall", VALKEY),
    ("password_rotation", REDIS),
]


@pytest.mark.parametrize(("fault", "server"), CASES)
def test_limits_hold_through_a_fault(fault: str, server: str) -> None:
    """No law is broken, no task lost, no fence given twice, and everything starts again."""
    try:
        outcome = run(fault, server, processes=3, settings=SETTINGS, least=1.5, most=MOST_SECONDS, until_first=True)
    except (FileNotFoundError, NoShimError, NoOpensslError) as error:
        pytest.skip(str(error))
    assert outcome.broken == [], outcome
