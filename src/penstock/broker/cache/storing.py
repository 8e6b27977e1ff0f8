"""The cache with a topic behind it: every put is a record there, and a start reads them back.

The topic is compacted, so it holds the last value of each key. A record's key is the JSON list of scope and
key, its expiry that of the value, and a deletion mark stands for a value that expires at once, was evicted
or has expired: the topic holds what the cache holds. A put is done when its record is durable. Reads wait
until a start has read the topic. Where several processes serve the log, each follows the topic from then on
(following.py), and one of them writes the deletion marks for what has expired or was evicted (marking.py).
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.cache.cache import Cache, Name
from penstock.broker.cache.following import CacheFollowing, deadline_of
from penstock.broker.cache.marking import Stored, add_to
from penstock.broker.delivery.dead_letters import ITSELF
from penstock.broker.delivery.feed import readable
from penstock.broker.errors import BrokerError, Code
from penstock.broker.records import Records
from penstock.errors import PenstockError
from penstock.log.batch.builder import BatchBuilder
from penstock.log.batch.view import BatchView
from penstock.log.engine import AppendToken, Pending, ReadResult
from penstock.log.errors import LogError
from penstock.turns import Turn

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

# Of one read while the topic is loaded.
LOAD_BYTES: Final = 1024 * 1024
# Records, or names, between two looks at the clock.
BETWEEN_LOOKS: Final = 64
# Deletion marks of one append.
MARKS_AT_ONCE: Final = 1_000
# After a read error of the disk: it is not worth asking again sooner.
RETRY_S: Final = 1.0

_NAMES: Final = msgspec.json.Decoder(tuple[str, str])


class StoredCache:
    """The cache as sessions use it. Without a topic in the options it is memory alone."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self.memory = Cache(
            lambda: broker.options.cache_bytes, broker.engine.run_us, broker.later, self._gone
        )
        self._topic = broker.options.cache_topic
        self._partition = 0
        self._loaded = self._topic == ""
        self._waiting: list[Callable[[], None]] = []
        # Puts that are not durable yet, and, while the topic is read, all that came since the start.
        self._writing: dict[Name, int] = {}
        self._newer: set[Name] = set()
        # Names whose deletion marks are not written yet.
        self._marks: deque[Name] = deque()
        self._marking = False
        self._when_marked: list[Pending[object]] = []
        self._offset = 0
        self._end = 0
        self._following: CacheFollowing | None = None
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
        expiry_us = self._broker.expiry_us(ttl_ms) if ttl_ms else 0
        name = (scope, key)
        # A deletion mark has no value.
        stored = Stored(name, value if ttl_ms != 0 else None, deadline_us)
        builder = BatchBuilder()
        if self._following is not None:
            add_to(builder, stored, self._broker.clock_us())
        else:
            time_us = self._broker.clock_us()
            builder.add(stored.value, time_us, msgspec.json.encode(name), None, expiry_us)
        records = Records([], batch=builder.build())
        token = self._broker.publish(ITSELF, self._topic, self._partition, records)
        self._writing[name] = self._writing.get(name, 0) + 1
        token.on_done(lambda done: self._written(done, stored, value))
        return token

    def _written(self, token: AppendToken, stored: Stored, value: bytes) -> None:
        """In the order of the log, which is the order after a restart too."""
        left = self._writing.pop(stored.name) - 1
        if left:
            self._writing[stored.name] = left
        if token.error is not None:
            return
        if self._following is not None:
            self._following.written(token, stored, value)
            return
        if not self._loaded:
            self._newer.add(stored.name)
        self.memory.put(*stored.name, value, stored.deadline_us)

    def get(
        self,
        principal: Principal,
        scope: str,
        keys: list[str],
        first: int = 0,
        most_bytes: int | None = None,
    ) -> list[bytes | None] | None:
        """The values of these keys from the first on, as in Cache.get_some. None while the topic is being
        read: `when_loaded`. Raises BrokerError."""
        self._broker.require(principal, Operation.READ_CACHE, scope)
        return self.memory.get_some(scope, keys, first, most_bytes) if self._loaded else None

    def when_loaded(self, call: Callable[[None], None]) -> None:
        """Calls back once the topic is read, which it is not yet."""
        self._waiting.append(lambda: call(None))

    # --- what goes --------------------------------------------------------------------------------

    def clear(self, scope: str) -> Pending[object]:
        """Removes all values of a scope that nobody writes to any more, in turns."""
        result: Pending[object] = Pending()

        def begin() -> None:
            self._clear(scope, self.memory.names(scope), result)

        if self._loaded:
            begin()
        else:
            self._waiting.append(begin)
        return result

    def _clear(self, scope: str, names: Iterator[Name | None], result: Pending[object]) -> None:
        turn = Turn()
        seen = 0
        while seen % BETWEEN_LOOKS or not turn.over():
            try:
                name = next(names)
            except StopIteration:
                if self._marking:
                    self._when_marked.append(result)
                else:
                    result.settle(None, None)
                return
            seen += 1
            if name is not None:
                self.memory.delete(*name)
                self._mark_soon(name)
        self._broker.later(0.0, lambda: self._clear(scope, names, result))

    def _gone(self, name: Name) -> None:
        """The cache no longer has it: the topic shall not bring it back."""
        if self._following is not None:
            self._following.gone(name)
        else:
            self._mark_soon(name)

    def _mark_soon(self, name: Name) -> None:
        if self._topic == "":
            return
        self._marks.append(name)
        if not self._marking:
            self._marking = True
            self._broker.later(0.0, self._mark)

    def _mark(self) -> None:
        """A mark that could not be written: the value comes back with a restart, and goes again."""
        token = self._mark_some()
        if token is not None:
            token.on_done(lambda written: self._marked(written.error))
        elif self._marks:
            self._broker.later(0.0, self._mark)
        else:
            self._marked(None)

    def _marked(self, error: BaseException | None) -> None:
        if self._marks:
            self._mark()
            return
        self._marking = False
        waiting, self._when_marked = self._when_marked, []
        for result in waiting:
            result.settle(None, error)

    def _mark_some(self) -> AppendToken | None:
        """None where nothing had to be written, or cannot."""
        builder = BatchBuilder()
        now_us = self._broker.clock_us()
        for _ in range(min(len(self._marks), MARKS_AT_ONCE)):
            name = self._marks.popleft()
            if name not in self.memory and name not in self._writing:
                builder.add(None, now_us, msgspec.json.encode(name), None, 0)
        if not len(builder):
            return None
        records = Records([], batch=builder.build())
        try:
            return self._broker.publish(ITSELF, self._topic, self._partition, records)
        except PenstockError:  # the server stops, or the topic was deleted
            return None

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
        if broker.engine.shared:
            self._following = CacheFollowing(
                broker, self._topic, self.memory, self._writing.__contains__, self._has_loaded
            )
            self._following.begin()
            return
        self._offset, self._end = broker.engine.offsets(self._topic, 0)
        broker.later(0.0, self._load)

    def _has_loaded(self) -> None:
        self._loaded = True
        self._newer = set()
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            go_on()

    def _load(self) -> None:
        if self._offset >= self._end:
            self._has_loaded()
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
            self._broker.later(RETRY_S, self._load)
            return
        self._offset = max(result.next_offset, self._offset + 1)
        rows = [
            (view, row) for view in result.views for row in range(view.first_row, view.last_row)
        ]
        self._take(rows, 0)

    def _take(self, rows: list[tuple[BatchView, int]], first: int) -> None:
        turn = Turn()
        done = first
        while done < len(rows) and (done % BETWEEN_LOOKS or not turn.over()):
            self._load_one(*rows[done])
            done += 1
        self._broker.later(0.0, self._load if done == len(rows) else lambda: self._take(rows, done))

    def _load_one(self, view: BatchView, row: int) -> None:
        key = view.key(row)
        try:
            name = _NAMES.decode(key or b"")
        except (msgspec.DecodeError, UnicodeDecodeError):  # somebody else wrote to the topic
            return
        if name in self._newer:  # written since the start: this value is older
            return
        if view.is_null(row):
            self.memory.delete(*name)
            return
        try:
            self.memory.put(*name, view.value(row), deadline_of(view, row))
        except BrokerError:  # the cache has become smaller
            self.memory.delete(*name)
