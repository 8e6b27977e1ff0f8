"""`penstock engine copy`, there and back: with a data directory, a Kafka of its own, and the real
command."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.conftest import RunningServer, start_server
from kit.limits import HANG_S
from kit.outside_servers import KafkaServer
from typer.testing import CliRunner

from penstock.cli.engine import NoKafka, NoSuchEngine
from penstock.cli.main import build_app
from penstock.server.engine_copy import Runs, TargetNotEmpty


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    with KafkaServer(tmp_path_factory.mktemp("kafka")) as server:
        yield server


def filled(server: RunningServer) -> None:
    def run(*arguments: str, stdin: bytes = b"") -> None:
        done = server.penstock(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr

    run("topic", "create", "orders", "--partitions", "2")
    for partition in ("0", "1"):
        lines = b"".join(b"%s-%d\n" % (partition.encode(), n) for n in range(100))
        run("pub", "--protocol", "rustlog", "-p", partition, "orders", stdin=lines)
    run("pub", "--protocol", "flymq", "-K", "key", "clicks/eu", "keyed")
    run(
        "sub",
        "--protocol",
        "rustlog",
        "orders",
        "-p",
        "0",
        "--group",
        "g",
        "--from",
        "earliest",
        "-n",
        "40",
    )
    run("key", "create", "ann", "--role", "admin")


def copied(to: str, data: Path, kafka: KafkaServer, *more: str) -> str:
    bootstrap = f"kafka.bootstrap={kafka.brokers}"
    arguments = ["engine", "copy", "--to", to, "--data", str(data), "--set", bootstrap, *more]
    result = CliRunner().invoke(build_app(["engine"]), arguments)
    if result.exception is not None:
        raise result.exception
    return result.output


def test_there_and_back(tmp_path: Path, kafka: KafkaServer) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    server = start_server(first, tmp_path)
    try:
        filled(server)
        before = server.penstock("cat", "orders", "-p", "1").stdout
        offset = server.penstock("group", "describe", "g").stdout
    finally:
        server.process.terminate()
        server.process.communicate(timeout=HANG_S)
    text = copied("kafka", first, kafka)
    assert "orders: 200 records in 2 partition(s), compared" in text
    assert "1 group(s)" in text
    with pytest.raises(TargetNotEmpty, match="delete it there"):
        copied("kafka", first, kafka)
    text = copied("embedded", second, kafka)
    assert "clicks/eu: 1 record in 1 partition(s), compared" in text
    server = start_server(second, tmp_path)
    try:
        # The keys of the first server are those of the second: nobody else gets in.
        refused = server.penstock("cat", "orders", "-p", "1")
        assert refused.returncode != 0
        made = server.penstock("key", "create", "bob", "--role", "admin", "--data", str(second))
        assert made.returncode != 0  # the server runs on it
    finally:
        server.process.terminate()
        server.process.communicate(timeout=HANG_S)
    assert before.count(b"\n") == 100
    assert b"40" in offset


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--to", "kafak", "--set", "kafka.bootstrap=127.0.0.1:1"], NoSuchEngine),
        (["--to", "kafka"], NoKafka),
    ],
)
def test_mistakes_are_told(arguments: list[str], error: type[Exception]) -> None:
    result = CliRunner().invoke(build_app(["engine"]), ["engine", "copy", *arguments])
    assert isinstance(result.exception, error)


def test_offsets_are_mapped() -> None:
    """The source has gaps, where compaction was; the target begins at 0."""
    runs = Runs(source_end=30, target_end=5)
    for number, source in enumerate((10, 11, 15, 16, 20)):
        runs.add(source, number)
    assert runs.sources == [10, 15, 20]
    wanted = {0: 0, 10: 0, 11: 1, 12: 2, 14: 2, 15: 2, 16: 3, 17: 4, 20: 4, 21: 5, 30: 5, 99: 5}
    assert {offset: runs.target_of(offset) for offset in wanted} == wanted
