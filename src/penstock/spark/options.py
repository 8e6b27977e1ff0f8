"""The options of `format("penstock")`: names, checks, defaults. Named as those of Spark's Kafka source.

Pure: asks no server. What files and the environment hold is read when a connection is made, on the
driver; see connection.py. Spark ignores the case of option names, and so does this.
"""

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from typing import Any, Final, TypeVar

from penstock.errors import PenstockError
from penstock.names import MAX_NAME_BYTES

# Kafka's source uses these two numbers.
EARLIEST: Final = -2
LATEST: Final = -1

DEFAULT_GROUP_PREFIX: Final = "spark-penstock-source"
# A restart of the broker takes a few seconds: a query should survive it.
DEFAULT_RETRIES: Final = 20
DEFAULT_RETRY_INTERVAL_MS: Final = 500
DEFAULT_TRIGGER_DELAY_MS: Final = 15 * 60 * 1000
# Longer than any sane batch. What is staged takes up disk until then if a job dies for good.
DEFAULT_TRANSACTION_TIMEOUT_MS: Final = 3600 * 1000
# What the broker takes.
MAX_TRANSACTION_TIMEOUT_MS: Final = 7 * 24 * 3600 * 1000
MAX_OFFSET: Final = (1 << 63) - 1
MAX_PORT: Final = 65_535

# accessKey, not key: Spark shows options in plans and event logs, except those whose name looks like a
# secret to it (spark.redaction.regex).
_COMMON: Final = (
    "server", "accessKey", "keyFile", "keyEnv", "tls", "tlsCaFile", "tlsCertificateFile",
    "tlsKeyFile", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "spread",
)  # fmt: skip
_BATCH_READ: Final = (
    "endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets",
)  # fmt: skip
_STREAM_READ: Final = (
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "groupIdPrefix", "groupId",
    "failOnNewSchema",
)  # fmt: skip
_READ: Final = (
    "subscribe", "subscribePattern", "assign", "startingTimestamp", "startingOffsetsByTimestamp",
    "startingOffsets", "startingOffsetsByTimestampStrategy", "failOnDataLoss", "minPartitions",
    "maxRecordsPerPartition", "includeHeaders", "includeProtocol", "schema", "schemaName", "schemaVersion",
    "includeRaw",
)  # fmt: skip
_WRITE: Final = ("topic", "createTopics", "transactionTimeout")
_BATCH_WRITE: Final = ("transaction",)
# Spark's own, which it hands on to every source and sink; with CREATE TABLE ... USING penstock the
# properties of the table too.
_OF_SPARK: Final = frozenset(
    {"checkpointlocation", "queryname"}
    | {"provider", "owner", "comment", "collation", "location", "external", "is_managed_location"}
    | {"table_type", "serialization.format"}
)
# The options of a table of SQL once more, among its properties.
_OF_A_TABLE: Final = "option."
# Options of Spark's Kafka source that have another name here, and how their names begin.
_OF_KAFKA: Final = {
    "kafka.bootstrap.servers": "is called server here: host:port of the Flight listener",
    "kafka.group.id": "is called groupId here; it only shows progress",
    "kafka.security.protocol": "is not needed: give accessKey, keyFile or keyEnv, and tls",
    "kafka.sasl.": "is not needed: give accessKey, keyFile or keyEnv",
    "kafka.ssl.truststore": "is called tlsCaFile here, a file in PEM",
    "kafka.ssl.": "is not there: give tlsCaFile, tlsCertificateFile and tlsKeyFile, in PEM",
    "kafka.transactional.id": "is not needed: every write is a transaction; see transaction",
    "kafka.": "is an option of Kafka's client, which is not used here: leave it away",
    "kafkaconsumer.": "is an option of Kafka's client, which is not used here: leave it away",
}
_KINDS: Final = {
    "read": _READ,
    "batch reads": _BATCH_READ,
    "streaming reads": _STREAM_READ,
    "write": _WRITE,
    "batch writes": _BATCH_WRITE,
}
ALL_OPTIONS: Final = tuple(
    dict.fromkeys((*_COMMON, *(name for kind in _KINDS.values() for name in kind)))
)
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}

T = TypeVar("T")


class OptionError(PenstockError, ValueError):
    """An option that is wrong, and why."""

    option: str
    problem: str

    line = "option {option}: {problem}"


# --- values --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How to reach the server, or one of several. The key is in no text of this. `spread`: whether tasks
    use others that the server names."""

    server: str
    key: str | None = field(default=None, repr=False)
    key_file: str | None = None
    key_env: str | None = None
    tls: bool = False
    tls_ca_file: str | None = None
    tls_certificate_file: str | None = None
    tls_key_file: str | None = None
    retries: int = DEFAULT_RETRIES
    retry_interval_ms: int = DEFAULT_RETRY_INTERVAL_MS
    others: tuple[str, ...] = ()
    spread: bool = True


@dataclass(frozen=True, slots=True)
class Selection:
    """The topics to read: exactly one field is set. `assigned` has partitions by topic."""

    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    assigned: tuple[tuple[str, tuple[int, ...]], ...] | None = None

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"subscribePattern {self.pattern}"
        if self.topics is not None:
            return f"subscribe {','.join(self.topics)}"
        return f"assign {json.dumps(dict(self.assigned or ()))}"


@dataclass(frozen=True, slots=True)
class TypedOptions:
    """Values are decoded by a schema of the registry. Without a name: by that of the topics."""

    name: str | None = None
    version: int = 0
    # Whether _raw has the values that fit, too.
    raw: bool = False
    # Whether a stream ends before the first record that a newer version may have written.
    fail_on_new: bool = False


ByPartition = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class Position:
    """Where reading begins or ends, as `option` says it: one of the four is set.

    `offset` is EARLIEST or LATEST; `offsets` may hold these too. Times are in milliseconds.
    """

    option: str
    offset: int | None = None
    offsets: ByPartition | None = None
    time_ms: int | None = None
    times_ms: ByPartition | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    connection: ConnectionOptions
    selection: Selection
    starting: Position
    ending: Position
    latest_when_no_such_time: bool = False
    fail_on_data_loss: bool = True
    # Columns beside those that Kafka's source always has: headers, protocol.
    extras: tuple[str, ...] = ()
    typed: TypedOptions | None = None
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = DEFAULT_TRIGGER_DELAY_MS
    group_prefix: str = DEFAULT_GROUP_PREFIX
    group: str | None = None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a write. If `topic` is None every row names one. If `transaction` is None a batch write
    makes up a name."""

    connection: ConnectionOptions
    topic: str | None = None
    create_topics: bool = False
    transaction: str | None = None
    transaction_timeout_ms: int = DEFAULT_TRANSACTION_TIMEOUT_MS


# --- from Spark's options ------------------------------------------------------------------------


def read_options(given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Raises OptionError."""
    wrong = "batch reads" if streaming else "streaming reads"
    options = _Given(given, reading=True, without=wrong)
    low, high = options.count("minOffsetsPerTrigger"), options.count("maxOffsetsPerTrigger")
    if low is not None and high is not None and low > high:
        raise OptionError("minOffsetsPerTrigger", f"{low} is more than maxOffsetsPerTrigger {high}")
    if options.has("maxTriggerDelay") and low is None:
        raise OptionError("maxTriggerDelay", "does nothing without minOffsetsPerTrigger")
    if options.has("groupId") and options.has("groupIdPrefix"):
        raise OptionError("groupId", "cannot stand together with groupIdPrefix")
    found = ReadOptions(
        connection=_connection(options),
        selection=_selection(options),
        starting=_position(options, "starting", LATEST if streaming else EARLIEST),
        ending=_position(options, "ending", LATEST),
        latest_when_no_such_time=_strategy(options),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        extras=_extras(options),
        typed=_typed(options),
        min_partitions=options.count("minPartitions"),
        max_records_per_partition=options.count("maxRecordsPerPartition"),
        max_offsets_per_trigger=high,
        min_offsets_per_trigger=low,
        max_trigger_delay_ms=options.duration_ms("maxTriggerDelay", DEFAULT_TRIGGER_DELAY_MS),
        group_prefix=options.name("groupIdPrefix") or DEFAULT_GROUP_PREFIX,
        group=options.name("groupId"),
    )
    if not streaming and found.starting.offset == LATEST:
        raise OptionError("startingOffsets", "latest gives nothing in a batch read")
    _check_order(found)
    return found


@dataclass(frozen=True, slots=True)
class ColumnOptions:
    """What the columns depend on. Where they come from a schema, also who has it."""

    extras: tuple[str, ...]
    typed: TypedOptions | None = None
    connection: ConnectionOptions | None = None
    selection: Selection | None = None


def column_options(given: Mapping[str, str]) -> ColumnOptions:
    """The names of all options are checked on the way. Raises OptionError."""
    options = _Given(given, reading=True)
    extras, typed = _extras(options), _typed(options)
    if typed is None:
        return ColumnOptions(extras)
    return ColumnOptions(extras, typed, _connection(options), _selection(options))


def _extras(options: "_Given") -> tuple[str, ...]:
    wanted = ("includeHeaders", "headers"), ("includeProtocol", "protocol")
    return tuple(column for option, column in wanted if options.flag(option, False))


def write_options(given: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Raises OptionError."""
    options = _Given(given, reading=False, without="batch writes" if streaming else None)
    timeout_ms = options.duration_ms("transactionTimeout", DEFAULT_TRANSACTION_TIMEOUT_MS)
    if timeout_ms > MAX_TRANSACTION_TIMEOUT_MS:
        days = MAX_TRANSACTION_TIMEOUT_MS // _UNITS_MS["d"]
        raise OptionError("transactionTimeout", f"is longer than {days}d, the most there is")
    return WriteOptions(
        connection=_connection(options),
        topic=options.name("topic"),
        create_topics=options.flag("createTopics", False),
        transaction=options.name("transaction"),
        transaction_timeout_ms=timeout_ms,
    )


class _Given:
    """Option texts by name; the name of an error is always the documented one."""

    def __init__(
        self, given: Mapping[str, str], *, reading: bool, without: str | None = None
    ) -> None:
        self._texts = {
            name.lower(): str(text)
            for name, text in given.items()
            if not name.lower().startswith(_OF_A_TABLE)
        }
        for name in self._texts:
            _check_name(name, reading=reading, without=without)

    def has(self, name: str) -> bool:
        return name.lower() in self._texts

    def text(self, name: str) -> str | None:
        text = self._texts.get(name.lower())
        if text is not None and not text.strip():
            raise OptionError(name, "is empty")
        return text

    def name(self, option: str) -> str | None:
        text = self.text(option)
        if text is not None and len(text.encode()) > MAX_NAME_BYTES:
            raise OptionError(option, f"is longer than {MAX_NAME_BYTES} bytes")
        return text

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise OptionError(name, f"{text!r} is neither true nor false")
        return text.lower() == "true"

    def count(self, name: str) -> int | None:
        return self._number(name, least=1)

    def number(self, name: str, default: int) -> int:
        found = self._number(name, least=0)
        return default if found is None else found

    def _number(self, name: str, least: int) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        number = int(text) if re.fullmatch(r"[0-9]{1,19}", text.strip()) else -1
        if not least <= number <= MAX_OFFSET:
            raise OptionError(name, f"{text!r} is no whole number from {least} on")
        return number

    def duration_ms(self, name: str, default: int) -> int:
        text = self.text(name)
        if text is None:
            return default
        found = re.fullmatch(r"([0-9]{1,12})\s*([a-z]*)", text.strip().lower())
        unit = _UNITS_MS.get(found[2] or "ms") if found else None
        if found is None or unit is None or int(found[1]) < 1:
            units = ", ".join(_UNITS_MS)
            raise OptionError(name, f"{text!r} is no time such as 15m; units are {units}")
        return int(found[1]) * unit

    def by_topic(self, name: str, inner: Callable[[str, Any], T]) -> dict[str, T] | None:
        """JSON, an object by topic. `inner` checks what stands at one topic."""
        text = self.text(name)
        if text is None:
            return None
        try:
            found = json.loads(text)
        except ValueError as error:
            raise OptionError(name, f"is no JSON: {error}") from None
        if not isinstance(found, dict) or not found:
            raise OptionError(name, "must be a JSON object with topics")
        return {topic: inner(name, value) for topic, value in sorted(found.items())}


def _check_name(name: str, *, reading: bool, without: str | None) -> None:
    if name in _OF_SPARK:
        return
    if name == "key":
        raise OptionError(name, "is called accessKey: a name that Spark hides")
    usable: tuple[str, ...] = _COMMON
    for kind, names in _KINDS.items():
        if ("read" in kind) == reading and kind != without:
            usable += names
    if name in {one.lower() for one in usable}:
        return
    known = {one.lower(): one for one in ALL_OPTIONS}
    shown = known.get(name, name)
    for kind, names in _KINDS.items():
        if shown in names:
            only = {"read": "reads", "write": "writes"}.get(kind, kind)
            raise OptionError(shown, f"is for {only} only")
    for start, problem in _OF_KAFKA.items():
        if name.startswith(start):
            raise OptionError(name, problem)
    near = difflib.get_close_matches(name, [one.lower() for one in usable], 1)
    # All that Spark hands over is in lower case, whatever was written.
    hint = f"; did you mean {known[near[0]]}?" if near else "; Spark shows it in lower case"
    raise OptionError(shown, f"is unknown{hint}")


def _connection(options: _Given) -> ConnectionOptions:
    given = options.text("server")
    if given is None:
        raise OptionError("server", "is missing: the Flight address, host:port")
    server, *others = (one.strip() for one in given.split(","))
    for one in (server, *others):
        _check_address(one)
    keys = [name for name in ("accessKey", "keyFile", "keyEnv") if options.has(name)]
    if len(keys) > 1:
        raise OptionError(keys[1], f"cannot stand together with {keys[0]}")
    certificate, private = options.text("tlsCertificateFile"), options.text("tlsKeyFile")
    if (certificate is None) != (private is None):
        missing = "tlsCertificateFile" if certificate is None else "tlsKeyFile"
        raise OptionError(missing, "is missing: certificate and key go together")
    files = [name for name in ("tlsCaFile", "tlsCertificateFile") if options.has(name)]
    if files and not options.flag("tls", True):
        raise OptionError("tls", f"false contradicts {files[0]}")
    return ConnectionOptions(
        server=server,
        key=options.text("accessKey"),
        key_file=options.text("keyFile"),
        key_env=options.text("keyEnv"),
        tls=options.flag("tls", bool(files)),
        tls_ca_file=options.text("tlsCaFile"),
        tls_certificate_file=certificate,
        tls_key_file=private,
        retries=options.number("fetchOffset.numRetries", DEFAULT_RETRIES),
        retry_interval_ms=options.number(
            "fetchOffset.retryIntervalMs", DEFAULT_RETRY_INTERVAL_MS
        ),
        others=tuple(others),
        spread=options.flag("spread", True),
    )  # fmt: skip


def _check_address(server: str) -> None:
    """A name or an address, and perhaps a port. Nothing is looked up."""
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|[\w.-]+)(?::([0-9]{1,5}))?", server, re.ASCII)
    if found is None or (found[1] is not None and not _is_ipv6(found[1])):
        hint = "; an IPv6 address goes in brackets" if _is_ipv6(server) else ""
        raise OptionError("server", f"{server!r} is no address host:port{hint}")
    if found[2] is not None and not 1 <= int(found[2]) <= MAX_PORT:
        raise OptionError("server", f"{server!r} has no port from 1 to {MAX_PORT}")


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True


def _selection(options: _Given) -> Selection:
    names = [name for name in ("subscribe", "subscribePattern", "assign") if options.has(name)]
    if not names:
        raise OptionError("subscribe", "is missing: give subscribe, subscribePattern or assign")
    if len(names) > 1:
        raise OptionError(names[1], f"cannot stand together with {names[0]}")
    if names == ["subscribe"]:
        topics = [topic.strip() for topic in (options.text("subscribe") or "").split(",")]
        if not all(topics):
            raise OptionError("subscribe", "has an empty name; topics are separated by commas")
        return Selection(topics=tuple(sorted(set(topics))))
    if names == ["subscribePattern"]:
        pattern = options.text("subscribePattern") or ""
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionError("subscribePattern", f"is no regular expression: {error}") from None
        return Selection(pattern=pattern)
    assigned = options.by_topic("assign", _partition_list) or {}
    return Selection(assigned=tuple(assigned.items()))


def _typed(options: _Given) -> TypedOptions | None:
    text = options.text("schema")
    if text is None:
        for name in ("schemaName", "schemaVersion", "includeRaw", "failOnNewSchema"):
            if options.has(name):
                raise OptionError(name, "does nothing without schema registry")
        return None
    if text.strip().lower() != "registry":
        raise OptionError("schema", f"{text!r} is unknown: registry is all there is")
    version = options.count("schemaVersion") or 0
    fail_on_new = options.flag("failOnNewSchema", False)
    if fail_on_new and version:
        raise OptionError("failOnNewSchema", "does nothing with schemaVersion")
    raw = options.flag("includeRaw", False)
    return TypedOptions(options.name("schemaName"), version, raw, fail_on_new)


def _partition_list(option: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(_is_number(one, 0) for one in value):
        raise OptionError(option, 'must look like {"topic":[0,1]}')
    return tuple(sorted(set(value)))


def _is_number(value: Any, least: int) -> bool:
    return type(value) is int and least <= value <= MAX_OFFSET


def _numbers(least: int) -> Callable[[str, Any], dict[int, int]]:
    def check(option: str, value: Any) -> dict[int, int]:
        if not isinstance(value, dict) or not value:
            raise OptionError(option, 'must look like {"topic":{"0":23}}')
        for partition, number in value.items():
            if not re.fullmatch(r"[0-9]{1,9}", partition):
                raise OptionError(option, f"{partition!r} is no partition")
            if not _is_number(number, least):
                raise OptionError(option, f"partition {partition}: {number!r} is out of range")
        return {int(partition): value[partition] for partition in sorted(value, key=int)}

    return check


def _position(options: _Given, which: str, default: int) -> Position:
    """The precedence of Kafka's source: timestamp, timestamps by partition, offsets."""
    name = f"{which}Timestamp"
    if options.has(name):
        return Position(name, time_ms=options.number(name, 0))
    name = f"{which}OffsetsByTimestamp"
    times = options.by_topic(name, _numbers(0))
    if times is not None:
        return Position(name, times_ms=times)
    name = f"{which}Offsets"
    text = options.text(name)
    word = (text or "").strip().lower()
    if text is None:
        return Position(name, offset=default)
    if word == "latest":
        return Position(name, offset=LATEST)
    if word == "earliest" and which == "starting":
        return Position(name, offset=EARLIEST)
    if not word.startswith("{"):
        words = "earliest, latest" if which == "starting" else "latest"
        raise OptionError(name, f"{text!r} is none of {words} or JSON with offsets")
    return Position(
        name, offsets=options.by_topic(name, _numbers(EARLIEST if which == "starting" else LATEST))
    )


def _strategy(options: _Given) -> bool:
    name = "startingOffsetsByTimestampStrategy"
    text = (options.text(name) or "error").strip().lower()
    if text not in ("error", "latest"):
        raise OptionError(name, f"{text!r} is neither error nor latest")
    return text == "latest"


def _check_order(found: ReadOptions) -> None:
    """Ends before their beginnings, as far as that can be seen without the server."""
    start, end = found.starting, found.ending
    if start.time_ms is not None and end.time_ms is not None and end.time_ms < start.time_ms:
        raise OptionError(end.option, f"{end.time_ms} is before {start.option} {start.time_ms}")
    for topic, offsets in (end.offsets or {}).items():
        for partition, last in offsets.items():
            first = (start.offsets or {}).get(topic, {}).get(partition, EARLIEST)
            if 0 <= last < first:
                place = f"partition {partition} of {topic!r}"
                raise OptionError(end.option, f"{last} is before {start.option} {first}, {place}")
