"""`--decode`: values by the schemas of the registry, of each kind, and what cannot be decoded."""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
import typer
from kit.live_server import LiveServer

from penstock.broker.records import Records
from penstock.cli import main as cli
from penstock.cli.decoding import parse_schema
from penstock.errors import ExitCode

Run = Callable[..., tuple[int, list[str], str]]

AVRO_1: dict[str, Any] = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}
AVRO_2: dict[str, Any] = {
    **AVRO_1,
    "fields": [*AVRO_1["fields"], {"name": "s", "type": "string", "default": "-"}],
}
PROTO = 'syntax = "proto3"; message Order { int32 number = 1; string note = 2; }'


def avro(schema: dict[str, Any], value: object) -> bytes:
    content = io.BytesIO()
    fastavro.schemaless_writer(content, fastavro.parse_schema(schema), value)
    return content.getvalue()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("decoding")) as server:
        registry = server.server.broker.schemas.registry
        registry.register("row", "avro", json.dumps(AVRO_1).encode())
        registry.register("row", "avro", json.dumps(AVRO_2).encode())
        registry.register("order", "protobuf", PROTO.encode())
        registry.register("person", "json", b'{"type": "object"}')
        yield server


@pytest.fixture
def run(
    server: LiveServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Run:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_SERVER", f"127.0.0.1:{server.port()}")
    monkeypatch.setenv("PENSTOCK_HTTP", f"http://127.0.0.1:{server.port('http')}")

    def run(*arguments: str) -> tuple[int, list[str], str]:
        code = cli.main(list(arguments))
        out, err = capfd.readouterr()
        return code, out.splitlines(), err

    return run


def store(server: LiveServer, topic: str, *values: bytes) -> None:
    broker = server.server.broker

    async def publish() -> None:
        await broker.publish(broker.access.anonymous, topic, None, Records(list(values)))

    server.run(publish())


READ = ("--from", "earliest", "--idle", "0.05")


@pytest.mark.parametrize("protocol", ["http", "rustlog", "flymq"])
def test_avro_of_two_versions_by_the_topic(server: LiveServer, run: Run, protocol: str) -> None:
    """The newest version that fits is used; what fits none is shown as it is, with the reason."""
    topic = f"rows-{protocol}"
    store(server, topic, avro(AVRO_2, {"n": 1, "s": "ä"}), avro(AVRO_1, {"n": 7}), b"\xff\xff")
    assert run("schema", "bind", topic, "row")[0] == 0
    code, lines, errors = run("sub", topic, "--decode", "--protocol", protocol, *READ)
    assert (code, lines[:2]) == (0, ['{"n":1,"s":"ä"}', '{"n":7}'])
    assert f"penstock: {topic}/0 offset 2: not decoded by schema row: " in errors
    assert "Traceback" not in errors


def test_protobuf_and_json_lines(server: LiveServer, run: Run) -> None:
    store(server, "orders", b"\x08\x2a\x12\x02hi", b"\x08\x01\x18\x01")
    found = run("cat", "orders", "--schema", "order", "--json")
    first, second = (json.loads(line) for line in found[1])
    assert first["value"] == {"number": 42, "note": "hi"}
    assert second["value"] == "\x08\x01\x18\x01"
    assert "unexpected field: number 3" in found[2]


def test_json_by_name_and_version(server: LiveServer, run: Run) -> None:
    store(server, "people", b'{ "name" : "al" }', b"no json")
    code, lines, errors = run("cat", "people", "--schema", "person:1")
    assert (code, lines) == (0, ['{"name":"al"}', "no json"])
    assert errors.count("not decoded") == 1


def test_what_cannot_be(server: LiveServer, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    store(server, "loose", b"x")
    code, _, errors = run("sub", "loose", "--decode", *READ[2:])
    assert code == ExitCode.NOT_FOUND
    assert "topic 'loose' is bound to no schema; --schema NAME says which" in errors
    for options in (("--schema", "nobody"), ("--schema", "row:9")):
        code, _, errors = run("cat", "loose", *options)
        assert code == ExitCode.NOT_FOUND and "not found" in errors
    code, _, errors = run("sub", "typo", "--decode")
    assert code == ExitCode.NOT_FOUND and "no topic named 'typo'" in errors
    monkeypatch.delenv("PENSTOCK_HTTP")
    code, _, errors = run("sub", "loose", "--decode")
    assert code == ExitCode.USAGE and "give --http too" in errors


@pytest.mark.parametrize(
    ("text", "found"), [("a", ("a", 0)), ("a:3", ("a", 3)), ("a:b:2", ("a:b", 2))]
)
def test_names_and_versions(text: str, found: tuple[str, int]) -> None:
    assert parse_schema(text) == found


@pytest.mark.parametrize("text", ["a:", ":1", "a:x", "a:-1", "a:99999999999"])
def test_names_that_are_none(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="write NAME or NAME:VERSION"):
        parse_schema(text)
