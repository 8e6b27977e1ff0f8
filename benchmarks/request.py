"""The price of one request: lone requests, small windows, publish to delivery.

Everything is compared with a bare uvloop echo of the same bytes and with one bare fdatasync behind a
write of the same size. Both are taken anew before and after each row by the client that takes the row.
Records have 100 bytes. The servers are processes of their own; the client (request_client.py) is this
process and spins. How to read the tables: benchmarks/README.md.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import quantiles

from benchmarks import broker_servers as servers
from benchmarks.broker_blipmq import Publisher, barrier, login, publish_rate
from benchmarks.broker_load import connect
from benchmarks.broker_rustlog import create_topic
from benchmarks.log import GIB, scratch
from benchmarks.request_blipmq import delivery_times, end_to_end_rate
from benchmarks.request_client import (
    ask,
    ask_ahead,
    ask_in_blocks,
    ask_on_many,
    flush_times,
)
from benchmarks.request_spoken import MESSAGE, RUSTLOG, TOPIC, Spoken
from benchmarks.table import Row, Table, median
from penstock.wire.blipmq import frames as blipmq
from penstock.wire.blipmq.batch import encode_messages, pack_consecutive

PUBLISH = blipmq.encode_publish(1, TOPIC.encode(), 1, MESSAGE)
# A batch with one record of 100 bytes in the log: header, columns and value.
STORED_BYTES = 256
CONNECTIONS = 64
DELIVERIES_A_SECOND = 200
BLOCK = 256
OUTSTANDING = 900
# A delivery that waits long for its turn on a busy machine is not to be sent twice meanwhile.
PATIENT = "blipmq.retry_backoff=10 s"
US = 1e6


@dataclass(frozen=True, slots=True)
class Control:
    """One echo and one fdatasync, medians in us."""

    echo_us: float
    flush_us: float

    def echoes(self, time_us: float, *, flushed: bool) -> float:
        """How many echoes a time is, beside the flush that it must wait for."""
        return (time_us - (self.flush_us if flushed else 0.0)) / self.echo_us


@dataclass(frozen=True, slots=True)
class Lone:
    """One round of lone requests."""

    control: Control
    p50_us: float
    p99_us: float
    cpu_us: float


class Bench:
    """The servers of one run and the calls that measure them; `spoken`: in which protocol."""

    def __init__(
        self, stack: ExitStack, directory: Path, quick: bool, spoken: Spoken = RUSTLOG
    ) -> None:
        self.quick = quick
        self.spoken = spoken
        self.rounds = 1 if quick else 3
        self.limit_s = 0.3 if quick else 2.0
        self._directory = directory
        self.echo = stack.enter_context(servers.echo())
        self.ack = stack.enter_context(servers.penstock(directory / "ack", PATIENT))
        self.none = stack.enter_context(
            servers.penstock(directory / "none", PATIENT, "topic_defaults.durability=none")
        )
        for server in (self.ack, self.none):
            create_topic(server.ports["tcp"], TOPIC)
        sizes = len(spoken.produce), STORED_BYTES, spoken.produced
        self.bare = {
            durability: stack.enter_context(
                servers.bare(durability, directory / f"bare-{durability}", *sizes)
            )
            for durability in ("none", "ack")
        }

    def control(self, request: bytes) -> Control:
        count = 200 if self.quick else 1_000
        with connect(self.echo.ports["echo"]) as connection:
            echoes = ask(connection, request, request, count)
        flushes = flush_times(self._directory / "flushed", STORED_BYTES, count // 5)
        return Control(median(echoes) * US, median(flushes) * US)

    def around(
        self, request: bytes, call: Callable[[], list[float]]
    ) -> tuple[Control, list[float]]:
        """The call, between two controls, of which it gives the mean."""
        before = self.control(request)
        found = call()
        after = self.control(request)
        mean = Control((before.echo_us + after.echo_us) / 2, (before.flush_us + after.flush_us) / 2)
        return mean, found

    def lone(self, server: servers.Process) -> Lone:
        count = 200 if self.quick else 3_000
        produce, produced = self.spoken.produce, self.spoken.produced
        with connect(server.ports["tcp"]) as connection:
            ask(connection, produce, produced, count // 10)

            cpu_s = 0.0

            def run() -> list[float]:
                nonlocal cpu_s
                watch = servers.Watch(server)
                times = ask(connection, produce, produced, count)
                cpu_s = watch.work().server_s
                return times

            control, times = self.around(produce, run)
        return Lone(control, median(times) * US, p99(times) * US, cpu_s / count * US)

    def deliveries(self, qos: int) -> Lone:
        count = 60 if self.quick else 800
        port = self.ack.ports["tcp"]
        control, times = self.around(
            PUBLISH,
            lambda: delivery_times(port, TOPIC, qos, count, DELIVERIES_A_SECOND),
        )
        return Lone(control, median(times) * US, p99(times) * US, 0.0)

    def on_many(self) -> tuple[float, float, float]:
        """Answers a second: of the echo, the mean of before and after, of the bare server, and ours."""
        request_bytes, answer_bytes = len(self.spoken.produce), len(self.spoken.produced)
        before = self._on_many(self.echo.ports["echo"], request_bytes)
        bare = self._on_many(self.bare["ack"].ports["tcp"], answer_bytes)
        ours = self._on_many(self.ack.ports["tcp"], answer_bytes)
        after = self._on_many(self.echo.ports["echo"], request_bytes)
        return (before + after) / 2, bare, ours

    def _on_many(self, port: int, answer_bytes: int) -> float:
        with ExitStack() as stack:
            connections = [stack.enter_context(connect(port)) for _ in range(CONNECTIONS)]
            return ask_on_many(connections, self.spoken.produce, answer_bytes, self.limit_s)

    def ahead(self, server: servers.Process, window: int) -> float:
        with connect(server.ports["tcp"]) as connection:
            return ask_ahead(connection, self.spoken, window, self.limit_s)

    def echo_ahead(self, window: int) -> float:
        echoed = replace(self.spoken, produced=self.spoken.produce)
        with connect(self.echo.ports["echo"]) as connection:
            return ask_ahead(connection, echoed, window, self.limit_s / 4)

    def blocks(self) -> float:
        """Messages a second."""
        messages = [MESSAGE] * BLOCK
        block = encode_messages(TOPIC.encode(), 1, messages, pack_consecutive(1, BLOCK))
        block += blipmq.encode_ping(1)
        with login(connect(self.ack.ports["tcp"])) as connection:
            return BLOCK * ask_in_blocks(connection, block, blipmq.encode_pong(1), self.limit_s)

    def publish(self, server: servers.Process, qos: int) -> float:
        """Messages a second until a PING behind them all is answered."""
        publisher = Publisher(server.ports["tcp"], TOPIC, qos)
        with publisher.connection:
            barrier(publisher.connection, 1)
            return publish_rate(publisher, 2 if self.quick else 20, None)

    def end_to_end(self) -> float:
        return end_to_end_rate(self.ack.ports["tcp"], "end.to.end", OUTSTANDING, self.limit_s)


def p99(times: list[float]) -> float:
    return quantiles(times, n=100)[-1]


def tables(quick: bool) -> Iterator[Table]:
    with scratch(4 * GIB) as directory, ExitStack() as stack:
        servers.touch_memory((1 if quick else 2) * GIB)
        bench = Bench(stack, directory, quick)
        create_topic(bench.ack.ports["tcp"], "end.to.end")
        yield lone_table(bench)
        yield window_table(bench)
        yield delivery_table(bench)


def lone_table(bench: Bench) -> Table:
    table = Table(f"{bench.spoken.title}, one record of 100 bytes, one at a time")
    for durability, server, echoes, cpu_us in (
        ("none", bench.none, 4, 60),
        ("ack", bench.ack, 8, 120),
    ):
        found, bare = [], []
        for _ in range(bench.rounds):
            bare.append(bench.lone(bench.bare[durability]))
            found.append(bench.lone(server))
        what = f"durability {durability}"
        control = f"control: bare server, {what}"
        table.add(f"{control}: p50", median([one.p50_us for one in bare]), "us")
        table.add(f"{control}: server CPU each", median([one.cpu_us for one in bare]), "us")
        add_p50(table, what, found, echoes, flushed=durability == "ack")
        used = median([one.cpu_us for one in found])
        table.rows.append(
            Row(f"{what}: server CPU each", used, "us", None, f"<= {cpu_us} us", used <= cpu_us)
        )
    return table


def add_p50(table: Table, what: str, found: list[Lone], most: int, *, flushed: bool) -> None:
    """The controls of the row, then the row: in echoes, beside the flush where it waits for one."""
    echo = median([one.control.echo_us for one in found])
    flush = median([one.control.flush_us for one in found])
    table.add(f"control: echo of the same bytes, around {what}", echo, "us")
    target = f"<= {most} echoes"
    if flushed:
        table.add(f"control: fdatasync, around {what}", flush, "us")
        target = f"<= fdatasync and {most} echoes"
    p50 = median([one.p50_us for one in found])
    ratio = median([one.control.echoes(one.p50_us, flushed=flushed) for one in found])
    table.rows.append(Row(f"{what}: p50", p50, "us", ratio, target, ratio <= most))


def window_table(bench: Bench) -> Table:
    table = Table(f"{bench.spoken.title}, one record of 100 bytes a request, durability ack")
    what = f"{CONNECTIONS} connections, one each under way"
    rounds = [bench.on_many() for _ in range(bench.rounds)]
    table.add(f"control: echo, {what}", median([echo for echo, _, _ in rounds]), "/s")
    bare = median([bare for _, bare, _ in rounds])
    share = median([bare / echo for echo, bare, _ in rounds])
    table.rows.append(Row(f"control: bare server, {what}", bare, "/s", share))
    ours = median([ours for _, _, ours in rounds])
    ratio = median([ours / echo for echo, _, ours in rounds])
    table.rows.append(Row(what, ours, "/s", ratio, ">= 0.40 of control", ratio >= 0.4))
    for window, least in ((64, 75_000), (1024, 250_000)):
        echoes = [bench.echo_ahead(window)]
        found, bares = [], []
        for _ in range(bench.rounds):
            bares.append(bench.ahead(bench.bare["ack"], window))
            found.append(bench.ahead(bench.ack, window))
            echoes.append(bench.echo_ahead(window))
        table.add(f"control: echo, {window:,} under way", median(echoes), "/s")
        table.add(f"control: bare server, {window:,} under way", median(bares), "/s")
        value = median(found)
        target = f">= {least:,}"
        what = f"one connection, {window:,} under way"
        table.rows.append(Row(what, value, "/s", value / median(echoes), target, value >= least))
    return table


def delivery_table(bench: Bench) -> Table:
    table = Table("BlipMQ, messages of 100 bytes, topics with durability ack unless said")
    for qos, echoes in ((1, 10), (0, 8)):
        found = [bench.deliveries(qos) for _ in range(bench.rounds)]
        what = f"publish to delivery, {DELIVERIES_A_SECOND} msg/s, QoS {qos}"
        add_p50(table, what, found, echoes, flushed=qos == 1)
        ratio = median([one.p99_us / one.p50_us for one in found])
        late = median([one.p99_us for one in found])
        table.rows.append(Row(f"{what}: p99", late, "us", ratio, "<= 5.00 of p50", ratio <= 5))
    rate = median([bench.blocks() for _ in range(bench.rounds)])
    what = f"{BLOCK} publishes and a PING, repeated, QoS 1"
    table.rows.append(Row(what, rate, "msg/s", None, ">= 1,500,000", rate >= 1_500_000))
    qos1_none, qos0_ack = [], []
    for _ in range(3 * bench.rounds):
        qos1_none.append(bench.publish(bench.none, blipmq.QOS_AT_LEAST_ONCE))
        qos0_ack.append(bench.publish(bench.ack, blipmq.QOS_AT_MOST_ONCE))
    table.add("control: publish QoS 1, durability none", median(qos1_none), "msg/s")
    ratio = median([ours / bare for ours, bare in zip(qos0_ack, qos1_none, strict=True)])
    table.rows.append(
        Row(
            "publish QoS 0, durability ack",
            median(qos0_ack),
            "msg/s",
            ratio,
            ">= 0.95 of control",
            ratio >= 0.95,
        )
    )
    rate = median([bench.end_to_end() for _ in range(bench.rounds)])
    what = f"publish, poll, ack, {OUTSTANDING} outstanding, one subscriber"
    table.rows.append(Row(what, rate, "msg/s", None, ">= 250,000", rate >= 250_000))
    return table
