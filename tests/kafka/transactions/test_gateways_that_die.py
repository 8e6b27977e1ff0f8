"""A gateway dies or hangs at any step of a transaction; another one ends it, and all is there once."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP

import pytest
from kit.kafka_steps import ALL, at_once, stage, stage_and_commit
from kit.kafka_transactions import Gateways
from kit.limits import HANG_S

from penstock.kafka.transactions.finishing import FINISH_AFTER_US
from penstock.kafka.transactions.transactions import KafkaTransactions

TESTS = Path(__file__).parents[2]
CHILD = Path(__file__).with_name("transaction_child.py")

# Each takes seconds: the others are the same steps in another order, for make soak.
soak = pytest.mark.soak

Start = Callable[[str, str], "subprocess.Popen[str]"]


@pytest.fixture
def start(gateways: Gateways) -> Iterator[Start]:
    """Another gateway, in its step on return."""
    children: list[subprocess.Popen[str]] = []

    def start_one(kind: str, step: str) -> "subprocess.Popen[str]":
        child = subprocess.Popen(
            [sys.executable, str(CHILD), gateways.brokers, gateways.suffix, kind, step],
            env={**os.environ, "PYTHONPATH": str(TESTS)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "here\n"
        return child

    yield start_one
    for child in children:
        child.kill()
        child.communicate(timeout=HANG_S)


def end(gateways: Gateways, other: KafkaTransactions, kind: str) -> None:
    """As a client does whose gateway is gone."""
    if kind == "staged":
        stage(gateways, other)
        stage_and_commit(gateways, other)
    else:
        at_once(gateways, other)


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        pytest.param("staged", "staged", marks=soak),
        ("staged", "decided"),
        pytest.param("staged", "claimed", marks=soak),
        ("staged", "middle"),
        pytest.param("staged", "filled", marks=soak),
        ("staged", "applied"),
        pytest.param("once", "claimed", marks=soak),
        pytest.param("once", "middle", marks=soak),
        ("once", "filled"),
        ("once", "applied"),
    ],
)
def test_killed(gateways: Gateways, start: Start, kind: str, step: str) -> None:
    other = gateways.open()
    child = start(kind, step)
    child.send_signal(SIGKILL)
    child.wait(HANG_S)
    end(gateways, other, kind)
    assert gateways.everything() == ALL
    end(gateways, gateways.open(), kind)
    assert gateways.everything() == ALL
    assert other.state(gateways.name("q")) == "committed"


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("decided", marks=soak),
        pytest.param("middle", marks=soak),
        "filled",
        pytest.param("applied", marks=soak),
    ],
)
def test_finished_by_whoever_comes_first(gateways: Gateways, start: Start, step: str) -> None:
    """Without any client: by what every gateway does every few seconds."""
    others = [gateways.open() for _ in range(2)]
    child = start("staged", step)
    child.send_signal(SIGKILL)
    child.wait(HANG_S)
    gateways.clock.later_us += FINISH_AFTER_US
    while others[0].unfinished:
        for other in others:
            other.expire()
    assert gateways.everything() == ALL
    assert others[0].rows_of(gateways.name("q")) == 4
    assert others[0].usage("").open == 0


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("staged", "claimed"),
        pytest.param("staged", "middle", marks=soak),
        pytest.param("staged", "filled", marks=soak),
        pytest.param("once", "claimed", marks=soak),
        pytest.param("once", "middle", marks=soak),
        ("once", "filled"),
    ],
)
def test_one_that_hangs_and_goes_on_later(
    gateways: Gateways, start: Start, kind: str, step: str
) -> None:
    """Kafka refuses what it does then, and it finds out that all is done."""
    other = gateways.open()
    child = start(kind, step)
    child.send_signal(SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)
    end(gateways, other, kind)
    assert gateways.everything() == ALL
    child.send_signal(SIGCONT)
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write("\n")
    child.stdin.flush()
    assert child.stdout.readline() == "done\n"
    assert gateways.everything() == ALL
