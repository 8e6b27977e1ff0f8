"""Callers that append one record at a time and wait until it is durable: threads, and tasks."""

import asyncio
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from penstock.log.batch.format import encode_values
from penstock.log.embedded import EmbeddedEngine

CALLERS = 64
TOPIC = "bench"
VALUE = bytes(range(100))


@dataclass(frozen=True, slots=True)
class Flushed:
    records: int
    flushes: int
    seconds: float


def thread_callers(path: Path, each: int) -> Flushed:
    engine = EmbeddedEngine(str(path))
    engine.create_topic(TOPIC)
    engine.append(TOPIC, 0, encode_values([VALUE], 0)).result()
    counters = engine.catalogue.partition(TOPIC, 0).counters
    before = counters.flushes

    def call() -> None:
        for _ in range(each):
            engine.append(TOPIC, 0, encode_values([VALUE], 0)).result()

    threads = [threading.Thread(target=call) for _ in range(CALLERS)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - begin
    engine.close()
    return Flushed(CALLERS * each, counters.flushes - before, took)


def asyncio_callers(path: Path, each: int) -> Flushed:
    async def main() -> Flushed:
        post = asyncio.get_running_loop().call_soon_threadsafe
        engine = EmbeddedEngine(str(path), post=post)
        engine.create_topic(TOPIC)
        await engine.append(TOPIC, 0, encode_values([VALUE], 0))
        counters = engine.catalogue.partition(TOPIC, 0).counters
        before = counters.flushes

        async def call() -> None:
            for _ in range(each):
                await engine.append(TOPIC, 0, encode_values([VALUE], 0))

        begin = time.perf_counter()
        await asyncio.gather(*(call() for _ in range(CALLERS)))
        took = time.perf_counter() - begin
        engine.close()
        return Flushed(CALLERS * each, counters.flushes - before, took)

    return asyncio.run(main())
