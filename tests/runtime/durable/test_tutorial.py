"""The tutorial on durable tasks: its programs and commands run in a real shell, and print what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("no shell and no SIGKILL", allow_module_level=True)

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "tutorial-durable.md").read_text(encoding="utf-8")
PROGRAM, SERVICE = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
SESSION = "".join(re.findall(r"^```console\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE))
COMMANDS = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", SESSION, re.MULTILINE)
ASKED = """
import time
from starlette.testclient import TestClient
from service import app
with TestClient(app, base_url="http://localhost") as client:
    print(client.post("/welcome/eve").json()["is new"], flush=True)
    time.sleep(1)
    page, store = client.get("/executors/"), client.get("/executors/store?name=shop")
    print(page.status_code, ">shop<" in page.text, "newsletter" in store.text)
"""
SECONDS = 120  # for one command, which is killed after that


@pytest.mark.slow
@pytest.mark.timeout(600)  # a busy machine takes half a minute
@pytest.mark.real_time("processes that are killed; how long a task has been due is not compared")
def test_commands_of_the_page_print_what_it_says(tmp_path: Path) -> None:
    """The commands run one after the other in one directory, and their output and errors equal those of the page."""
    (tmp_path / "shop.py").write_text(PROGRAM, encoding="utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}

    told = [(command, without_times(output)) for command, output in COMMANDS]
    real = [(command, without_times(run(command, tmp_path, environment))) for command, _ in COMMANDS]

    assert len(COMMANDS) > 10
    assert told == real
    (tmp_path / "service.py").write_text(SERVICE, encoding="utf-8")
    *begun, seen = run(f"{sys.executable} -c '{ASKED}'", tmp_path, environment).splitlines()
    # The task may run before its put is answered, and two processes write the parts of their lines into one pipe.
    assert sorted("True" + "sent to eve") == sorted("".join(begun))
    assert (2, "200 True True") == (len(begun), seen)


def run(command: str, directory: Path, environment: dict[str, str]) -> str:
    """Run a command in a shell, and return what a person at a terminal would see."""
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return done.stdout + ("Killed\n" if done.returncode in (-9, 137) else "")


def without_times(output: str) -> str:
    """Replace times and owners by words, and reduce the widths of columns."""
    output = re.sub(r"\d[\d.:]*( \w+)? ago", "AGO", output)
    output = re.sub(r"\b[0-9a-f]{28}-\d+", "OWNER", output)
    output = output.replace("Killed\nKilled", "Killed")  # some shells print it themselves
    return "\n".join(" ".join(line.split()) for line in output.strip().splitlines())
