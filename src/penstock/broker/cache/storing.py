"""The cache with a topic behind it: every put is a record there, and a start reads them back.

The topic is compacted, so it holds the last value of each key. A record's key is the JSON list of scope and
key, its expiry that of the value, and a deletion mark stands for a value that expires at once. A put is
done when its record is durable. Reads wait until a start has read the topic.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.cache.cache import Cache
from penstock.broker.delivery.dead_letters import ITSELF
from penstock.broker.delivery.feed import readable
from penstock.broker.errors import BrokerError, Code
from penstock.broker.records import Records
from penstock.log.batch.builder import BatchBuilder
from penstock.log.batch.view import BatchView
from penstock.log.engine import AppendToken, Pending, ReadResult
from penstock.log.errors import LogError
from penstock.turns import Turn

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

# Of one read while the topic is loaded.
LOAD_BYTES: Final = 1024 * 1024
# Records between two looks at the clock while they are loaded.
LOADED_BETWEEN_LOOKS: Final = 64

_NAMES: Final = msgspec.json.Decoder(tuple[str, str])


class StoredCache:
    """The cache as sessions use it. Without a topic in the options it is memory alone."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self.memory = Cache(lambda: broker.options.cache_bytes, broker.engine.run_us, broker.later)
        self._topic = broker.options.cache_topic
        self._partition = 0
        self._loaded = self._topic == ""
        self._waiting: list[Callable[[], None]] = []
        self._offset = 0
        self._end = 0
        if not self._loaded:
            self._begin()

    # --- what sessions ask for --------------------------------------------------------------------

    def put(
        self, principal: Principal, scope: str, key: str, value: bytes, ttl_ms: int | None
    ) -> AppendToken | None:
        """None: it is done. Raises BrokerError."""
        self._broker.require(principal, Operation.WRITE_CACHE, scope)
        self.memory.check(scope, key, value)
        deadline_us = self.memory.deadline_us(ttl_ms)
        if self._topic == "":
            self.memory.put(scope, key, value, deadline_us)
            return None
        builder = BatchBuilder()
        builder.add(
            value if ttl_ms != 0 else None,  # a deletion mark has no value
            self._broker.clock_us(),
            msgspec.json.encode((scope, key)),
            None,
            self._broker.expiry_us(ttl_ms) if ttl_ms else 0,
        )
        records = Records([], batch=builder.build())
        token = self._broker.publish(ITSELF, self._topic, self._partition, records)
        token.on_done(lambda done: self._written(done, scope, key, value, deadline_us))
        return token

    def _written(
        self, token: AppendToken, scope: str, key: str, value: bytes, deadline_us: int | None
    ) -> None:
        """In the order of the log, which is the order after a restart too."""
        if token.error is None:
            self.memory.put(scope, key, value, deadline_us)

    def get(
        self, principal: Principal, scope: str, key: str, done: Callable[[bytes | None], None]
    ) -> None:
        """Calls back at once, save while the topic is being read."""
        self._broker.require(principal, Operation.READ_CACHE, scope)
        if self._loaded:
            done(self.memory.get(scope, key))
        else:
            self._waiting.append(lambda: done(self.memory.get(scope, key)))

    # --- a start ----------------------------------------------------------------------------------

    def _begin(self) -> None:
        broker = self._broker
        info = broker.engine.topic(self._topic)
        if info is None:
            settings = broker.options.default_settings.changed({"cleanup": "compact"})
            broker.engine.create_topic(self._topic, 1, settings)
        elif info.partitions != 1:
            raise BrokerError(
                Code.INVALID_SETTINGS,
                f"topic {self._topic!r} has {info.partitions} partitions, that of a cache has 1",
            )
        self._offset, self._end = broker.engine.offsets(self._topic, 0)
        broker.later(0.0, self._load)

    def _load(self) -> None:
        if self._offset >= self._end:
            self._loaded = True
            waiting, self._waiting = self._waiting, []
            for go_on in waiting:
                go_on()
            return
        try:
            read = self._broker.engine.read(self._topic, 0, self._offset, LOAD_BYTES)
        except LogError:  # deleted meanwhile: what is read is what there is
            self._offset = self._end
            self._broker.later(0.0, self._load)
            return
        read.on_done(self._read)

    def _read(self, read: Pending[ReadResult]) -> None:
        result = readable(read, self._offset)
        if result is None:
            self._broker.later(1.0, self._load)
            return
        self._offset = max(result.next_offset, self._offset + 1)
        rows = [
            (view, row) for view in result.views for row in range(view.first_row, view.last_row)
        ]
        self._take(rows, 0)

    def _take(self, rows: list[tuple[BatchView, int]], first: int) -> None:
        turn = Turn()
        done = first
        while done < len(rows) and (done % LOADED_BETWEEN_LOOKS or not turn.over()):
            self._load_one(*rows[done])
            done += 1
        self._broker.later(0.0, self._load if done == len(rows) else lambda: self._take(rows, done))

    def _load_one(self, view: BatchView, row: int) -> None:
        key = view.key(row)
        try:
            scope, name = _NAMES.decode(key or b"")
        except msgspec.DecodeError:  # somebody else wrote to the topic
            return
        if view.is_null(row):
            self.memory.delete(scope, name)
            return
        try:
            self.memory.put(scope, name, view.value(row), view.expiry_of(row) or None)
        except BrokerError:  # the cache has become smaller
            self.memory.delete(scope, name)
