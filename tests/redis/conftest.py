"""Where there is no Redis to start, its tests are left out."""

import sys

if sys.platform == "win32":
    collect_ignore_glob = ["test_*.py"]
