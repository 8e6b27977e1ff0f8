"""Arrow Flight on a real server with its real Flight process: every call and every refusal."""

import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa
import pytest
from conformance.rustlog.peer import BINARY, Talker
from kit.engines import embedded
from kit.flight_client import FLIGHT, KEY, column, connect_to, make, table
from kit.live_server import WAIT_S, LiveServer
from kit.records import partition_of
from pyarrow import flight

from penstock.broker.errors import Code
from penstock.broker.records import Records
from penstock.client.errors import NotFound, Refused
from penstock.client.flight import FlightClient, Producer, Written
from penstock.log.batch.arrow import SCHEMA, SCHEMA_WITH_HEADERS
from penstock.log.embedded import EmbeddedEngine
from penstock.log.settings import TopicSettings


@pytest.fixture(scope="module", params=["files", "engine"])
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    """One for all tests that do no harm; each has its own topics. Records are read from the files, or
    through the engine, as it is with an engine that has none."""
    with (
        pytest.MonkeyPatch.context() as patch,
        LiveServer(tmp_path_factory.mktemp("flight") / "data", FLIGHT) as server,
    ):
        if request.param == "engine":
            patch.setattr(EmbeddedEngine, "partition_directory", lambda *_: None)
        yield server


@pytest.fixture
def client(running: LiveServer) -> Iterator[FlightClient]:
    with connect_to(running) as client:
        yield client


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    name: str = request.node.name
    return name.translate(str.maketrans("[]", "--"))  # brackets mean something in a pattern


def raw(server: LiveServer, key: str | None = KEY) -> "tuple[flight.FlightClient, object]":
    headers = [] if key is None else [(b"authorization", f"Bearer {key}".encode())]
    client = flight.connect(f"grpc://127.0.0.1:{server.port('flight')}")
    return client, flight.FlightCallOptions(headers=headers)


# --- reading and writing ----------------------------------------------------------------------------


def test_write_and_read(client: FlightClient, topic: str) -> None:
    data = table(
        b"a", b"", b"c",
        key=["k", None, "z"],
        headers=pa.array(
            [[{"key": "h", "value": b"1"}], None, []],
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        ),
    )  # fmt: skip
    assert client.write(topic, data, create=True) == [Written(topic, 0, 0, 3)]
    assert client.write(topic, table(b"d")) == [Written(topic, 0, 3, 1)]
    found = client.read(topic).read_all()
    assert found.schema == SCHEMA
    assert found.column("value").to_pylist() == [b"a", b"", b"c", b"d"]
    assert found.column("key").to_pylist() == [b"k", None, b"z", None]
    assert found.column("offset").to_pylist() == [0, 1, 2, 3]
    assert set(found.column("topic").to_pylist()) == {topic}
    full = client.read(topic, headers=True).read_all()
    assert full.schema == SCHEMA_WITH_HEADERS
    assert full.column("headers").to_pylist() == [[{"key": "h", "value": b"1"}], None, None, None]
    assert topic in client.topics()


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"start": 3}, range(3, 10)),
        ({"end": 4}, range(4)),
        ({"start": 2, "end": 2}, range(0)),
        ({"start": 2, "end": 10**9}, range(2, 10)),
        ({"partition": 0, "start": 9}, range(9, 10)),
        ({"start": 10}, range(0)),
    ],
)
def test_ranges(client: FlightClient, how: dict[str, object], expected: range) -> None:
    if "ranges" not in client.topics():
        for first in (0, 4, 7):
            rows = range(first, {0: 4, 4: 7, 7: 10}[first])
            client.write("ranges", table(*(b"%d" % row for row in rows)), create=True)
    assert column(client, "ranges", **how) == [b"%d" % row for row in expected]


def test_columns_as_they_are_asked_for(client: FlightClient, topic: str) -> None:
    client.write(topic, table(b"a"), create=True)
    found = client.read(topic, columns=["offset", "headers", "value"]).read_all()
    assert found.schema.names == ["offset", "headers", "value"]
    assert found.to_pylist() == [{"offset": 0, "headers": None, "value": b"a"}]


def test_protocol_tells_by_which_door_a_record_came(
    running: LiveServer, client: FlightClient, topic: str
) -> None:
    client.write(topic, table(b"a"), create=True)
    with Talker(running.port()) as rustlog:
        rustlog.ask(BINARY.produce(topic, 0, [b"b"]))
    client.begin(topic, 60)
    client.stage(topic, 1, topic, table(b"c"))
    client.commit_transaction(topic, [1])
    found = client.read(topic, columns=["protocol", "value"]).read_all().to_pylist()
    assert [(row["value"], row["protocol"]) for row in found] == [
        (b"a", "flight"), (b"b", "rustlog"), (b"c", "flight"),
    ]  # fmt: skip


def test_many_small_batches_come_as_few(running: LiveServer, topic: str) -> None:
    make(running, topic)

    def append() -> None:
        broker = running.server.broker
        who = broker.access.anonymous
        for number in range(500):
            broker.publish(who, topic, 0, Records([b"%d" % number] * 10))

    running.call(append)
    with connect_to(running) as client:
        end = client.write(topic, table(b"last"))[0].base_offset
        assert end == 5000
        batches = list(client.read(topic))
        assert [batch.num_rows for batch in batches] == [5001]
        assert batches[0].column("offset").to_pylist() == list(range(5001))


def test_large_batches_are_cut_into_appends(client: FlightClient, topic: str) -> None:
    values = [bytes([n]) * 1_000_000 for n in range(20)]
    written = client.write(topic, table(*values), create=True)
    assert len(written) > 1
    assert sum(one.count for one in written) == 20
    assert column(client, topic) == values


def test_times(running: LiveServer, client: FlightClient, topic: str) -> None:
    # Records of 1970, and maintenance may run at any moment.
    settings = TopicSettings(retention_ms=0)
    running.call(lambda: running.server.engine.create_topic(topic, 1, settings))
    clock = iter(range(1_000, 10_000, 1_000))
    broker = running.server.broker
    before = broker.clock_us
    broker.clock_us = lambda: next(clock)
    try:
        for value in (b"1000", b"2000", b"3000"):
            client.write(topic, table(value, value), create=True)
    finally:
        broker.clock_us = before
    assert column(client, topic, from_time_us=2_000) == [b"2000", b"2000", b"3000", b"3000"]
    assert column(client, topic, to_time_us=2_000) == [b"1000", b"1000"]
    assert column(client, topic, from_time_us=1_001, to_time_us=3_000) == [b"2000"] * 2
    assert column(client, topic, from_time_us=3_001) == []
    narrow = client.read(topic, columns=["value"], to_time_us=1_500).read_all()
    assert narrow.schema.names == ["value"]
    found = client.action("offsets_by_time", topic=topic, time_us=2_000)
    assert found["partitions"] == [{"partition": 0, "offset": 2}]


def test_partitions(running: LiveServer, client: FlightClient, topic: str) -> None:
    make(running, topic, 3)
    keys = [b"key%d" % number for number in range(30)]
    data = table(*keys, key=list(keys))
    client.write(topic, data)
    for partition in range(3):
        expected = [key for key in keys if partition_of(key, 3) == partition]
        assert expected
        assert column(client, topic, partition=partition) == expected
    assert len(column(client, topic)) == 30
    # The column wins over the key, the command over both; without all of them rows take turns.
    client.write(topic, table(b"c0", b"c2", b"k", key=["x", "x", "x"], partition=[0, 2, None]))
    assert b"c0" in column(client, topic, partition=0)
    assert b"c2" in column(client, topic, partition=2)
    assert b"k" in column(client, topic, partition=partition_of(b"x", 3))
    assert client.write(topic, table(b"p", partition=[0]), partition=1)[0].partition == 1
    turns = pa.RecordBatchReader.from_batches(
        table().schema, [table(b"t").to_batches()[0] for _ in range(6)]
    )
    assert [one.partition for one in client.write(topic, turns)] == [0, 1, 2, 0, 1, 2]


def test_rows_of_several_topics(running: LiveServer, client: FlightClient, topic: str) -> None:
    data = table(b"1", b"2", b"3", topic=[f"{topic}.b", f"{topic}.a", f"{topic}.b"])
    written = client.write(None, data, create=True)
    assert {(one.topic, one.count) for one in written} == {(f"{topic}.a", 1), (f"{topic}.b", 2)}
    assert column(client, f"{topic}.b") == [b"1", b"3"]
    # Named in the command, the column is not looked at.
    client.write(f"{topic}.a", data)
    assert column(client, f"{topic}.a") == [b"2", b"1", b"2", b"3"]


def test_idempotent_writes(client: FlightClient, topic: str) -> None:
    first = client.write(topic, table(b"a", b"b"), producer=Producer(7, 0, 0), create=True)
    assert first == [Written(topic, 0, 0, 2, 0, False)]
    again = client.write(topic, table(b"a", b"b"), producer=Producer(7, 0, 0))
    assert again == [Written(topic, 0, 0, 2, 0, True)]
    assert client.write(topic, table(b"c"), producer=Producer(7, 0, 1))[0].base_offset == 2
    with pytest.raises(Refused, match="expected 2") as gap:
        client.write(topic, table(b"e"), producer=Producer(7, 0, 3))
    assert gap.value.code == Code.SEQUENCE_GAP.number
    client.write(topic, table(b"d"), producer=Producer(7, 1, 0))
    with pytest.raises(Refused, match="fenced") as fenced:
        client.write(topic, table(b"x"), producer=Producer(7, 0, 2))
    assert fenced.value.code == Code.FENCED_PRODUCER.number
    assert column(client, topic) == [b"a", b"b", b"c", b"d"]


def test_repeats_tell_their_offsets_from_the_first_batch_on(
    client: FlightClient, topic: str
) -> None:
    tables = [table(b"%d" % number) for number in range(20)]
    firsts = [
        client.write(topic, one, producer=Producer(7, 0, number), create=True)
        for number, one in enumerate(tables)
    ]
    again = [
        client.write(topic, one, producer=Producer(7, 0, number))[0]
        for number, one in enumerate(tables)
    ]
    assert [one.base_offset for one in again] == [first[0].base_offset for first in firsts]
    assert all(one.repeated for one in again)


def test_a_null_value_in_every_protocol(
    running: LiveServer, client: FlightClient, topic: str
) -> None:
    """Null where there is one, empty where there is none."""
    values = [b"a", None, b""]
    data = pa.table({"value": pa.array(values, pa.binary()), "key": [None, b"k", b"k"]})
    client.write(topic, data, create=True)
    assert column(client, topic) == values
    with Talker(running.port()) as reader:
        reply = reader.ask(BINARY.fetch(topic, 0, 0, 100))
        assert reply == BINARY.fetched(0, [b"a", b"", b""], 3)
    assert json_values(running, topic) == ["YQ==", None, ""]
    code, out = cat(running, topic)
    assert (code, [json.loads(line)["value"] for line in out.splitlines()]) == (0, ["a", None, ""])
    code, out = cat(running, topic, "--format", "%k=%v %S,")
    assert (code, out) == (0, "=a 1,k= -1,k= 0,")


def json_values(running: LiveServer, topic: str) -> list[str | None]:
    url = f"http://127.0.0.1:{running.port('http')}/api/v1/topics/{topic}/records"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        return [record["value"] for record in json.load(answer)["records"]]


def cat(running: LiveServer, topic: str, *how: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "penstock.cli.main", "cat", topic, *(how or ["--json"])]
    environment = {**os.environ, "PENSTOCK_HTTP": f"http://127.0.0.1:{running.port('http')}"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=WAIT_S, check=False, env=environment
    )
    return done.returncode, done.stdout


def test_nothing_to_write(client: FlightClient, topic: str) -> None:
    assert client.write(topic, table(), create=True) == []
    assert column(client, topic) == []


def committed(client: FlightClient, topic: str) -> object:
    return client.action("committed", group="g", topic=topic)["partitions"]


def test_groups(client: FlightClient, topic: str) -> None:
    client.write(topic, table(b"a", b"b"), create=True)
    assert client.offsets(topic) == [(0, 2)]
    assert committed(client, topic) == [{"partition": 0, "offset": None}]
    client.commit("g", topic, {0: 2})
    assert committed(client, topic) == [{"partition": 0, "offset": 2}]
    client.commit("g", topic, {})


def test_trimmed_records_are_out_of_range(running: LiveServer, topic: str) -> None:
    make(running, topic)
    with connect_to(running) as client:
        client.write(topic, table(b"a", b"b", b"c"))
        running.call(lambda: embedded(running.server.engine).catalogue.partition(topic, 0).trim(2))
        assert column(client, topic) == [b"c"]
        with pytest.raises(Refused, match="requested 0, earliest 2, latest 3") as caught:
            column(client, topic, start=0)
        assert caught.value.code == Code.OFFSET_OUT_OF_RANGE.number


def test_a_topic_made_anew_is_another_topic(running: LiveServer, topic: str) -> None:
    with connect_to(running) as client:
        for value in (b"old", b"new"):
            client.write(topic, table(value, value), create=True)
            assert column(client, topic) == [value, value]
            if value == b"old":
                running.delete_topic(topic)
                with pytest.raises(NotFound):
                    client.read(topic)


def test_a_ticket_may_name_the_one_topic_that_it_means(running: LiveServer, topic: str) -> None:
    with connect_to(running) as client:
        client.write(topic, table(b"v", b"w"), create=True)
        old = client.describe(topic).created_us
        read = partial(client.stream, topic, 0, 0, 2, ["value"])
        (batch,) = read(created_us=old)
        assert batch.column("value").to_pylist() == [b"v", b"w"]
        running.delete_topic(topic)
        client.write(topic, table(b"x", b"y"), create=True)
        with pytest.raises(NotFound, match="was deleted and made anew"):
            list(read(created_us=old))
        (batch,) = read()
        assert batch.column("value").to_pylist() == [b"x", b"y"]


def test_compressed_topics(running: LiveServer, topic: str) -> None:
    make(running, topic, compression="zstd")
    with connect_to(running) as client:
        client.write(topic, table(*[b"abc" * 100] * 50))
        assert column(client, topic) == [b"abc" * 100] * 50


# --- the calls as any Flight client makes them -------------------------------------------------------


def test_flights_and_infos(running: LiveServer, client: FlightClient, topic: str) -> None:
    make(running, topic, 2)
    client.write(topic, table(b"a", b"b", partition=[0, 0]))
    plain, options = raw(running)
    with plain:
        listed = {
            info.descriptor.path[0].decode(): info for info in plain.list_flights(b"", options)
        }
        assert topic in listed
        only = list(plain.list_flights(f"{topic}*".encode(), options))
        assert [info.descriptor.path for info in only] == [[topic.encode()]]
        info = plain.get_flight_info(flight.FlightDescriptor.for_path(topic), options)
        assert info.schema == SCHEMA
        assert info.total_records == 2 and info.total_bytes > 0
        tickets = [json.loads(endpoint.ticket.ticket) for endpoint in info.endpoints]
        assert tickets == [
            {"topic": topic, "start": 0, "end": 2},
            {"topic": topic, "partition": 1, "start": 0, "end": 0},
        ]
        assert [endpoint.locations for endpoint in info.endpoints] == [[], []]
        schema = plain.get_schema(flight.FlightDescriptor.for_path(topic), options)
        assert schema.schema == SCHEMA
        rows = plain.do_get(info.endpoints[0].ticket, options).read_all()
        assert rows.column("value").to_pylist() == [b"a", b"b"]
        names = {action.type for action in plain.list_actions(options)}
        assert names >= {"topics", "offsets", "offsets_by_time", "commit_group", "committed"}


def test_schemas_of_the_registry(running: LiveServer, client: FlightClient, topic: str) -> None:
    make(running, topic)
    registry = running.server.broker.schemas.registry
    proto = b'syntax = "proto3"; message M { string a = 1; }'
    for number in (1, 2):
        registry.register(topic, "json", b'{"maxProperties": %d}' % number)
    registry.register(f"{topic}-p", "protobuf", proto)
    latest, first = client.schema(topic), client.schema(topic, 1)
    assert (latest.version, latest.kind, latest.definition) == (2, "json", '{"maxProperties": 2}')
    assert (first.version, list(first.versions), first.descriptors) == (1, [1, 2], b"")
    assert b"definition.proto" in client.schema(f"{topic}-p").descriptors
    for name, version in (("nowhere", 0), (topic, 3)):
        with pytest.raises(Refused, match=name):
            client.schema(name, version)
    assert client.describe(topic).schema == ""
    running.settle(lambda: running.server.engine.change_topic(topic, {"schema": topic}))
    assert (client.describe(topic).schema, client.describe(topic).schema_version) == (topic, 0)


def test_offsets_of_some_partitions(running: LiveServer, client: FlightClient, topic: str) -> None:
    make(running, topic, 3)
    client.write(topic, table(b"a", b"b", partition=[2, 2]))
    whole = client.action("offsets", topic=topic)
    some = client.action("offsets", topic=topic, partitions=[2, 0])
    assert some == {**whole, "partitions": [whole["partitions"][2], whole["partitions"][0]]}
    assert [one["latest"] for one in some["partitions"]] == [2, 0]


def ticket(**fields: object) -> Callable[[flight.FlightClient, object], object]:
    data = json.dumps(fields).encode()
    return lambda client, options: client.do_get(flight.Ticket(data), options).read_all()


def action(name: str, body: bytes) -> Callable[[flight.FlightClient, object], object]:
    return lambda client, options: list(client.do_action(flight.Action(name, body), options))


def descriptor(*path: bytes) -> Callable[[flight.FlightClient, object], object]:
    return lambda client, options: client.get_flight_info(
        flight.FlightDescriptor.for_path(*path), options
    )


def command(data: bytes) -> Callable[[flight.FlightClient, object], object]:
    return lambda client, options: client.get_flight_info(
        flight.FlightDescriptor.for_command(data), options
    )


def put(data: bytes, rows: pa.Table) -> Callable[[flight.FlightClient, object], object]:
    def run(client: flight.FlightClient, options: object) -> None:
        chosen = flight.FlightDescriptor.for_command(data)
        writer, answers = client.do_put(chosen, rows.schema, options)
        writer.write_table(rows)
        writer.done_writing()
        while answers.read() is not None:
            continue
        writer.close()

    return run


INVALID = pa.ArrowInvalid
MISSING = pa.ArrowKeyError


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (ticket(topic="nowhere"), MISSING, "1 UNKNOWN_TOPIC: no topic named 'nowhere'"),
        (ticket(topic="two", partition=2), MISSING, "2 UNKNOWN_PARTITION: topic 'two' has no part"),
        (ticket(topic="two", start=4), INVALID, "6 OFFSET_OUT_OF_RANGE: offset out of range: reque"),
        (ticket(topic="two", start=1, end=0), INVALID, "19 INVALID_REQUEST: end 0 is below start 1"),
        (ticket(topic="two", start=-1), INVALID, "19 INVALID_REQUEST: ticket: Expected `int` >= 0"),
        (ticket(topic="two", limit=1), INVALID, "19 INVALID_REQUEST: ticket: Object contains unknow"),
        (ticket(topic="two", columns=["no"]), INVALID, "19 INVALID_REQUEST: columns: no column 'no'"),
        (ticket(topic="two", columns=[]), INVALID, "19 INVALID_REQUEST: columns: name at least one"),
        (ticket(partition=0), INVALID, "19 INVALID_REQUEST: ticket: Object missing required field"),
        (lambda c, o: c.do_get(flight.Ticket(b"\xff{"), o), INVALID, "19 INVALID_REQUEST: ticket is"),
        (descriptor(b"nowhere"), MISSING, "1 UNKNOWN_TOPIC: no topic named 'nowhere'"),
        (descriptor(b"a", b"b"), INVALID, "19 INVALID_REQUEST: a path is one topic name, not 2"),
        (command(b'{"topic":"two","x":1}'), INVALID, "19 INVALID_REQUEST: command: Object contains u"),
        (action("jump", b""), INVALID, "19 INVALID_REQUEST: no action 'jump'; there are topics"),
        (action("offsets", b""), INVALID, "19 INVALID_REQUEST: body of offsets: Object missing"),
        (action("offsets", b'{"topic":"two","partitions":[1,1]}'), INVALID,
         "19 INVALID_REQUEST: partitions: name each only once"),
        (action("offsets", b'{"topic":"two","partitions":[0,2]}'), MISSING,
         "2 UNKNOWN_PARTITION: topic 'two' has no partition 2"),
        (action("topics", b'{"a":1}'), INVALID, "19 INVALID_REQUEST: body of topics: Object contai"),
        (action("offsets_by_time", b'{"topic":"two","time_us":0,"partitions":[5]}'), MISSING,
         "2 UNKNOWN_PARTITION"),
        (action("commit_group", b'{"group":"g","offsets":[{"topic":"two","partition":9,"offset":1}]}'),
         MISSING, "2 UNKNOWN_PARTITION: topic 'two' has no partition 9"),
        (put(b'{"topic":"nowhere"}', table(b"a")), MISSING, "1 UNKNOWN_TOPIC"),
        (put(b'{"topic":"two","partition":2}', table(b"a")), MISSING, "2 UNKNOWN_PARTITION"),
        (put(b'{"topic":"two"}', table(b"a", partition=[7])), MISSING, "2 UNKNOWN_PARTITION"),
        (put(b'{"topic":"two"}', table(b"a", partition=["x"])), INVALID, "19 INVALID_REQUEST: column"),
        (put(b'{"topic":"two"}', table(b"a", other=[1])), INVALID, "19 INVALID_REQUEST: column 'other"),
        (put(b'{"topic":"two"}', pa.table({"key": [b"a"]})), INVALID, "19 INVALID_REQUEST: column val"),
        (put(b'{"topic":"two"}', pa.table({"value": [1]})), INVALID, "19 INVALID_REQUEST: not a batch"),
        (put(b"{}", table(b"a")), INVALID, "19 INVALID_REQUEST: name the topic"),
        (put(b"{}", table(b"a", topic=[None])), INVALID, "19 INVALID_REQUEST: column topic: every"),
        (put(b'{"topic":"two","producer":{"id":1,"epoch":0,"sequence":0}}', table(b"a")), INVALID,
         "19 INVALID_REQUEST: a producer writes to one partition"),
        (put(b'{"topic":"bad\\u0000name","create":true}', table(b"a")), INVALID, "4 INVALID_TOPIC"),
        (put(b'{"topic":"small"}', table(bytes(2_000))), INVALID, "7 RECORD_TOO_LARGE"),
    ],
)  # fmt: skip
def test_refusals(
    running: LiveServer,
    call: Callable[[flight.FlightClient, object], object],
    kind: type[Exception],
    text: str,
) -> None:
    if running.server.engine.topic("two") is None:
        make(running, "two", 2)
        make(running, "small", record_bytes=1_000)
    plain, options = raw(running)
    with plain, pytest.raises(kind) as caught:
        call(plain, options)
    assert str(caught.value).startswith(text)
    assert "Traceback" not in str(caught.value) and ".py" not in str(caught.value)


@pytest.mark.parametrize("header", [b"Bearer wrong", b"Basic abc", b"Bearer "])
def test_a_wrong_key(running: LiveServer, header: bytes) -> None:
    plain, _ = raw(running)
    options = flight.FlightCallOptions(headers=[(b"authorization", header)])
    with plain, pytest.raises(flight.FlightUnauthenticatedError, match=r"^8 NOT_AUTHENTICATED: "):
        list(plain.list_flights(b"", options))


def test_two_clients_at_once(running: LiveServer, topic: str) -> None:
    make(running, topic)
    failures: list[BaseException] = []

    def write(mark: bytes) -> None:
        try:
            with connect_to(running) as client:
                for number in range(10):
                    client.write(topic, table(*[mark + b"%d" % number] * 100))
                    seen = column(client, topic)
                    mine = [
                        value for value in seen if isinstance(value, bytes) and value[:1] == mark
                    ]
                    assert len(mine) == 100 * (number + 1)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(mark,)) for mark in (b"a", b"b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert failures == []
    with connect_to(running) as client:
        assert client.offsets(topic) == [(0, 2000)]
