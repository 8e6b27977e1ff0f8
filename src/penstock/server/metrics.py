"""What /metrics and /metrics/partitions show: plain counters, read at a scrape.

No message passes through this module. Labels have few values on /metrics; topics and partitions
are labels on /metrics/partitions only. Names have base units, and counters end in `_total`.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from penstock import build_info
from penstock.broker.broker import Broker
from penstock.log.engine import Engine, Statistics, walk_groups, walk_topics
from penstock.log.errors import UnknownPartition, UnknownTopic
from penstock.server.audit_file import AuditFile
from penstock.server.connectors.routes import Routes
from penstock.server.flight.host import FlightHost
from penstock.server.net.counters import Histogram
from penstock.server.net.hub import Hub
from penstock.server.net.quic.host import QuicHost

# A flush takes 0.2 ms on a good disk and seconds on a failing one.
FLUSH_BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0,
)  # fmt: skip
# Near 1 means that group commit gathers nothing.
RECORDS_BOUNDS: Final = (1, 2, 5, 10, 50, 100, 500, 1_000, 5_000, 10_000, 50_000, 100_000)
LAG_BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
# Often enough to see a loop that hangs, rarely enough to cost nothing.
LAG_INTERVAL_S: Final = 0.25

# Samples of one piece of /metrics/partitions: a few milliseconds of the thread that writes them.
PIECE_SAMPLES: Final = 500

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Observations:
    """The histograms. `flush` is called by commit threads."""

    def __init__(self) -> None:
        self.flush_seconds = Histogram(FLUSH_BOUNDS_S)
        self.flush_records = Histogram(RECORDS_BOUNDS)
        self.loop_lag_seconds = Histogram(LAG_BOUNDS_S)

    def flush(self, seconds: float, records: int) -> None:
        self.flush_seconds.observe(seconds)
        self.flush_records.observe(records)


class LoopLag:
    """A timer that measures its own lateness."""

    def __init__(self, loop: asyncio.AbstractEventLoop, histogram: Histogram) -> None:
        self._loop = loop
        self._histogram = histogram
        self._start()

    def _start(self) -> None:
        self._due = self._loop.time() + LAG_INTERVAL_S
        self._timer = self._loop.call_at(self._due, self._measure)

    def _measure(self) -> None:
        self._histogram.observe(max(self._loop.time() - self._due, 0.0))
        self._start()

    def stop(self) -> None:
        self._timer.cancel()


class Metrics:
    """Renders both pages. `hub`, `broker` and `engine` are set as the server puts itself together."""

    def __init__(self, observations: Observations) -> None:
        self.observations = observations
        self.hub: Hub | None = None
        self.broker: Broker | None = None
        self.engine: Engine | None = None
        self.flight: FlightHost | None = None
        self.quic: QuicHost | None = None
        self.audit_file: AuditFile | None = None
        self.routes: Routes | None = None
        # Looks at many files, so once is enough.
        self._build = build_info()

    async def summary(self) -> bytes:
        """Reads the counters on the event loop, which owns them. Summing up the partitions and writing the
        text take longer and run in threads."""
        engine = self.engine
        found = None if engine is None else await asyncio.to_thread(engine.statistics)
        families = list(self._summarise(found))
        if engine is not None:
            families += await asyncio.to_thread(_staged, engine)
            families += _engine(engine)
        return await asyncio.to_thread(_text, families)

    def _summarise(self, statistics: Statistics | None) -> Iterator[Metric]:
        info = self._build
        yield _gauge(
            "build_info", "The running version.", 1, version=info.version, python=info.python,
            build=info.kind,
        )  # fmt: skip
        if self.hub is not None:
            yield from _sockets(self.hub)
        if self.quic is not None:
            yield from _quic(self.quic)
        if self.broker is not None:
            yield from _protocols(self.broker)
            yield from _subscriptions(self.broker)
            yield from _transactions(self.broker)
            yield from _delayed(self.broker)
            yield from _audit(self.broker, self.audit_file)
            yield from _fanout(self.broker)
            yield from _cache(self.broker)
        if self.routes is not None:
            yield from _routes(self.routes)
        if statistics is not None:
            yield from self._log(statistics)
        if self.flight is not None:
            yield from _flight(self.flight)
        seen = self.observations
        yield _histogram("flush_duration_seconds", "Time of one flush.", seen.flush_seconds)
        yield _histogram("flush_records", "Records in one flush.", seen.flush_records)
        yield _histogram(
            "event_loop_lag_seconds", "How late the event loop is.", seen.loop_lag_seconds
        )

    def _log(self, found: Statistics) -> Iterator[Metric]:
        for name, words in _LOG_COUNTERS.items():
            yield _counter(_LOG_NAMES.get(name, name), words, getattr(found.log, name))
        yield _gauge("damages", "Damaged places found in the log.", found.log.damages)
        for name, words, value in (
            ("topics", "Topics.", found.topics),
            ("partitions", "Partitions.", found.partitions),
            ("partitions_stopped", "Partitions that take no appends.", found.partitions_stopped),
            ("log_start_offset", "First offsets kept, sum of all partitions.", found.start_offsets),
            ("log_end_offset", "Next offsets to be read, sum of all.", found.end_offsets),
            (
                "transactions_unfinished",
                "Decided, but not yet shown.",
                found.transactions_unfinished,
            ),
        ):
            yield _gauge(name, words, value)
        step_s = found.clock_step_us / 1_000_000
        yield _gauge("clock_step_seconds", "How far the clock is ahead, not believed.", step_s)
        words = "Bytes of sealed segments that were read to find damage."
        yield _counter("scrubbed_bytes", words, found.scrubbed_bytes)
        yield from _encryption(found)
        waiting = found.undurable_bytes
        yield _gauge("undurable_bytes", "Accepted, and not yet durable.", waiting)
        tries = found.transaction_retries
        yield _counter("transaction_retries", "Times such a one was tried again.", tries)
        yield _counter("metadata_commits", "Commits of the metadata.", found.metadata_commits)
        yield _counter("metadata_changes", "Changes in them.", found.metadata_changes)


class PartitionPage:
    """The text of /metrics/partitions in pieces. Asks the engine only, which any thread may do.

    All samples of a name must stand together, so the second and third of each partition wait for the last
    partition, as text.
    """

    def __init__(self, engine: Engine | None) -> None:
        self._engine = engine

    def pieces(self) -> Iterator[bytes]:
        if self._engine is None:
            return
        waiting: list[list[bytes]] = [[] for _ in PARTITION_GAUGES[1:]]
        for number, (name, words) in enumerate(PARTITION_GAUGES):
            head = _text([GaugeMetricFamily(name, words)])
            if number:
                waiting[number - 1].append(head)
            else:
                yield head
        places = _partitions(self._engine)
        while some := list(islice(places, PIECE_SAMPLES)):
            first, *others = _samples(self._engine, some)
            yield first
            for texts, text in zip(waiting, others, strict=True):
                texts.append(text)
        for texts in waiting:
            yield from texts
        yield from _group_lags(self._engine)


PARTITION_GAUGES: Final = (
    ("penstock_partition_log_start_offset", "First offset kept."),
    ("penstock_partition_log_end_offset", "Next offset to be read."),
    ("penstock_partition_stopped", "1 when it takes no appends."),
)
GROUP_LAG: Final = ("penstock_group_lag_records", "Records behind the committed offset.")

# By the attribute of Counters.
_LOG_COUNTERS: Final = {
    "appended_batches": "Batches appended.",
    "appended_records": "Records appended.",
    "appended_bytes": "Bytes appended, headers included.",
    "repeated_batches": "Batches of idempotent producers that were there already.",
    "failed_appends": "Appends that failed.",
    "flushes": "Flushes to disk.",
    "cut_bytes": "Bytes of torn tails cut at the last start.",
}
_LOG_NAMES: Final = {"cut_bytes": "recovery_cut_bytes"}


def _sockets(hub: Hub) -> Iterator[Metric]:
    counters = hub.counters
    traffic = counters.traffic
    yield _gauges(
        "connections", "Open connections.", "protocol", {p: t.open for p, t in traffic.items()}
    )
    for name, words, attribute in (
        ("connections_opened", "Connections since start.", "opened"),
        ("received_bytes", "Bytes read from sockets.", "bytes_in"),
        ("sent_bytes", "Bytes written to sockets.", "bytes_out"),
    ):
        values = {protocol: getattr(one, attribute) for protocol, one in traffic.items()}
        yield _counters(name, words, "protocol", values)
    yield _counters("refused_connections", "Not served for a limit.", "reason", counters.refused)
    yield _counters("closed_connections", "Closed by the server.", "reason", counters.closed)
    yield _counters("reading_paused", "Times reading was stopped.", "reason", counters.paused)
    yield _counter("failed_logins", "Logins with a wrong key.", counters.failed_logins)
    yield _gauge("buffered_bytes", "Bytes held for all connections.", hub.held_bytes)
    yield _gauge("buffered_bytes_limit", "The limit.", hub.limits.buffered_bytes_total)
    yield _gauge("connections_limit", "The limit.", hub.limits.connections)


def _quic(host: QuicHost) -> Iterator[Metric]:
    found = host.statistics()
    for name, words, attribute in (
        ("quic_received_datagrams", "Datagrams read.", "datagrams_in"),
        ("quic_sent_datagrams", "Datagrams sent.", "datagrams_out"),
        (
            "quic_lost_packets",
            "Packets that had to be sent again; qh3 alone counts them.",
            "lost_packets",
        ),
        ("quic_retries", "Clients that were asked to prove their address.", "retries_sent"),
    ):
        yield _counter(name, words, sum(getattr(one, attribute) for one in found))
    dropped: Counter[str] = Counter()
    served: Counter[str] = Counter()
    for one in found:
        dropped.update(one.dropped)
        served.update(one.served_by)
    yield _counters("quic_dropped", "Datagrams and handshakes not used.", "reason", dropped)
    yield _counters(
        "quic_accepted", "Connections by the library that serves them.", "library", served
    )
    half_open = sum(one.half_open for one in found)
    yield _gauge("quic_half_open", "Connections whose handshake is not complete.", half_open)


def _routes(routes: Routes) -> Iterator[Metric]:
    """Of Fujin, to brokers outside. The configuration bounds the values of the label."""
    counters = {name: route.counters for name, route in routes.by_name.items()}
    for name, words, attribute in (
        ("route_written_messages", "Messages that the broker has accepted.", "written"),
        ("route_read_messages", "Messages that came from it.", "read"),
        ("route_settled_messages", "ACKs and NACKs that it has taken.", "settled"),
        ("route_failed", "Messages that were not accepted, and reads that failed.", "failed"),
        ("route_outages", "Times that the broker stopped answering.", "outages"),
    ):
        yield _counters(
            name, words, "route", {r: getattr(c, attribute) for r, c in counters.items()}
        )
    for name, words, attribute in (
        ("route_readers", "Readers.", "readers"),
        ("route_pending_bytes", "Written, and not yet accepted.", "pending_bytes"),
    ):
        yield _gauges(name, words, "route", {r: getattr(c, attribute) for r, c in counters.items()})
    used = {r: float(c.up) for r, c in counters.items() if c.up is not None}
    yield _gauges("route_up", "1 when the broker answered last, 0 in an outage.", "route", used)


def _protocols(broker: Broker) -> Iterator[Metric]:
    refused = {name.lower(): number for name, number in broker.refusals.counts.items()}
    words = "Operations that a key had no right to."
    yield _counters("refused_operations", words, "operation", refused)
    options = broker.options
    yield _gauge("users", "Users.", len(broker.access.users))
    yield _gauge("users_limit", "The limit.", options.max_users)
    yield _gauge("topic_rules", "Rules of topics.", len(broker.access.rules))
    yield _gauge("topic_rules_limit", "The limit.", options.max_topic_rules)
    yield _gauge("schema_versions", "Versions of all schemas.", len(broker.schemas.registry))
    yield _gauge("schema_versions_limit", "The limit.", options.max_schemas)
    members = sum(broker.sharing.counts().values())
    yield _gauge("group_members", "Members of groups that share partitions.", members)
    for name, words, attribute in (
        ("frames_received", "Frames read.", "frames_in"),
        ("frames_sent", "Frames written.", "frames_out"),
        ("messages_received", "Messages published.", "messages_in"),
        ("messages_sent", "Messages delivered or fetched.", "messages_out"),
    ):
        values = {protocol: getattr(one, attribute) for protocol, one in broker.counters.items()}
        yield _counters(name, words, "protocol", values)
    for name, words, label, attribute in (
        ("errors", "Errors answered.", "kind", "errors"),
        ("refused_requests", "Requests refused.", "reason", "refused"),
    ):
        family = CounterMetricFamily(f"penstock_{name}", words, labels=("protocol", label))
        for protocol, one in broker.counters.items():
            for kind, count in getattr(one, attribute).items():
                family.add_metric((protocol, kind), count)
        yield family


def _transactions(broker: Broker) -> Iterator[Metric]:
    """Those of connections; named ones of Flight are in the engine."""
    found, counters = broker.transactions, broker.transactions.counters
    yield _gauge("transactions_open", "Transactions of connections.", len(found))
    yield _gauge("transactions_staged_bytes", "Records in them.", found.staged_bytes)
    options = broker.options
    yield _gauge("transactions_open_limit", "The limit of a key.", options.max_open_transactions)
    yield _gauge("transactions_staged_bytes_limit", "The limit of a key.", options.max_staged_bytes)
    ended = {
        "committed": counters.committed,
        "rolled back": counters.rolled_back,
        "expired": counters.expired,
    }
    yield _counters("transactions_ended", "Transactions of connections.", "how", ended)


def _engine(engine: Engine) -> list[Metric]:
    view = engine.cluster()
    brokers = sum(bool(node.cluster_address) for node in view.nodes)
    words = "Nodes that serve the log."
    return [
        _gauge(
            "engine_trouble", "1 while the engine cannot reach its log.", int(bool(view.trouble))
        ),
        _gauge("engine_gateways", words, len(view.nodes) - brokers),
        _gauge("engine_brokers", "Brokers of Kafka behind them.", brokers),
    ]


def _staged(engine: Engine) -> list[Metric]:
    """In a thread: it asks the disk."""
    found, age_us = engine.transactions.usage(""), engine.transactions.oldest_age_us()
    words = "Transactions with files: those of Flight, and large ones of connections."
    return [
        _gauge("staged_transactions", words, found.open),
        _gauge("staged_bytes", "Bytes in them.", found.staged_bytes),
        _gauge("staged_transaction_age_seconds", "Of the oldest of them.", age_us / 1_000_000),
    ]


def _encryption(found: Statistics) -> Iterator[Metric]:
    topics = {str(key_id): number for key_id, number in found.topics_by_key.items()}
    words = "Topics that may hold records encrypted with a key."
    yield _gauges("encryption_topics", words, "key", topics)
    words = "Segments that were encrypted with another key, or for the first time."
    yield _counter("reencrypted_segments", words, found.reencrypted_segments)
    yield _counter("reencrypted_bytes", "Bytes of these.", found.reencrypted_bytes)


def _subscriptions(broker: Broker) -> Iterator[Metric]:
    counters = broker.subscriptions.counters
    yield _gauge("subscriptions", "Subscriptions.", len(broker.subscriptions))
    yield _counter("delivered_messages", "Deliveries to subscribers.", counters.delivered)
    yield _counter("redelivered_messages", "Of these, repeated.", counters.redelivered)
    yield _counter("acknowledged_messages", "Messages acknowledged.", counters.acknowledged)
    dropped = {
        "capacity": counters.dropped_capacity,
        "expired": counters.expired,
        "unreadable": counters.unreadable,
    }
    yield _counters("dropped_messages", "Messages that never arrived.", "reason", dropped)
    yield _counter("dead_lettered_messages", "Given up, now in a .dlq.", counters.dead_lettered)
    yield _counter(
        "refused_dead_letters", "Given up, no .dlq can hold them.", counters.dead_letters_refused
    )
    yield _counter(
        "expired_subscriptions", "Subscriptions that nobody used.", counters.orphans_expired
    )


def _delayed(broker: Broker) -> Iterator[Metric]:
    delayed = broker.delayed
    yield _gauge("delayed_messages", "Messages that are not due yet.", delayed.pending)
    yield _gauge("delayed_messages_limit", "The limit.", broker.options.max_delayed_messages)
    yield _counter("delayed_delivered", "Delivered when they were due.", delayed.delivered)
    yield _counter("delayed_cancelled", "Cancelled before they were due.", delayed.cancelled)


def _audit(broker: Broker, file: AuditFile | None) -> Iterator[Metric]:
    counters = broker.audit.counters
    yield _counters("audit_events", "Events written to the trail.", "type", counters.events)
    words = "Repeats and floods of logins and refusals, told by a count."
    yield _counter("audit_omitted_events", words, counters.omitted)
    yield _counter("audit_lost_events", "Events that could not be written.", counters.lost)
    lost = 0 if file is None else file.lost
    yield _counter("audit_file_lost_events", "Events that audit.file lacks.", lost)
    words = "Logins that wait because too many passwords were wrong."
    yield _gauge("throttled_logins", words, broker.access.logins.parked)


def _fanout(broker: Broker) -> Iterator[Metric]:
    counters = broker.fanout.counters
    yield _gauge("event_subscriptions", "Subscriptions to events.", counters.subscriptions)
    yield _counter("event_batches_encoded", "Batches of events encoded.", counters.encoded)
    yield _counter("event_batches_shared", "Taken by one more subscriber.", counters.shared)
    yield _counter(
        "dropped_events",
        "Events that subscribers missed: too slow, or too large a frame.",
        counters.dropped,
    )
    yield _counter(
        "disconnected_subscribers", "Subscriptions ended for slowness.", counters.disconnected
    )
    yield _gauge("shared_cursors", "Groups and readers that share topics.", len(broker.cursors))


def _cache(broker: Broker) -> Iterator[Metric]:
    cache = broker.cache.memory
    counters = cache.counters
    yield _gauge("cache_entries", "Values in the cache.", len(cache))
    yield _gauge("cache_bytes", "Their memory.", cache.used_bytes)
    yield _gauge("cache_bytes_limit", "The limit.", broker.options.cache_bytes)
    reads = {"hit": counters.hits, "miss": counters.misses}
    yield _counters("cache_reads", "Reads of the cache.", "outcome", reads)
    gone = {"evicted": counters.evicted, "expired": counters.expired}
    yield _counters("cache_removed", "Values that left the cache.", "reason", gone)


def _flight(host: FlightHost) -> Iterator[Metric]:
    yield _counter("flight_restarts", "Times the Flight process died.", host.restarts)
    totals = host.traffic.totals()
    connections = totals.connections
    yield _gauge("flight_connections", "Open connections to Flight.", connections.open)
    yield _counter("flight_cut_connections", "Connections cut for a limit.", connections.cut)
    kinds = {"read": totals.reads, "write": totals.writes}
    limits = {"read": host.limits.reads, "write": host.limits.writes}
    streams = {kind: one.open for kind, one in kinds.items()}
    yield _gauges("flight_streams", "Open streams.", "kind", streams)
    yield _gauges("flight_streams_limit", "The limit.", "kind", limits)
    for name, words, attribute in (
        ("flight_refused_streams", "Streams refused for the limit.", "refused"),
        ("flight_rows", "Rows read, and taken for writing.", "rows"),
        ("flight_bytes", "Bytes of them as Arrow.", "size_bytes"),
    ):
        values = {kind: getattr(one, attribute) for kind, one in kinds.items()}
        yield _counters(name, words, "kind", values)


def _partitions(engine: Engine) -> Iterator[tuple[str, int]]:
    for page in walk_topics(engine):
        for topic in page:
            for number in range(topic.partitions):
                yield topic.name, number


def _samples(engine: Engine, places: list[tuple[str, int]]) -> list[bytes]:
    """The lines of each of PARTITION_GAUGES for these partitions, as far as they are still there."""
    families = [
        GaugeMetricFamily(name, words, labels=("topic", "partition"))
        for name, words in PARTITION_GAUGES
    ]
    for topic, number in places:
        with suppress(UnknownTopic, UnknownPartition):
            found = engine.partition_info(topic, number)
            values = (found.earliest, found.latest, float(found.stopped is not None))
            for family, value in zip(families, values, strict=True):
                family.add_metric((topic, str(number)), value)
    return [_lines(family) for family in families]


def _group_lags(engine: Engine) -> Iterator[bytes]:
    name, words = GROUP_LAG
    yield _text([GaugeMetricFamily(name, words)])
    for groups in walk_groups(engine):
        family = GaugeMetricFamily(name, words, labels=("group", "topic", "partition"))
        for group in groups:
            for (topic, partition), offset in list(engine.group(group).items()):
                with suppress(UnknownTopic, UnknownPartition):
                    _, latest = engine.offsets(topic, partition)
                    family.add_metric((group, topic, str(partition)), max(latest - offset, 0))
        yield _lines(family)


def _text(families: list[Metric]) -> bytes:
    return generate_latest(_registry(_Page(lambda: iter(families))))


def _lines(family: Metric) -> bytes:
    """Its samples without the two lines that describe it: those stand once above all pieces."""
    return _text([family]).split(b"\n", 2)[2]


class _Page(Collector):
    def __init__(self, make: Callable[[], Iterator[Metric]]) -> None:
        self._make = make

    def collect(self) -> Iterator[Metric]:
        return self._make()

    def describe(self) -> list[Metric]:
        """Nothing in advance: what there is depends on what happened."""
        return []


def _registry(page: Collector) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(page)
    return registry


def _gauge(name: str, words: str, value: float, **labels: str) -> Metric:
    family = GaugeMetricFamily(f"penstock_{name}", words, labels=tuple(labels))
    family.add_metric(tuple(labels.values()), value)
    return family


def _gauges(name: str, words: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"penstock_{name}", words, labels=(label,))
    for key, value in values.items():
        family.add_metric((key,), value)
    return family


def _counter(name: str, words: str, value: float) -> Metric:
    return CounterMetricFamily(f"penstock_{name}", words, value=value)


def _counters(name: str, words: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(f"penstock_{name}", words, labels=(label,))
    for key, value in values.items():
        family.add_metric((key,), value)
    return family


def _histogram(name: str, words: str, histogram: Histogram) -> Metric:
    buckets, total = histogram.snapshot()
    return HistogramMetricFamily(f"penstock_{name}", words, buckets=buckets, sum_value=total)
