"""FlyMQ over real sockets: requests that wait, produce, fetch, delayed messages, transactions, schemas.

The load comes from this process, the servers are processes of their own; all on the loopback interface.
One connection, pipelined, values of 50 to 150 random bytes, durability `ack`. The control row is
benchmarks/broker_control.py. How to read the tables: benchmarks/README.md.
"""

import json
import os
import random
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.request import Request, urlopen

from benchmarks import broker_servers as servers
from benchmarks import flymq_delayed as delayed
from benchmarks import flymq_disk as disk
from benchmarks import flymq_load as load
from benchmarks import flymq_transactions as transactions
from benchmarks import request
from benchmarks.broker_blipmq import KEY, Publisher, publish_rate
from benchmarks.broker_found import UNIT, Call, Found
from benchmarks.broker_load import TIMEOUT_S, Watermark, connect, make_messages
from benchmarks.log import GIB, scratch
from benchmarks.request_spoken import FLYMQ
from benchmarks.table import Row, Table, median
from penstock.wire.flymq import administration as a
from penstock.wire.flymq.opcodes import encode_request
from penstock.wire.flymq.produce import PRODUCE_WITH_TTL

HOUR_MS = 3_600_000
PENDING = 10_000_000
MOST_MIB = 150.0
MOST_LATE_MS = 50.0
BOUND = "bound"
# Of 20,000 messages: ten times the memory for recent batches.
OLD_ROUNDS = 280
# A flat object of ten fields, about 190 bytes.
SCHEMA = {
    "type": "object",
    "required": ["id", "name", "active", "amount"],
    "properties": {
        "id": {"type": "integer", "minimum": 0},
        "name": {"type": "string", "minLength": 1, "maxLength": 64},
        "active": {"type": "boolean"},
        "amount": {"type": "number"},
        "currency": {"type": "string", "enum": ["EUR", "USD", "CHF"]},
        "country": {"type": "string", "pattern": "^[A-Z]{2}$"},
        "count": {"type": "integer", "minimum": 1, "maximum": 1000},
        "email": {"type": "string"},
        "note": {"type": ["string", "null"]},
        "score": {"type": "number", "minimum": 0, "maximum": 1},
    },
    "additionalProperties": False,
}


def make_objects(count: int) -> list[bytes]:
    chance = random.Random(5)
    return [
        json.dumps(
            {
                "id": number,
                "name": f"customer {chance.randrange(10**6)}",
                "active": chance.random() < 0.5,
                "amount": round(chance.uniform(0, 1_000), 2),
                "currency": chance.choice(["EUR", "USD", "CHF"]),
                "country": chance.choice(["DE", "FR", "CH"]),
                "count": chance.randint(1, 1_000),
                "email": f"c{chance.randrange(10**6)}@example.org",
                "note": None if chance.random() < 0.5 else "as agreed",
                "score": round(chance.random(), 3),
            },
            separators=(",", ":"),
        ).encode()
        for number in range(count)
    ]


class Bench:
    def __init__(self, directory: Path, server: servers.Process, bare: servers.Process) -> None:
        self.directory = directory
        self.server = server
        self.port = server.ports["tcp"]
        self.bare = bare
        self.watermark = Watermark(self.port)

    def control(self, rounds: int) -> Call:
        publisher = Publisher(self.bare.ports["control"], "bench", 1, with_login=False)
        return lambda: publish_rate(publisher, rounds, None)

    def produce(
        self, topic: str, rounds: int, limit_s: float, messages: list[bytes] | None = None
    ) -> Call:
        requests = load.produce_requests(topic, messages)
        return lambda: load.produce_rate(self.port, topic, requests, rounds, limit_s)

    def expiring(self, topic: str, rounds: int, limit_s: float) -> Call:
        requests = load.in_parts(
            [
                encode_request(PRODUCE_WITH_TTL, a.ProduceWithTtl(topic, message, HOUR_MS))
                for message in make_messages()
            ]
        )
        return lambda: load.produce_rate(
            self.port, topic, requests, rounds, limit_s, PRODUCE_WITH_TTL
        )

    def delay(self, topic: str, count: int, limit_s: float) -> Call:
        requests = delayed.requests(topic, delayed.any_delays())
        return lambda: delayed.produce_rate(self.port, topic, requests, count, limit_s)

    def fetch(self, topic: str, limit_s: float, *, binary: bool) -> Call:
        return lambda: load.fetch_rate(self.port, topic, self.watermark, limit_s, binary=binary)

    def fill(self, topic: str, rounds: int) -> None:
        """Far more than the memory for recent batches holds: a FETCH from its start reads files."""
        self.produce(topic, rounds, 60.0)()
        self.watermark.close()  # it has said nothing: the server has closed it, or is about to
        self.watermark = Watermark(self.port)
        self.watermark.of(topic)

    def bind(self, topic: str) -> None:
        definition = json.dumps(SCHEMA)
        self._call("POST", "schemas", {"name": topic, "type": "json", "definition": definition})
        self._call("POST", "topics", {"name": topic, "settings": {"schema": topic}})

    def _call(self, method: str, path: str, body: object) -> None:
        request = Request(
            f"http://127.0.0.1:{self.server.ports['http']}/api/v1/{path}",
            json.dumps(body).encode(),
            {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
            method=method,
        )
        with urlopen(request, timeout=TIMEOUT_S) as answer:
            answer.read()


# Tables of a run, in this order.
PARTS = ("waiting", "rates", "schema", "transaction", "lateness", "pending")


def tables(quick: bool, parts: Collection[str] = PARTS) -> Iterator[Table]:
    with scratch(12 * GIB) as directory:
        servers.touch_memory((1 if quick else 6) * GIB)
        if "waiting" in parts:
            with ExitStack() as stack:
                waiting = request.Bench(stack, directory / "waiting", quick, FLYMQ)
                yield request.lone_table(waiting)
                yield request.window_table(waiting)
        with (
            servers.control(directory / "control") as bare,
            servers.penstock(directory / "data") as server,
        ):
            bench = Bench(directory, server, bare)
            made: dict[str, Callable[[], Table]] = {
                "rates": lambda: rates_table(bench, quick),
                "schema": lambda: schema_table(bench, quick),
                "transaction": lambda: transaction_table(bench.port, 10 if quick else 40),
                "lateness": lambda: lateness_table(bench, quick),
            }
            for name in PARTS:
                if name in parts and name in made:
                    yield made[name]()
            bench.watermark.close()
        if "pending" in parts:
            with (
                servers.penstock(directory / "pending") as server,
                servers.penstock(directory / "none-pending") as control,
            ):
                yield pending_table(server, control, quick)


def rates_table(bench: Bench, quick: bool) -> Table:
    rounds, limit_s = (2, 0.5) if quick else (10, 2.0)
    bench.fill("old", 20 if quick else OLD_ROUNDS)
    found = Found(
        {
            "control": bench.control(rounds),
            "produce": bench.produce("flymq", rounds, limit_s),
            "fetch": bench.fetch("flymq", limit_s, binary=False),
            "binary": bench.fetch("flymq", limit_s, binary=True),
            "old": bench.fetch("old", limit_s, binary=False),
            "old binary": bench.fetch("old", limit_s, binary=True),
            "ttl": bench.expiring("ttl", rounds, limit_s),
            "delayed": bench.delay("later", rounds * 10_000, limit_s),
        },
        2 if quick else 5,
        8.0 if quick else 60.0,
    )
    table = Table("FlyMQ, one connection, 100-byte values, durability ack")
    table.add("control: split, join, checksum, writev", found["control"], UNIT)
    table.rows += [
        found.row_at_least(what, name, "control", least)
        for name, what, least in (
            ("produce", f"PRODUCE, {load.WINDOW:,} under way", 400_000),
            ("fetch", f"FETCH, {load.FETCHED:,} each", 2_500_000),
            ("binary", f"FETCH_BINARY, {load.FETCHED:,} each", 2_500_000),
            ("old", "FETCH from files, ten times the cache", 2_500_000),
            ("old binary", "FETCH_BINARY from files", 2_500_000),
            ("delayed", f"PRODUCE_DELAYED, {load.WINDOW:,} under way", 50_000),
        )
    ]
    table.rows.append(found.row("PRODUCE_WITH_TTL, as many", "ttl", "control"))
    return table


def schema_table(bench: Bench, quick: bool) -> Table:
    rounds, limit_s = (2, 0.5) if quick else (10, 2.0)
    objects = make_objects(20_000)
    bench.bind(BOUND)
    found = Found(
        {
            "free": bench.produce("free", rounds, limit_s, objects),
            "bound": bench.produce(BOUND, rounds, limit_s, objects),
        },
        2 if quick else 5,
        60.0,
    )
    size = sum(map(len, objects)) // len(objects)
    table = Table(f"FlyMQ PRODUCE of flat JSON objects, ten fields, {size} bytes")
    table.add("control: to a topic without a schema", found["free"], UNIT)
    table.rows.append(
        found.row_at_least("to a topic bound to a JSON Schema", "bound", "free", 200_000)
    )
    return table


def transaction_table(port: int, rounds: int) -> Table:
    count, parts = transactions.MESSAGES, len(transactions.TOPICS)
    table = Table(f"FlyMQ, {count:,} messages of 100 bytes over {parts} partitions, durability ack")
    found = transactions.measure(port, rounds)
    table.add("control: PRODUCE, pipelined, until all durable", found.plain_ms, "ms")
    ratio = found.transaction_ms / found.plain_ms
    most = transactions.MOST_MORE_MS
    table.rows.append(
        Row(
            f"in a transaction: {found.more_ms:.1f} ms more",
            found.transaction_ms,
            "ms",
            ratio,
            f"< {most:g} ms more",
            found.more_ms < most,
        )
    )
    return table


def lateness_table(bench: Bench, quick: bool) -> Table:
    with connect(bench.port) as connection:
        for topic in ("late", "late.load"):
            delayed.is_there(connection, topic)
    os.sync()  # what the tables before have written is not to be flushed meanwhile
    seconds = 3.0 if quick else 10.0
    with disk.watched(bench.directory / "flushes", seconds) as flushes:
        found = delayed.LateWatch(bench.port, "late").run(seconds)
    table = Table(
        f"Delayed messages, {delayed.DELAYED_PER_S:,} a second taken and delivered, beside"
        f" {delayed.ORDINARY_PER_S:,} ordinary ones"
    )
    p50_ms, p99_ms, longest_ms = flushes
    table.add("control: 4 KiB and fdatasync, median", p50_ms, "ms")
    table.add("  p99", p99_ms, "ms")
    table.add("  the longest", longest_ms, "ms")
    table.add("later than due: median", found.p50_ms, "ms")
    most = MOST_LATE_MS
    reached = found.p99_ms <= most
    table.rows.append(Row("  p99", found.p99_ms, "ms", None, f"<= {most:g}", reached))
    table.add("  the latest of all", found.greatest_ms, "ms")
    return table


def pending_table(server: servers.Process, control: servers.Process, quick: bool) -> Table:
    """The memory for recent batches is filled first: ordinary messages fill it as well. The control is a
    server that holds none, in turns with the one that holds them: by then both meet the same disk, and the
    same memory of the machine, which gigabytes have gone through."""
    port, pending = server.ports["tcp"], 200_000 if quick else PENDING
    requests = load.produce_requests("ordinary")

    def ordinary(one: servers.Process) -> float:
        return load.produce_rate(one.ports["tcp"], "ordinary", requests, 10, 2.0)

    for _ in range(2 if quick else 7):
        ordinary(control)
        ordinary(server)
    before_bytes = server.resident_bytes()
    sent = delayed.requests("later", delayed.any_delays())
    rate = delayed.produce_rate(port, "later", sent, pending, 600.0)
    growth_mib = delayed.resident_growth(server, before_bytes)
    os.sync()  # they lie still: the disk is not to be busy with their writing
    turns = [(ordinary(control), ordinary(server)) for _ in range(2 if quick else 9)]
    without = median([bare for bare, _ in turns])
    beside = median([ours for _, ours in turns])
    table = Table(f"{pending:,} delayed messages pending, due in 1 to 20 hours")
    table.add("control: PRODUCE without them", without, UNIT)
    table.compare("PRODUCE beside them", beside, UNIT, without, 0.9)
    table.add("PRODUCE_DELAYED of all of them", rate, UNIT)
    reached = growth_mib <= MOST_MIB
    row = Row("resident memory grew by", growth_mib, "MiB", None, f"<= {MOST_MIB:g}", reached)
    table.rows.append(row)
    return table
