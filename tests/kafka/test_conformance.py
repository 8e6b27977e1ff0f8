"""Conformance of the five protocols on Kafka: a part of it in `make test`, all of it in `make soak`.

The tests are those of tests/conformance, run by a pytest of its own with `--engine kafka`. Which of them do
not hold there, and why, is in tests/conformance/kafka_rows.py; nothing else is skipped.
"""

import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import pytest
from conformance.kafka_rows import NOT_ON_KAFKA

ROOT: Final = Path(__file__).parents[2]
ROWS: Final = "tests/conformance"
PROTOCOLS: Final = ("blipmq", "rustlog", "flymq", "felix", "fujin")

# Publishing, delivery, acknowledgement, groups and transactions of each protocol that has them. The server
# of BlipMQ stays until the end: it comes last, so that one Kafka is enough for all.
CHOSEN: Final = (
    "rustlog/test_groups.py::test_a_fetch_does_not_move_the_commit",
    "rustlog/test_groups.py::test_the_last_commit_counts",
    "rustlog/test_groups.py::test_the_dialects_share_their_groups",
    "flymq/test_groups.py::test_a_commit_is_durable_and_may_go_back",
    "flymq/test_groups.py::test_members_are_counted_while_they_are_connected",
    "flymq/test_transactions.py::test_the_frames_of_the_documents",
    "flymq/test_transactions.py::test_rolled_back_it_leaves_nothing",
    "felix/test_subscribe.py::test_it_begins_with_what_is_published_after_it",
    "fujin/test_reading.py::test_readers_of_a_group_share_and_groups_each_get_everything",
    "fujin/test_reading.py::test_every_id_has_a_result",
    "fujin/test_writes.py::test_messages_of_a_transaction_appear_together",
    "fujin/test_writes.py::test_what_is_rolled_back_never_appears",
    "blipmq/test_ack.py::test_any_connection_may_acknowledge",
    "blipmq/test_ack.py::test_a_second_ack_is_unknown",
    "blipmq/test_delivery.py::test_two_connections_compete",
    "blipmq/test_delivery.py::test_every_subscription_of_a_topic_gets_every_message",
)


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_on_kafka(names: Iterable[str]) -> None:
    said = run("--engine", "kafka", "-rs", *(f"{ROWS}/{name}" for name in names))
    if not re.search(r"[1-9][0-9]* passed", said):
        pytest.skip(said.strip().splitlines()[-2])


def test_the_chosen_rows() -> None:
    run_on_kafka(CHOSEN)


@pytest.mark.soak
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_all_rows(protocol: str) -> None:
    run_on_kafka(sorted(path.relative_to(ROOT / ROWS).as_posix() for path in files_of(protocol)))


def files_of(protocol: str) -> Sequence[Path]:
    return list((ROOT / ROWS / protocol).glob("test_*.py"))


def test_every_listed_row_is_there() -> None:
    """A test that was renamed would be skipped by nobody."""
    said = run("--collect-only", "--engine", "embedded", *(f"{ROWS}/{one}" for one in PROTOCOLS))
    known = {line.removeprefix(f"{ROWS}/") for line in said.splitlines() if "::" in line}
    for listed in NOT_ON_KAFKA:
        assert any(
            one == listed or one.startswith((f"{listed}[", f"{listed}::"))
            if not listed.endswith("-")
            else one.startswith(listed)
            for one in known
        ), listed
