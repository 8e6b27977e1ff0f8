"""The commands of docs/scale-out.md, run as they stand: two gateways on one Kafka.

The addresses of the page become those of the Kafka of the tests and free ports; its brokers are fewer.
"""

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs.markdown import ROOT, Document
from e2e.conftest import RunningServer, start_server
from kit.limits import HANG_S
from kit.outside_servers import KafkaServer

PAGE = Document(ROOT / "docs" / "scale-out.md")
BOOTSTRAP = "kafka1:9092,kafka2:9092,kafka3:9092"
# Each takes as long as a command does.
LOOKS = 100
# What the start chooses itself: free ports, and a directory of the test.
CHOSEN = ("--tcp", "--http", "--data")


def commands() -> list[list[str]]:
    """But those that move a log: test_engine_copy.py does what they say."""
    lines = [line for block in PAGE.of("sh") for line in block.text.splitlines()]
    return [words for line in lines if (words := shlex.split(line)[1:])[0] != "engine"]


@pytest.fixture
def gateways(kafka_server: KafkaServer, tmp_path: Path) -> Iterator[dict[str, RunningServer]]:
    """By the last digit of the ports that the page gives them: 9092 and 8080, 9093 and 8081."""
    started: dict[str, RunningServer] = {}
    try:
        for words in commands():
            if words[0] != "serve":
                continue
            given = dict(zip(words[1::2], words[2::2], strict=True))
            kept = [word for pair in given.items() if pair[0] not in CHOSEN for word in pair]
            flags = [word.replace(BOOTSTRAP, kafka_server.brokers) for word in kept]
            data = tmp_path / given["--data"]
            started[given["--data"]] = start_server(data, tmp_path, *flags)
        yield started
    finally:
        for one in started.values():
            one.process.terminate()
        for one in started.values():
            one.process.communicate(timeout=HANG_S)


def wait_until_known(server: RunningServer, topic: str) -> None:
    """Another gateway knows a new topic a moment later, as the page says."""
    for _ in range(LOOKS):
        if server.penstock("topic", "describe", topic).returncode == 0:
            return
    raise AssertionError(f"{topic} never came to be known")


def test_the_page_works_as_it_says(gateways: dict[str, RunningServer]) -> None:
    one, two = gateways["one"], gateways["two"]
    addresses = {
        "127.0.0.1:9092": one.tcp,
        "http://127.0.0.1:8080": one.http,
        "http://127.0.0.1:8081": two.http,
    }
    printed = {}
    for words in commands():
        if words[0] == "cat":
            wait_until_known(two, "orders")
        if words[0] != "serve":
            done = one.penstock(*[addresses.get(word, word) for word in words])
            assert done.returncode == 0, done.stderr
            printed[words[0]] = done.stdout.decode()
    assert printed["cat"] == "first\n"
    assert "engine kafka" in printed["status"]
    assert printed["status"].count(" gateway ") == 2
    assert printed["status"].count(" broker ") == 1
