"""The broker over real sockets: publish, deliver, fan out, produce, fetch, many connections, and NATS.

The load comes from this process, the servers are processes of their own; all on the loopback interface.
One connection unless a row says otherwise, pipelined, messages of 50 to 150 random bytes. The control
row is benchmarks/broker_control.py. How to read the tables: benchmarks/README.md.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import broker_servers as servers
from benchmarks.broker_blipmq import (
    Publisher,
    delivery_rate,
    fan_out_rate,
    publish_rate,
    settle,
)
from benchmarks.broker_connections import raise_open_files, serve_many
from benchmarks.broker_found import UNIT, Call, Found, quiet_rounds
from benchmarks.broker_load import DISTINCT, Watermark
from benchmarks.broker_nats import ALWAYS_WINDOW, WINDOW, JetStream
from benchmarks.broker_rustlog import create_topic, fetch_rate, produce_rate, produce_requests
from benchmarks.log import GIB, scratch
from benchmarks.table import Row, Table, median
from penstock.wire.blipmq import frames as wire

SUBSCRIPTIONS = 10
IDLE = 1_000
MANY = 10_000
IDLE_BYTES = 64 * 1024
# A load generator that uses a core to this share may be what is measured.
BUSY = 0.9
RECORDS = 1_000
# A delivery that waits long for its turn on a busy machine is not to be sent twice meanwhile.
PATIENT = "blipmq.retry_backoff=10 s"


class Bench:
    """One run of our server and the control beside it, and the calls that measure them."""

    def __init__(self, stack: ExitStack, directory: Path, quick: bool) -> None:
        self._stack = stack
        self.directory = directory
        self.quick = quick
        self.control = stack.enter_context(servers.control(directory / "control"))
        self.server = stack.enter_context(servers.penstock(directory / "data", PATIENT))
        self.port = self.server.ports["tcp"]
        self.watermark = Watermark(self.port)
        stack.callback(self.watermark.close)
        # Messages are sent in rounds of 20,000.
        self.rounds = 10 if quick else 20
        self.work: dict[str, list[servers.Work]] = {}

    def watched(self, name: str, server: servers.Process, call: Call) -> Call:
        """The call, with a note of what generator and server used."""

        def run() -> float:
            watch = servers.Watch(server)
            found = call()
            self.work.setdefault(name, []).append(watch.work())
            return found

        return run

    def publisher(self, port: int, topic: str, qos: int, with_login: bool = True) -> Publisher:
        publisher = Publisher(port, topic, qos, with_login)
        self._stack.callback(publisher.connection.close)
        return publisher

    def bare(self) -> Call:
        publisher = self.publisher(self.control.ports["control"], "bench", 1, with_login=False)
        return self.watched(
            "control", self.control, lambda: publish_rate(publisher, self.rounds, None)
        )

    def publish(self, name: str, qos: int) -> Call:
        publisher = self.publisher(self.port, name, qos)
        durable = qos == wire.QOS_AT_LEAST_ONCE

        def run() -> float:
            found = publish_rate(publisher, self.rounds, self.watermark if durable else None)
            settle(publisher, self.watermark)
            return found

        return self.watched(name, self.server, run)

    def deliver(self) -> Call:
        cycles = 3 if self.quick else 12

        def run() -> float:
            rate, share = delivery_rate(self.port, "deliver", cycles, self.watermark)
            self.work.setdefault("deliver", []).append(servers.Work(share, 0.0, 0.0, 1.0))
            return rate

        return run

    def fan_out(self) -> Call:
        rounds = 3 if self.quick else 15

        def run() -> float:
            return fan_out_rate(self.port, "fanout", SUBSCRIPTIONS, rounds)

        return self.watched("fanout", self.server, run)

    def produce(self, name: str, records: int, rounds: int) -> Call:
        create_topic(self.port, name)
        requests = produce_requests(name, records)
        limit_s = 1.0 if self.quick else 3.0
        return self.watched(
            name,
            self.server,
            lambda: produce_rate(self.port, requests, records, rounds, limit_s),
        )

    def fetch(self, topic: str) -> Call:
        limit_s = 1.0 if self.quick else 3.0
        return self.watched(
            "fetch", self.server, lambda: fetch_rate(self.port, topic, self.watermark, limit_s)
        )

    def nats(self, name: str, sync_interval: str | None) -> Call:
        server = self._stack.enter_context(servers.nats(self.directory / name, sync_interval))
        stream = JetStream(server.ports["nats"], ALWAYS_WINDOW if sync_interval else WINDOW)
        self._stack.callback(stream.close)
        limit_s = 1.0 if self.quick else 2.0
        rounds = self.rounds
        return self.watched(name, server, lambda: stream.publish_rate(rounds, limit_s))


def tables(quick: bool) -> Iterator[Table]:
    rounds = 3 if quick else 7
    limit_s = 8.0 if quick else 50.0
    with scratch(12 * GIB) as directory, ExitStack() as stack:
        # More than all rows together write.
        servers.touch_memory((2 if quick else 10) * GIB)
        bench = Bench(stack, directory, quick)
        publishing = {
            "control": bench.bare(),
            "qos1": bench.publish("qos1", wire.QOS_AT_LEAST_ONCE),
            "qos0": bench.publish("qos0", wire.QOS_AT_MOST_ONCE),
        }
        # Short runs and many of them: the median of few is a matter of luck on a busy machine.
        published = Found(publishing, 7 if quick else 61, limit_s)
        quiet = quiet_rounds(bench.work["control"])
        work = work_table(bench)
        calls = {
            "control": publishing["control"],
            "deliver": bench.deliver(),
            "fanout": bench.fan_out(),
            "produce": bench.produce("produce", RECORDS, 5 if quick else 20),
            "fetch": bench.fetch("produce"),
        }
        yield broker_table(published, quiet, Found(calls, rounds, limit_s))
        yield nats_table(bench, rounds, limit_s, publishing["qos1"], calls["produce"])
        add_generators(work, bench)
        yield work
    yield connections_table(quick)


def broker_table(published: Found, quiet: Sequence[int], found: Found) -> Table:
    table = Table("Broker, one connection, 100-byte messages, durability ack")
    table.add("control: split, join, checksum, writev", published["control"], UNIT)
    for name, what, part in (
        ("qos1", "BlipMQ QoS1 publish, until all durable", 0.5),
        ("qos0", "BlipMQ QoS0 publish, until all taken", 0.6),
    ):
        table.rows += published.quiet_rows(what, name, "control", part, quiet)
    table.rows += [
        found.row_at_least(what, name, "control", least)
        for name, what, least in (
            ("deliver", "BlipMQ POLL and ACK, QoS1", 400_000),
            ("fanout", f"BlipMQ fan-out to {SUBSCRIPTIONS} QoS0 subscriptions, sum", 600_000),
            ("produce", f"RustLog J Produce, {RECORDS:,} records each", 250_000),
            ("fetch", "RustLog J Fetch, 256 KiB each", 250_000),
        )
    ]
    return table


def work_table(bench: Bench) -> Table:
    """What the CPUs did. Other work on the machine changes these numbers less than the speeds."""
    table = Table("CPU used: server per published message, and generator as part of one core")
    messages = bench.rounds * DISTINCT
    each = {
        name: [1e9 * one.server_s / messages for one in bench.work[name]]
        for name in ("control", "qos1", "qos0")
    }
    table.add("control: server", median(each["control"]), "ns/msg")
    for name in ("qos1", "qos0"):
        pairs = zip(each[name], each["control"], strict=True)
        ratio = median([ours / bare for ours, bare in pairs])
        table.rows.append(Row(f"BlipMQ {name}: server", median(each[name]), "ns/msg", ratio))
    return table


def add_generators(table: Table, bench: Bench) -> None:
    for name, runs in bench.work.items():
        share = median([one.generator_s / one.took_s for one in runs])
        limit = ", IT IS THE LIMIT" if share >= BUSY else ""
        table.add(f"generator, {name}{limit}", share, "cores")


def nats_table(bench: Bench, rounds: int, limit_s: float, qos1: Call, produce: Call) -> Table:
    found = Found(
        {
            "nats": bench.nats("nats default", None),
            "always": bench.nats("nats always", "always"),
            "qos1": qos1,
            "produce": produce,
            "single": bench.produce("single", 1, 2),
        },
        rounds,
        limit_s,
    )
    table = Table("NATS JetStream, file storage: acknowledged publishes, one connection")
    ours = (
        ("BlipMQ QoS1, until all durable", "qos1"),
        (f"RustLog J Produce, {RECORDS:,} records each", "produce"),
        ("RustLog J Produce, 1 record each, 4,000 under way", "single"),
    )
    table.add(
        f"control: NATS sync_interval always, {ALWAYS_WINDOW:,} under way", found["always"], UNIT
    )
    table.rows += [found.row(what, name, "always", 1.0) for what, name in ours]
    table.add(f"control: NATS sync_interval default, {WINDOW:,} under way", found["nats"], UNIT)
    table.rows += [found.row(what, name, "nats") for what, name in ours]
    return table


def connections_table(quick: bool) -> Table:
    idle, many = (100, 500) if quick else (IDLE, MANY)
    fitting = raise_open_files(many)
    table = Table("Connections, logged in with BlipMQ and idle")
    with scratch(GIB) as directory:
        for count in (idle, fitting):
            with servers.penstock(directory / str(count)) as server:
                served = serve_many(server, count)
            each = served.resident_bytes / served.connections
            what = f"memory of each, {served.connections:,} open"
            limit = f"< {IDLE_BYTES // 1024}"
            table.rows.append(Row(what, each / 1024, "KiB", None, limit, each < IDLE_BYTES))
    table.at_least("open and answered together", served.connections, "connections", many)
    table.add("their logins and PINGs", served.seconds, "s")
    if fitting < many:
        table.title += f" (the limit of open files allows {fitting:,} only: ulimit -n)"
    return table
