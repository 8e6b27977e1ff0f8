"""Kafka as the engine: publishes, fetches and lone requests through gateways, beside librdkafka called
bare.

One Kafka, one broker, on this machine; the load comes from this process, gateways are processes of their
own. 100-byte values, durability `ack` (acks=all, idempotent). What is fetched is fetched through a
gateway that did not write it, from the start of the topic: its memory is smaller than the topic. A gateway
that is told to note the protocol gives each record a header. How to read the tables: benchmarks/README.md.
"""

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import broker_rustlog as rustlog
from benchmarks import broker_servers as servers
from benchmarks import flymq_load as flymq
from benchmarks.broker_blipmq import Publisher, barrier, login, publish_rate
from benchmarks.broker_found import UNIT, Found
from benchmarks.broker_load import Watermark, connect, make_messages
from benchmarks.kafka_server import Missing, kafka
from benchmarks.log import GIB, scratch
from benchmarks.table import Row, Table, median
from penstock.wire.blipmq import frames as wire

BATCH = 10_000
HEADERS: list[tuple[str, str | bytes | None]] = [("origin", b"bench")]
# So small that a topic of a second run does not stay in it.
CACHE = "log.cache_bytes=16 MiB"
MOST_MORE_MS = 1.0
TIMEOUT_S = 60.0

# Two gateways need a core each, and so do broker and generator.
CORES_FOR_TWO = 5
LEAST_GAIN = 1.6
MODELLED = (2, 8, 64)

PARTS = ("rates", "lone", "gateways")


class Bare:
    """librdkafka from Python, as its documents show it."""

    def __init__(self, address: str) -> None:
        from confluent_kafka import Producer

        self._address = address
        self._messages = make_messages(BATCH)
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "linger.ms": 0,
                "queue.buffering.max.messages": 2_000_000,
                "log_level": 0,
            }
        )

    def produce_batch(self, topic: str, rounds: int) -> float:
        # `produce_batch` notes errors in the dictionaries: they are made anew, as a program would.
        begin = time.perf_counter()
        for _ in range(rounds):
            batch: list[dict[str, Any]] = [{"value": value} for value in self._messages]
            self._producer.produce_batch(topic, batch, partition=0)
            self._producer.poll(0)
        self._flush()
        return rounds * BATCH / (time.perf_counter() - begin)

    def produce(self, topic: str, rounds: int) -> float:
        begin = time.perf_counter()
        for _ in range(rounds):
            for value in self._messages:
                self._producer.produce(topic, value, partition=0, headers=HEADERS)
            self._producer.poll(0)
        self._flush()
        return rounds * BATCH / (time.perf_counter() - begin)

    def _flush(self) -> None:
        if self._producer.flush(TIMEOUT_S):
            raise TimeoutError("Kafka has not taken all messages")

    def consume(self, topic: str, limit_s: float) -> float:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {"bootstrap.servers": self._address, "group.id": "bare", "log_level": 0}
        )
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), TIMEOUT_S)
        consumer.assign([TopicPartition(topic, 0, 0)])
        taken = 0
        begin = time.perf_counter()
        while taken < end and time.perf_counter() - begin < limit_s:
            taken += len(consumer.consume(BATCH, 0.5))
        took_s = time.perf_counter() - begin
        consumer.close()
        return taken / took_s

    def lone_ms(self, topic: str, count: int) -> list[float]:
        """One at a time, until its report is there."""
        times = []
        for value in self._messages[:count]:
            begin = time.perf_counter()
            self._producer.produce(topic, value, partition=0, on_delivery=lambda *_: None)
            self._flush()
            times.append((time.perf_counter() - begin) * 1000)
        return times


class Bench:
    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self.kafka = stack.enter_context(kafka(directory / "kafka"))
        address = f"127.0.0.1:{self.kafka.ports['kafka']}"
        settings = ("server.engine=kafka", f"kafka.bootstrap={address}", CACHE)
        more = {"one": (), "two": (), "noting": ("kafka.origin=true",)}
        self.one, self.two, self.noting = (
            stack.enter_context(servers.penstock(directory / name, *settings, *given))
            for name, given in more.items()
        )
        self.bare = Bare(address)

    def fill(self, rounds: int) -> None:
        """Topics that are there, and one to fetch."""
        publisher = Publisher(self.one.ports["tcp"], "fetched", 1)
        publisher.publish(rounds)
        publisher.connection.close()
        for topic in ("blipmq", "bare", "headers", "lone", "first", "second"):
            rustlog.create_topic(self.one.ports["tcp"], topic)
        rustlog.create_topic(self.noting.ports["tcp"], "noted")


def tables(quick: bool, parts: Collection[str] = PARTS) -> Iterator[Table]:
    with scratch(6 * GIB) as directory, ExitStack() as stack:
        try:
            bench = Bench(stack, directory)
        except Missing as missing:
            print(f"kafka: left out: {missing}")
            return
        bench.fill(3 if quick else 40)
        made: dict[str, Callable[[Bench, bool], Table]] = {
            "rates": rates_table,
            "lone": lone_table,
            "gateways": gateways_table,
        }
        for name in PARTS:
            if name in parts:
                yield made[name](bench, quick)


def rates_table(bench: Bench, quick: bool) -> Table:
    rounds, limit_s = (2, 1.0) if quick else (15, 3.0)
    publisher = Publisher(bench.one.ports["tcp"], "blipmq", 1)
    noted = Publisher(bench.noting.ports["tcp"], "noted", 1)
    watermark = Watermark(bench.two.ports["tcp"])
    watermark.wait("fetched", 1)
    port = bench.two.ports["tcp"]
    found = Found(
        {
            "batch": lambda: bench.bare.produce_batch("bare", 2 * rounds),
            "blipmq": lambda: publish_rate(publisher, rounds, None),
            "headers": lambda: bench.bare.produce("headers", 2 * rounds),
            "noted": lambda: publish_rate(noted, rounds, None),
            "consume": lambda: bench.bare.consume("fetched", limit_s),
            "flymq": lambda: flymq.fetch_rate(port, "fetched", watermark, limit_s, binary=False),
            "rustlog": lambda: rustlog.fetch_rate(port, "fetched", watermark, limit_s),
        },
        2 if quick else 5,
        120.0,
    )
    publisher.connection.close()
    noted.connection.close()
    watermark.close()
    table = Table("Kafka as the engine, one broker, 100-byte values, acks=all")
    table.add("control: produce_batch of 10,000, bare", found["batch"], UNIT)
    table.rows.append(found.row("BlipMQ QoS 1, in bursts", "blipmq", "batch", 0.7))
    table.add("control: produce with a header, bare", found["headers"], UNIT)
    table.rows.append(found.row("BlipMQ QoS 1, a header each", "noted", "headers", 0.7))
    table.add("control: consume of 10,000, bare", found["consume"], UNIT)
    table.rows.append(found.row("FlyMQ FETCH, another gateway", "flymq", "consume", 0.7))
    table.rows.append(found.row("RustLog FETCH, another gateway", "rustlog", "consume", 0.7))
    return table


def lone_table(bench: Bench, quick: bool) -> Table:
    count = 100 if quick else 1_000
    bare, ours = [], []
    value = make_messages(1)[0]
    with login(connect(bench.one.ports["tcp"])) as connection:
        for _ in range(1 if quick else 3):
            bare += bench.bare.lone_ms("lone", count)
            for number in range(1, count + 1):
                begin = time.perf_counter()
                connection.sendall(wire.encode_publish(number, b"lone", 1, value))
                barrier(connection, number)
                ours.append((time.perf_counter() - begin) * 1000)
    table = Table("Kafka as the engine, one request at a time")
    table.add("control: produce and its report, bare, p50", median(bare), "ms")
    more_ms = median(ours) - median(bare)
    target = f"< {MOST_MORE_MS:g} ms more"
    what = f"BlipMQ PUBLISH and PING, p50: {more_ms:.2f} ms more"
    ratio = median(ours) / median(bare)
    table.rows.append(Row(what, median(ours), "ms", ratio, target, more_ms < MOST_MORE_MS))
    return table


# --- several gateways -------------------------------------------------------------------------------


def gateways_table(bench: Bench, quick: bool) -> Table:
    """One and two gateways, and what more of them would give where each has a core of its own."""
    rounds = 2 if quick else 15
    first = Publisher(bench.one.ports["tcp"], "first", 1)
    second = Publisher(bench.two.ports["tcp"], "second", 1)
    costs_us: dict[str, list[float]] = {"gateway": [], "broker": []}

    def alone() -> float:
        before = bench.one.schedule()[0], bench.kafka.schedule()[0]
        sent = first.sent
        rate = publish_rate(first, rounds, None)
        after = bench.one.schedule()[0], bench.kafka.schedule()[0]
        for name, begin_s, end_s in zip(costs_us, before, after, strict=True):
            costs_us[name].append((end_s - begin_s) * 1e6 / (first.sent - sent))
        return rate

    def together() -> float:
        sent = first.sent + second.sent
        begin = time.perf_counter()
        threads = [threading.Thread(target=one.publish, args=[rounds]) for one in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return (first.sent + second.sent - sent) / (time.perf_counter() - begin)

    found = Found({"one": alone, "two": together}, 2 if quick else 5, 120.0)
    for publisher in (first, second):
        publisher.connection.close()
    table = Table("Kafka as the engine, several gateways, BlipMQ QoS 1 in bursts")
    table.add("control: one gateway", found["one"], UNIT)
    cores = os.cpu_count() or 1
    least = LEAST_GAIN if cores >= CORES_FOR_TWO else 0
    table.rows.append(found.row(f"two gateways, {cores} cores for all", "two", "one", least))
    gateway_us, broker_us = (median(costs_us[name]) for name in ("gateway", "broker"))
    table.add("CPU of the gateway for a message", gateway_us, "us")
    table.add("CPU of the broker for a message", broker_us, "us")
    for count in MODELLED:
        needed = count * broker_us / gateway_us
        what = f"model: {count} gateways of a core each; brokers need {needed:.1f} cores"
        table.rows.append(Row(what, count * 1e6 / gateway_us, UNIT, float(count)))
    return table
