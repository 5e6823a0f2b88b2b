"""Leave out the tests of Redis where no Redis can be started."""

import sys

if sys.platform == "win32":
    collect_ignore_glob = ["test_*.py", "progress/test_*.py"]
