"""Encryption at rest: append, read and rewrite of an encrypted topic, beside the same topic without it.

Values of 100 bytes, 1,000 to a batch, one engine each in one process, in turns. The control row of each
pair is the plain topic.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.table import Table, interleaved
from penstock.log.batch.format import Batch, encode_values
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.engine import AppendToken, Keys
from penstock.log.settings import TopicSettings

VALUES: Final = [number.to_bytes(4, "big") * 25 for number in range(1000)]
TOPIC: Final = "bench"
KEYS: Final = Keys({1: b"1" * 32, 2: b"2" * 32}, 1)
# Appends that wait at the same time, as in the rest of the suite.
WINDOW: Final = 64

Read = Callable[[EmbeddedEngine, int], tuple[int, int, float]]


def opened(path: Path, durability: str, *, encryption: bool) -> EmbeddedEngine:
    engine = EmbeddedEngine(str(path), EngineOptions(cache_bytes=0, keys=KEYS))
    settings = TopicSettings(durability=durability, encryption=encryption, retention_ms=0)
    engine.create_topic(TOPIC, 1, settings)
    engine.append(TOPIC, 0, _batch()).result()
    return engine


def _batch() -> Batch:
    return encode_values(VALUES, 0)


def _append(engine: EmbeddedEngine, batches: int) -> float:
    """Records a second."""
    tokens: list[AppendToken] = []
    begin = time.perf_counter()
    for _ in range(batches):
        if len(tokens) >= WINDOW:
            tokens.pop(0).result()
        tokens.append(engine.append(TOPIC, 0, _batch()))
    for token in tokens:
        token.result()
    return batches * len(VALUES) / (time.perf_counter() - begin)


def _lone(engine: EmbeddedEngine, appends: int) -> float:
    """Microseconds of one record that is waited for, without a flush: what the path itself costs."""
    batch = [b"x" * 100]
    begin = time.perf_counter()
    for _ in range(appends):
        engine.append(TOPIC, 0, encode_values(batch, 0)).result()
    return (time.perf_counter() - begin) / appends * 1e6


def encryption_table(quick: bool, directory: Path, read: Read) -> Table:
    batches, lone, rounds = (100, 500, 3) if quick else (1000, 5000, 5)
    table = Table("Encrypted against plain, values of 100 bytes")
    engines = {
        (durability, encryption): opened(
            directory / f"{durability}-{encryption}", durability, encryption=encryption
        )
        for durability in ("none", "ack")
        for encryption in (False, True)
    }
    unit = "M records/s"
    for durability in ("none", "ack"):
        plain, sealed = engines[durability, False], engines[durability, True]
        found = interleaved(
            {
                "plain": lambda one=plain: _append(one, batches) / 1e6,  # type: ignore[misc]  # bound now
                "sealed": lambda one=sealed: _append(one, batches) / 1e6,  # type: ignore[misc]  # as above
            },
            rounds,
        )
        table.add(f"control: append, durability {durability}, plain", found["plain"], unit)
        what = f"append, durability {durability}, encrypted"
        table.compare(what, found["sealed"], unit, found["plain"], 0)
    plain, sealed = engines["none", False], engines["none", True]
    found = interleaved(
        {"plain": lambda: _lone(plain, lone), "sealed": lambda: _lone(sealed, lone)}, rounds
    )
    table.add("control: one record, written and waited for, plain", found["plain"], "us")
    table.compare("one record, encrypted", found["sealed"], "us", found["plain"], 0)
    found = interleaved(
        {"plain": lambda: _read(plain, read), "sealed": lambda: _read(sealed, read)}, rounds
    )
    table.add("control: read to Arrow from the page cache, plain", found["plain"], unit)
    table.compare("read to Arrow, encrypted", found["sealed"], unit, found["plain"], 0)
    table.add("encrypt anew with another key", _rewrite(sealed), "MB/s")
    for engine in engines.values():
        engine.close()
    return table


def _read(engine: EmbeddedEngine, read: Read) -> float:
    records, _, took = read(engine, 0)
    return records / took / 1e6


def _rewrite(engine: EmbeddedEngine) -> float:
    """Reading, decrypting, sealing, writing and one flush for each segment."""
    partition = engine.catalogue.partition(TOPIC, 0)
    size = partition.size_bytes()
    begin = time.perf_counter()
    engine.use_keys(Keys(KEYS.by_id, 2))
    engine.maintain()
    took = time.perf_counter() - begin
    assert partition.key_ids() <= {2}
    return size / took / 1e6
