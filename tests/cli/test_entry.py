"""Ctrl-C in the first and last moments of a command: it ends with 130 and says nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit.limits import HANG_S

SOURCE = str(Path(__file__).parents[2] / "src")

# Presses Ctrl-C when a module is about to be imported, or when the interpreter ends.
CHILD = """
import os, signal, sys, threading

moment = sys.argv[1]
if sys.argv[2] == "ignored":
    signal.signal(signal.SIGINT, signal.SIG_IGN)

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == moment:
            interrupt()

if moment == "the end":
    threading._register_atexit(interrupt)
from penstock.cli.entry import main
sys.meta_path.insert(0, Finder())
sys.argv[1:] = ["version"]
sys.exit(main())
"""


def run_child(moment: str, signal_is: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", CHILD, moment, signal_is],
        check=False,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )


@pytest.mark.parametrize(
    "moment", ["penstock.cli.main", "typer", "penstock.cli.version", "the end"]
)
def test_ctrl_c_at_any_moment(moment: str) -> None:
    done = run_child(moment, "heeded")
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize("moment", ["penstock.cli.main", "typer", "the end"])
def test_a_signal_that_is_ignored_stays_ignored(moment: str) -> None:
    """As a shell starts commands in the background."""
    done = run_child(moment, "ignored")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("penstock ")


def test_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "--version"],
        check=True,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    assert done.stdout.startswith("penstock ")
