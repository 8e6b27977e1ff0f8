"""QUIC: bytes and messages into our streams and sessions, events and answers out of them, lone requests,
and TCP on the same event loop beside it.

The loads, the controls and what happens where they cannot be built: quic_peers.py. How to read the tables:
benchmarks/README.md.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from benchmarks import broker_servers as servers
from benchmarks import quic_peers as peers
from benchmarks.log import scratch
from benchmarks.quic_peers import Peers, Served, python_load, quic_go_load, quinn_load
from benchmarks.request_client import flush_times
from benchmarks.table import Row, Table, interleaved, median

TOPIC = "bench"
SUBSCRIBERS = 10
WINDOW = 64
# Of the value of a cache entry.
VALUE_BYTES = 256
# A batch with one record of 100 bytes in the log: header, columns and value.
STORED_BYTES = 256
# Between two publishes of the quinn client, which makes at least a millisecond of it.
DELIVERY_PAUSE_S = 0.0005


# Tables of a run, in this order; quic_go_clients where Go is there.
PARTS = (
    "raw",
    "messages",
    "round_trips",
    "events",
    "cache",
    "delivery",
    "beside_tcp",
    "quic_go_clients",
)


def tables(quick: bool, parts: Collection[str] = PARTS) -> Iterator[Table]:
    found = peers.find_peers()
    for reason in found.missing:
        print(f"quic: {reason}")
    if found.quinn is None:
        yield from _without_quinn(quick)
        return
    with scratch(2 << 30) as directory, ExitStack() as stack:
        bench = Bench(stack, found, found.quinn, directory, quick)
        made: dict[str, Callable[[], Table]] = {
            "raw": bench.raw,
            "messages": bench.messages,
            "round_trips": bench.round_trips,
            "events": bench.events,
            "cache": bench.cache,
            "delivery": bench.delivery,
            "beside_tcp": bench.beside_tcp,
        }
        quic_go = found.quic_go
        if quic_go is not None:
            made["quic_go_clients"] = lambda: bench.quic_go_clients(quic_go)
        for name in PARTS:
            if name in parts and name in made:
                yield made[name]()


class Bench:
    """The servers of one run and the calls that measure them."""

    def __init__(
        self, stack: ExitStack, found: Peers, quinn: str, directory: Path, quick: bool
    ) -> None:
        self.quick = quick
        self.rounds = 1 if quick else 3
        self._quinn = quinn
        self._directory = directory
        self._ours = stack.enter_context(peers.running(peers.ours()))
        self._sink = self._serve(stack, [quinn, "127.0.0.1:0", "serve"])
        self._fujin_sink = self._serve(stack, [quinn, "127.0.0.1:0", "serve", peers.FUJIN])
        self._go_sink: Served | None = None
        if found.quic_go is not None:
            command = [found.quic_go, "127.0.0.1:0", peers.FUJIN, "serve"]
            self._go_sink = self._serve(stack, command)
        self._server = stack.enter_context(_penstock(directory / "data"))
        peers.pin(self._server.pid, 1)
        self._lost = 0.0

    def _serve(self, stack: ExitStack, command: list[str]) -> Served:
        return stack.enter_context(peers.running(command))

    @property
    def _bare(self) -> int:
        return self._ours.ports[0]

    def _size(self, full: int) -> int:
        return full // 20 if self.quick else full

    def _load(self, port: int, *words: object) -> list[float]:
        return quinn_load(self._quinn, port, *words)

    def _sent(self, port: int, *words: object) -> float:
        """The first number; the last one is packets of the load that were lost."""
        found = self._load(port, *words)
        self._lost += found[-1]
        return found[0]

    # --- into the server --------------------------------------------------------------------------

    def raw(self) -> Table:
        megabytes = self._size(400)
        self._lost = 0.0
        found = interleaved(
            {
                "control": lambda: self._load(self._sink.ports[-1], "send", megabytes)[0],
                "ours": lambda: self._sent(self._bare, "send", megabytes),
            },
            self.rounds,
        )
        pushed = self._size(200) * 10**6
        out = interleaved(
            {
                "control": lambda: self._load(self._sink.ports[-1], "pull", pushed)[0],
                "ours": lambda: self._load(self._bare, "pull", pushed)[0],
            },
            self.rounds,
        )
        table = Table(f"QUIC, one stream of {megabytes} MB, a quinn client")
        table.add("control: a quinn sink", found["control"], "MB/s")
        table.compare("in: sessions on our streams", found["ours"], "MB/s", found["control"], 0.5)
        table.rows.append(_at_most("in: packets of the client that were lost", self._lost, 0))
        table.add("control: quinn, one stream of the server", out["control"], "MB/s")
        table.compare("out: one stream of our server", out["ours"], "MB/s", out["control"], 0)
        for what, port in (("quinn", self._sink.ports[-1]), ("our server", self._bare)):
            lost = self._load(port, "tell", "lost")[0]
            table.add(f"out: packets of {what} that were lost", lost, "packets")
        return table

    def messages(self) -> Table:
        """Felix and Fujin, with and without a log."""
        count, small, batches = self._size(400_000), self._size(2_000_000), self._size(6_000)
        plain, logged = self._ours.ports[2], self._server.ports["udp"]
        calls: dict[str, Callable[[], float]] = {
            "quinn 1024": lambda: self._writes(self._fujin_sink.ports[-1], 1024, count),
            "ours 1024": lambda: self._writes(plain, 1024, count),
            "log 1024": lambda: self._writes(logged, 1024, count // 2),
            "ours 128": lambda: self._writes(plain, 128, small),
            "quinn batch": lambda: self._batches(self._sink.ports[-1], batches),
            "ours batch": lambda: self._batches(plain, batches),
            "log batch": lambda: self._batches(logged, batches // 2),
        }
        go = self._go_sink
        if go is not None:
            calls["go 1024"] = lambda: self._writes(go.ports[-1], 1024, count)
            calls["go 128"] = lambda: self._writes(go.ports[-1], 128, small)
        self._lost = 0.0
        found = interleaved(calls, self.rounds)
        table = Table("Messages of one quinn client on one stream, until the last answer is there")
        table.add("control: quinn sink, Fujin, 1 KiB", found["quinn 1024"], "messages/s")
        if go is not None:
            table.add("control: quic-go sink, Fujin, 1 KiB", found["go 1024"], "messages/s")
        ours, log = found["ours 1024"], found["log 1024"]
        table.compare(
            "Fujin, 1 KiB, no log; of quinn", ours, "messages/s", found["quinn 1024"], 0.35
        )
        if go is not None:
            table.compare("the same; of quic-go", ours, "messages/s", found["go 1024"], 0.7)
        what = "Fujin, 1 KiB, durable log; of quinn"
        table.compare(what, log, "messages/s", found["quinn 1024"], 0.3)
        if go is not None:
            table.add("control: quic-go sink, Fujin, 128 B", found["go 128"], "messages/s")
            small_rate = found["ours 128"]
            table.compare("Fujin, 128 B, no log", small_rate, "messages/s", found["go 128"], 0.6)
        else:
            table.add("Fujin, 128 B, no log", found["ours 128"], "messages/s")
        table.add(
            "control: quinn sink, Felix, batches of 64 x 1 KiB", found["quinn batch"], "messages/s"
        )
        batch = found["ours batch"]
        table.compare("Felix, no log", batch, "messages/s", found["quinn batch"], 0.4)
        batch = found["log batch"]
        table.compare("Felix, durable log", batch, "messages/s", found["quinn batch"], 0.3)
        table.rows.append(_at_most("packets of clients to us that were lost", self._lost, 0))
        return table

    def _writes(self, port: int, size: int, count: int) -> float:
        return self._rate(port, self._load(port, "writes", size, count, TOPIC))

    def _batches(self, port: int, count: int) -> float:
        return self._rate(port, self._load(port, "batches", 64, 1024, count))

    def _rate(self, port: int, found: list[float]) -> float:
        """Messages for a second; packets that were lost on their way to us are counted."""
        if port in (self._ours.ports[2], self._server.ports["udp"]):
            self._lost += found[-1]
        return found[1]

    # --- one at a time ----------------------------------------------------------------------------

    def round_trips(self) -> Table:
        count = self._size(20_000)
        found = interleaved(
            {
                "control": lambda: self._load(self._sink.ports[-1], "latency", count)[0],
                "ours": lambda: self._load(self._bare, "latency", count)[0],
            },
            self.rounds,
        )
        before = self._ours.cpu_s()
        self._load(self._bare, "latency", count)
        cpu_us = (self._ours.cpu_s() - before) / count * 1e6
        before = self._sink.cpu_s()
        self._load(self._sink.ports[-1], "latency", count)
        control_us = (self._sink.cpu_s() - before) / count * 1e6
        table = Table(f"QUIC, 64 bytes there and back, p50 of {count}, a quinn client")
        table.add("control: quinn", found["control"], "us")
        table.at_most("sessions on our streams", found["ours"], "us", found["control"], 1.3)
        table.add("CPU of the server for each, quinn", control_us, "us")
        table.add("CPU of the server for each, ours", cpu_us, "us")
        return table

    def delivery(self) -> Table:
        """From a publish to its event, on a server that has nothing else to do."""
        count = self._size(4_000)
        peers.unpin(self._server.pid)
        found: dict[str, list[float]] = {}
        for _ in range(self.rounds):
            for name, pause_s in (("busy", 0.0), ("idle", DELIVERY_PAUSE_S)):
                echo_us = self._echo_us(count, pause_s)
                flush_us = self._flush_us(pause_s)
                found.setdefault(f"{name} echo", []).append(echo_us)
                found.setdefault(f"{name} flush", []).append(flush_us)
                found.setdefault(f"{name} limit", []).append(2 * echo_us + flush_us)
            taken_us = self._load(self._server.ports["udp"], "delivery", count)[0]
            found.setdefault("taken", []).append(taken_us)
        table = Table(f"Felix, publish to event, p50 of {count}, log with one flush for each")
        for name, how in (
            ("busy", "one after the other"),
            ("idle", "with the pause of deliveries"),
        ):
            table.add(
                f"control: a bare QUIC echo, ours, {how}", median(found[f"{name} echo"]), "us"
            )
            table.add(f"control: one fdatasync, {how}", median(found[f"{name} flush"]), "us")
        taken = median(found["taken"])
        table.at_most(
            "publish to event, of two echoes and one fdatasync",
            taken,
            "us",
            median(found["busy limit"]),
            1.0,
        )
        idle = median(found["idle limit"])
        table.rows.append(Row("the same, of those with the pause", taken, "us", taken / idle))
        return table

    def _echo_us(self, count: int, pause_s: float) -> float:
        """With a pause a quarter as many: they take long."""
        rounds = count // 4 if pause_s else count
        return self._load(self._bare, "latency", rounds, int(pause_s * 1e6))[0]

    def _flush_us(self, pause_s: float) -> float:
        return median(flush_times(self._directory / "flushed", STORED_BYTES, 500, pause_s)) * 1e6

    # --- out of the server ------------------------------------------------------------------------

    def events(self) -> Table:
        """Ten subscribers get everything; the control pushes as many bytes over as many connections."""
        batches = self._size(1_000)
        udp = self._server.ports["udp"]
        sums: list[float] = []
        bare: list[float] = []
        for _ in range(self.rounds):
            each, rate, _ = self._load(udp, "events", SUBSCRIBERS, 1024, batches)
            sums.append(rate)
            bare.append(self._load(self._bare, "pull", int(each), SUBSCRIBERS)[0])
        table = Table(f"Events of 1 KiB for {SUBSCRIBERS} quinn clients, bytes in sum")
        table.add("control: a bare push of as many bytes", median(bare), "MB/s")
        table.compare("Felix events, durable log", median(sums), "MB/s", median(bare), 0.7)
        return table

    def cache(self) -> Table:
        count = self._size(200_000)
        udp = self._server.ports["udp"]
        gets: list[float] = []
        bare: list[float] = []
        for _ in range(self.rounds):
            rate, request, answer = self._load(udp, "cache", WINDOW, VALUE_BYTES, count)
            gets.append(rate)
            words = ("ask", int(request), int(answer), WINDOW, count)
            bare.append(self._load(self._bare, *words)[0])
        table = Table(f"Felix cache, {WINDOW} gets under way, values of {VALUE_BYTES} bytes")
        table.add("control: bare requests and answers of these sizes", median(bare), "answers/s")
        table.compare("cache_get", median(gets), "answers/s", median(bare), 0.6)
        return table

    # --- beside others ----------------------------------------------------------------------------

    def beside_tcp(self) -> Table:
        """What QUIC at full speed does to a TCP connection of the same event loop."""
        tcp = self._ours.ports[1]
        table = Table("TCP echo of 64 bytes while QUIC is saturated on the same event loop")
        idle = python_load("tcp", tcp, "1")
        table.add("control: QUIC idle, p50", idle[0], "us")
        table.add("control: QUIC idle, p99", idle[1], "us")
        for what, words in (("in", ("send", 100_000)), ("out", ("pull", 10**11))):
            before = self._ours.cpu_s()
            sending = peers.begin([self._quinn, f"127.0.0.1:{self._bare}", *map(str, words)])
            try:
                busy = python_load("tcp", tcp, "0.5" if self.quick else "3")
            finally:
                sending.kill()
                sending.wait()
            used = (self._ours.cpu_s() - before) / (0.5 if self.quick else 3)
            table.add(f"QUIC {what}, CPU of the server while it lasts", used, "CPUs")
            table.add(f"QUIC {what}, p50", busy[0], "us")
            table.at_most(f"QUIC {what}, p99", busy[1], "us", 20_000, 1.0)
        return table

    def quic_go_clients(self, program: str) -> Table:
        """Fujin's Go clients have an empty connection id: aioquic serves them. No bar."""
        count = self._size(40_000)
        udp = self._ours.ports[2]
        go = self._go_sink
        assert go is not None
        rate = median(
            [
                quic_go_load(program, udp, "writes", 1024, count, TOPIC)[1]
                for _ in range(self.rounds)
            ]
        )
        sink = median(
            [
                quic_go_load(program, go.ports[-1], "writes", 1024, count, TOPIC)[1]
                for _ in range(self.rounds)
            ]
        )
        table = Table("Fujin, 1 KiB, no log, from a quic-go client: aioquic's path, no target")
        table.add("control: quic-go sink", sink, "messages/s")
        table.compare("ours", rate, "messages/s", sink, 0)
        megabytes = self._size(100)
        for what, words in (("in", ("send", megabytes)), ("out", ("pull", megabytes * 10**6))):
            found = quic_go_load(program, self._bare, *words)
            table.add(f"one stream {what}", found[0], "MB/s")
        found = quic_go_load(program, self._bare, "latency", self._size(4_000))
        table.add("64 bytes there and back, p50", found[0], "us")
        return table


def _at_most(what: str, value: float, most: float) -> Row:
    return Row(what, value, "packets", None, f"<= {most:g}", value <= most)


def _penstock(data: Path) -> AbstractContextManager[servers.Process]:
    """With both protocols on one port, streams and topics made by who names them first."""
    return servers.penstock(
        data, "felix.auto_create=true", "fujin.auto_create=true", udp=servers.FREE_PORT
    )


# --- without cargo --------------------------------------------------------------------------------


def _without_quinn(quick: bool) -> Iterator[Table]:
    """The control is the library's own server; no target of quic.md can be compared."""
    rounds, megabytes, turns = (1, 4, 200) if quick else (3, 200, 5_000)
    with ExitStack() as stack:
        ours = stack.enter_context(peers.running(peers.ours())).ports
        control = stack.enter_context(peers.running(peers.qh3_server())).ports[-1]
        found = interleaved(
            {
                "control": lambda: python_load("send", control, megabytes)[0],
                "ours": lambda: python_load("send", ours[0], megabytes)[0],
                "fujin": lambda: python_load("writes", ours[2], megabytes * 1000)[0],
            },
            rounds,
        )
        table = Table(f"QUIC, one stream of {megabytes} MB in, a client on qh3's core")
        table.add("control: qh3's own server", found["control"], "MB/s")
        table.compare("sessions on our streams", found["ours"], "MB/s", found["control"], 1.0)
        table.compare(
            "Fujin, 1 KiB, no log; of our stream", found["fujin"], "MB/s", found["ours"], 0
        )
        yield table
        echoes = interleaved(
            {
                "control": lambda: python_load("latency", control, turns)[0],
                "ours": lambda: python_load("latency", ours[0], turns)[0],
            },
            rounds,
        )
        table = Table(f"QUIC, 64 bytes there and back, p50 of {turns}, a client on qh3's core")
        table.add("control: qh3's own server", echoes["control"], "us")
        table.at_most("sessions on our streams", echoes["ours"], "us", echoes["control"], 1.3)
        yield table
