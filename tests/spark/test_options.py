"""Every option, right and wrong. No Spark and no server."""

import pickle
from pathlib import Path

import pytest

from penstock.spark.connection import resolve
from penstock.spark.options import (
    EARLIEST,
    LATEST,
    ConnectionOptions,
    OptionError,
    Position,
    Selection,
    column_options,
    read_options,
    write_options,
)
from penstock.spark.source import SCHEMA
from penstock.spark.sql_tables import options_of, with_options

BASE = {"server": "host:8815", "subscribe": "orders"}


def without(*names: str, **more: str) -> dict[str, str]:
    return {**{key: value for key, value in BASE.items() if key not in names}, **more}


def test_defaults_of_a_batch_read() -> None:
    found = read_options(BASE, streaming=False)
    assert found.selection == Selection(topics=("orders",))
    assert found.starting == Position("startingOffsets", offset=EARLIEST)
    assert found.ending == Position("endingOffsets", offset=LATEST)
    assert found.fail_on_data_loss and not found.extras
    assert found.max_trigger_delay_ms == 15 * 60 * 1000


def test_defaults_of_a_stream() -> None:
    found = read_options(BASE, streaming=True)
    assert found.starting == Position("startingOffsets", offset=LATEST)
    assert found.group is None and found.group_prefix == "spark-penstock-source"


def test_names_ignore_case_and_sparks_own_are_left_alone() -> None:
    given = {"SERVER": "h:1", "subscribe": "b, a,b", "INCLUDEHEADERS": "TRUE"}
    found = read_options({**given, "checkpointLocation": "/x"}, streaming=True)
    assert found.selection.topics == ("a", "b")
    assert found.extras == column_options(given).extras == ("headers",)


@pytest.mark.parametrize(
    "server", ["host", "host:1", "a-b.c_d:65535", "127.0.0.1:8815", "[::1]", "[fe80::1]:8815"]
)
def test_addresses(server: str) -> None:
    assert read_options(without(server=server), streaming=False).connection.server == server


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"startingOffsets": "latest"}, Position("startingOffsets", offset=LATEST)),
        ({"startingOffsets": "EARLIEST"}, Position("startingOffsets", offset=EARLIEST)),
        (
            {"startingOffsets": '{"orders":{"1":-1,"0":-2,"10":7}}'},
            Position("startingOffsets", offsets={"orders": {0: -2, 1: -1, 10: 7}}),
        ),
        (
            {"startingOffsets": "latest", "startingOffsetsByTimestamp": '{"orders":{"0":5}}'},
            Position("startingOffsetsByTimestamp", times_ms={"orders": {0: 5}}),
        ),
        (
            {
                "startingOffsets": "latest",
                "startingOffsetsByTimestamp": '{"orders":{"0":5}}',
                "startingTimestamp": "9",
            },
            Position("startingTimestamp", time_ms=9),
        ),
    ],
)
def test_where_reading_starts(given: dict[str, str], expected: Position) -> None:
    assert read_options({**BASE, **given}, streaming=True).starting == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"endingOffsets": '{"orders":{"0":-1}}'}, {"offsets": {"orders": {0: -1}}}),
        ({"endingTimestamp": "3", "endingOffsets": "latest"}, {"time_ms": 3}),
        ({"endingOffsetsByTimestamp": '{"orders":{"2":8}}'}, {"times_ms": {"orders": {2: 8}}}),
    ],
)
def test_where_reading_ends(given: dict[str, str], expected: dict[str, object]) -> None:
    found = read_options({**BASE, **given}, streaming=False).ending
    assert found == Position(next(iter(given)), **expected)  # type: ignore[arg-type]  # its fields


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90", 90), ("90ms", 90), ("3 s", 3000), ("2m", 120_000), ("1h", 3_600_000)],
)
def test_times(text: str, expected: int) -> None:
    given = {**BASE, "minOffsetsPerTrigger": "1", "maxTriggerDelay": text}
    assert read_options(given, streaming=True).max_trigger_delay_ms == expected


@pytest.mark.parametrize(
    ("given", "option", "problem"),
    [
        (without("server"), "server", "is missing"),
        (without(server="grpc://h:1"), "server", "no address"),
        (without(server=" "), "server", "is empty"),
        (without(server="127.0.0.1:"), "server", "no address host:port"),
        (without(server="127.0.0.1:abc"), "server", "no address host:port"),
        (without(server="127.0.0.1:99999"), "server", "no port from 1 to 65535"),
        (without(server="127.0.0.1:0"), "server", "no port from 1 to 65535"),
        (without(server="[::1]:65536"), "server", "no port from 1 to 65535"),
        (without(server=":8815"), "server", "no address host:port"),
        (without(server="a:1,,b:1"), "server", "no address host:port"),
        (without(server="h<:8815"), "server", "no address host:port"),
        (without(server="[::g]:8815"), "server", "no address host:port"),
        (without(server="[fe80::1%eth0]"), "server", "no address host:port"),
        (without(server="::1"), "server", "an IPv6 address goes in brackets"),
        (without(server="fe80::1:8815"), "server", "an IPv6 address goes in brackets"),
        (without("subscribe"), "subscribe", "is missing"),
        (without(assign="{}"), "assign", "cannot stand together with subscribe"),
        (without(subscribePattern="a"), "subscribePattern", "cannot stand together with subscribe"),
        (without(subscribe="a,,b"), "subscribe", "empty name"),
        (without("subscribe", subscribePattern="("), "subscribePattern", "no regular expression"),
        (without("subscribe", assign="[1]"), "assign", "JSON object"),
        (without("subscribe", assign="{"), "assign", "is no JSON"),
        (without("subscribe", assign='{"a":[]}'), "assign", "must look like"),
        (without("subscribe", assign='{"a":[-1]}'), "assign", "must look like"),
        (without("subscribe", assign='{"a":[true]}'), "assign", "must look like"),
        (without(startingOffset="earliest"), "startingoffset", "did you mean startingOffsets"),
        (without(nonsense="1"), "nonsense", "is unknown; Spark shows it in lower case"),
        (without(topic="x"), "topic", "is for writes only"),
        (without(startingOffsets="first"), "startingOffsets", "none of earliest, latest"),
        (without(startingOffsets='{"orders":{"0":-3}}'), "startingOffsets", "out of range"),
        (without(startingOffsets='{"orders":{"0":"1"}}'), "startingOffsets", "out of range"),
        (without(startingOffsets='{"orders":{"x":1}}'), "startingOffsets", "no partition"),
        (without(startingOffsets='{"orders":{}}'), "startingOffsets", "must look like"),
        (without(startingTimestamp="-1"), "startingTimestamp", "no whole number"),
        (without(startingTimestamp="soon"), "startingTimestamp", "no whole number"),
        (
            without(startingOffsetsByTimestampStrategy="guess"),
            "startingOffsetsByTimestampStrategy",
            "neither error nor latest",
        ),
        (without(failOnDataLoss="perhaps"), "failOnDataLoss", "neither true nor false"),
        (without(minPartitions="0"), "minPartitions", "no whole number from 1"),
        (without(maxRecordsPerPartition="1.5"), "maxRecordsPerPartition", "no whole number"),
        (without(key="a"), "key", "is called accessKey"),
        (without(**{"kafka.bootstrap.servers": "a:9092"}), "kafka.bootstrap.servers", "called server"),
        (without(**{"kafka.sasl.jaas.config": "x"}), "kafka.sasl.jaas.config", "accessKey, keyFile"),
        (without(**{"kafka.fetch.max.bytes": "1"}), "kafka.fetch.max.bytes", "leave it away"),
        (without(schema="avro"), "schema", "registry is all there is"),
        (without(schemaName="x"), "schemaName", "without schema registry"),
        (without(schema="registry", schemaVersion="0"), "schemaVersion", "no whole number from 1"),
        (without(accessKey="a", keyFile="b"), "keyFile", "cannot stand together with accessKey"),
        (without(keyEnv="a", keyFile="b"), "keyEnv", "cannot stand together with keyFile"),
        (without(tls="false", tlsCaFile="x"), "tls", "contradicts tlsCaFile"),
        (without(tlsKeyFile="x"), "tlsCertificateFile", "is missing"),
        (without(tlsCertificateFile="x"), "tlsKeyFile", "is missing"),
        ({**BASE, "fetchOffset.numRetries": "x"}, "fetchOffset.numRetries", "no whole number"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("streaming", [False, True])
def test_wrong_in_any_read(
    given: dict[str, str], option: str, problem: str, streaming: bool
) -> None:
    with pytest.raises(OptionError, match=problem) as caught:
        read_options(given, streaming=streaming)
    assert caught.value.option == option


@pytest.mark.parametrize(
    ("given", "option", "problem", "streaming"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets", "batch reads only", True),
        ({"endingTimestamp": "1"}, "endingTimestamp", "batch reads only", True),
        ({"maxOffsetsPerTrigger": "1"}, "maxOffsetsPerTrigger", "streaming reads only", False),
        ({"groupIdPrefix": "x"}, "groupIdPrefix", "streaming reads only", False),
        ({"startingOffsets": "latest"}, "startingOffsets", "gives nothing", False),
        ({"endingOffsets": "earliest"}, "endingOffsets", "none of latest", False),
        ({"endingOffsets": '{"orders":{"0":-2}}'}, "endingOffsets", "out of range", False),
        ({"startingTimestamp": "5", "endingTimestamp": "4"}, "endingTimestamp", "before", False),
        (
            {"startingOffsets": '{"o":{"0":5}}', "endingOffsets": '{"o":{"0":4}}'},
            "endingOffsets",
            "4 is before startingOffsets 5",
            False,
        ),
        ({"maxTriggerDelay": "1m"}, "maxTriggerDelay", "without minOffsetsPerTrigger", True),
        (
            {"minOffsetsPerTrigger": "1", "maxTriggerDelay": "soon"},
            "maxTriggerDelay",
            "no time",
            True,
        ),
        (
            {"minOffsetsPerTrigger": "3", "maxOffsetsPerTrigger": "2"},
            "minOffsetsPerTrigger",
            "more than",
            True,
        ),
        ({"groupId": "a", "groupIdPrefix": "b"}, "groupId", "cannot stand together", True),
        ({"groupId": "a" * 250}, "groupId", "longer than", True),
    ],
)
def test_wrong_in_one_kind_of_read(
    given: dict[str, str], option: str, problem: str, streaming: bool
) -> None:
    with pytest.raises(OptionError, match=problem) as caught:
        read_options({**BASE, **given}, streaming=streaming)
    assert caught.value.option == option


def test_writes() -> None:
    found = write_options({"server": "h", "topic": "t", "createTopics": "true"}, streaming=True)
    assert (found.topic, found.create_topics) == ("t", True)
    given = {"server": "h", "transaction": "n", "transactionTimeout": "5m"}
    found = write_options(given, streaming=False)
    assert (found.transaction, found.transaction_timeout_ms) == ("n", 300_000)
    found = write_options({"server": "h", "transactionTimeout": "7d"}, streaming=True)
    assert found.transaction_timeout_ms == 7 * 24 * 3600 * 1000


@pytest.mark.parametrize(
    ("given", "option", "problem", "streaming"),
    [
        ({}, "server", "is missing", False),
        ({"server": "h", "subscribe": "x"}, "subscribe", "is for reads only", False),
        ({"server": "h", "topics": "x"}, "topics", "did you mean topic", False),
        ({"server": "h", "transaction": "x"}, "transaction", "batch writes only", True),
        ({"server": "h", "transactionTimeout": "x"}, "transactionTimeout", "is no time", True),
        ({"server": "h", "transactionTimeout": "8d"}, "transactionTimeout", "longer than 7d", True),
        ({"server": "h", "transactionTimeout": "604800001"}, "transactionTimeout", "longer", False),
        ({"server": "h", "topic": ""}, "topic", "is empty", True),
    ],
)
def test_wrong_in_a_write(
    given: dict[str, str], option: str, problem: str, streaming: bool
) -> None:
    with pytest.raises(OptionError, match=problem) as caught:
        write_options(given, streaming=streaming)
    assert caught.value.option == option


def test_keys_are_read_and_never_shown(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("file-secret\n")
    for connection, expected in (
        (ConnectionOptions("h", key="plain-secret"), "plain-secret"),
        (ConnectionOptions("h", key_file=str(path)), "file-secret"),
        (ConnectionOptions("h", key_env="NAME"), "env-secret"),
        (ConnectionOptions("h"), None),
    ):
        found = resolve(connection, {"NAME": "env-secret"})
        assert found.key == expected
        assert pickle.loads(pickle.dumps(found)) == found
        assert "secret" not in f"{connection!r} {connection} {found!r} {found}"


@pytest.mark.parametrize(
    ("connection", "option"),
    [
        (ConnectionOptions("h", key_file="/no/such/file"), "keyFile"),
        (ConnectionOptions("h", key_env="NOT_SET"), "keyEnv"),
        (ConnectionOptions("h", key="two\nlines"), "accessKey"),
        (ConnectionOptions("h", tls_ca_file="/no/such/file"), "tlsCaFile"),
    ],
)
def test_what_cannot_be_read(connection: ConnectionOptions, option: str) -> None:
    with pytest.raises(OptionError) as caught:
        resolve(connection, {})
    assert caught.value.option == option
    assert "two" not in str(caught.value)


def test_options_of_a_table() -> None:
    """Spark hands over the properties of a table of SQL when it is made, and nothing when it is read."""
    properties = {"provider": "penstock", "owner": "me", "comment": "c", "option.server": "h"}
    made = with_options(SCHEMA, {**BASE, **properties})
    assert made.fields[1:] == SCHEMA.fields[1:]
    assert dict(options_of(made, {})) == {name.lower(): text for name, text in BASE.items()}
    assert dict(options_of(made, {"server": "i"}))["server"] == "i"
    assert column_options({**BASE, **properties}).extras == ()
    assert with_options(SCHEMA, BASE) is SCHEMA and options_of(SCHEMA, BASE) is BASE
    with pytest.raises(OptionError, match="would be readable in the table"):
        with_options(SCHEMA, {**properties, "accessKey": "k"})
