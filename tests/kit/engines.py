"""Embedded engines for tests: small calls that wait for their outcome, and a busy metadata writer."""

import sqlite3
import threading
from collections.abc import Callable

from kit.limits import HANG_S
from penstock.log.batch.format import Batch, encode_values
from penstock.log.embedded import EmbeddedEngine
from penstock.log.engine import Engine
from penstock.log.settings import TopicSettings

WAIT_S = HANG_S
# Opens the engine on the directory of the test, with the keywords of EmbeddedEngine.
Opener = Callable[..., EmbeddedEngine]


def batch(*values: bytes, time_us: int = 5) -> Batch:
    return encode_values(list(values), time_us)


def put(engine: Engine, topic: str, *values: bytes, partition: int = 0, time_us: int = 5) -> int:
    return engine.append(topic, partition, batch(*values, time_us=time_us)).result(WAIT_S)


def values_of(engine: Engine, topic: str, partition: int = 0, offset: int = 0) -> list[bytes]:
    found: list[bytes] = []
    end = engine.offsets(topic, partition)[1]
    while offset < end:
        result = engine.read(topic, partition, offset, 1 << 20).result(WAIT_S)
        found.extend(value for view in result.views for value in view.values())
        offset = result.next_offset
    return found


def make(engine: EmbeddedEngine, name: str, partitions: int = 1, **settings: object) -> None:
    engine.create_topic(name, partitions, TopicSettings().changed(settings))
    settle(engine)


def settle(engine: EmbeddedEngine) -> None:
    """Waits until the callbacks of all metadata changes so far have run."""
    for _ in range(2):
        engine.metadata.submit(lambda db: None).result(WAIT_S)


def delete(engine: EmbeddedEngine, name: str) -> None:
    engine.delete_topic(name).result(WAIT_S)
    settle(engine)


def change(
    engine: EmbeddedEngine, name: str, partitions: int | None = None, **changes: object
) -> None:
    engine.change_topic(name, changes, partitions).result(WAIT_S)
    settle(engine)


class BusyMetadata:
    """Keeps the metadata writer busy, so that a creation stays pending."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._running = threading.Event()
        self._release = threading.Event()
        self._change = engine.metadata.submit(self._hold)
        assert self._running.wait(WAIT_S)

    def _hold(self, _connection: sqlite3.Connection) -> None:
        self._running.set()
        assert self._release.wait(WAIT_S)

    def release(self) -> None:
        self._release.set()
        self._change.result(WAIT_S)


def embedded(engine: Engine) -> EmbeddedEngine:
    """What stands behind the page, for tests that look there."""
    assert isinstance(engine, EmbeddedEngine)
    return engine


def flushed(engine: EmbeddedEngine, topic: str) -> threading.Event:
    """Set once a record of the topic can be read."""
    event = threading.Event()
    engine.watch(topic, 0, 0, event.set)
    return event
