"""All cursors of the broker: of groups by group and topic, of single readers with them alone."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.delivery.cursor_reader import Reader
from penstock.broker.delivery.lane import CursorTerms
from penstock.broker.delivery.shared_cursor import SharedCursor
from penstock.broker.errors import BrokerError, Code

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


class Cursors:
    """All cursors: of groups by name and topic, of single readers with them alone."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._groups: dict[tuple[str, str], SharedCursor] = {}
        self._by_topic: dict[str, dict[SharedCursor, None]] = {}
        broker.engine.watch_topics(self._changed)

    def __len__(self) -> int:
        return sum(map(len, self._by_topic.values()))

    def join(
        self,
        principal: Principal,
        topic: str,
        terms: CursorTerms,
        auto_commit: bool,
        wake: Callable[[], None],
        ended: Callable[[], None],
        protocol: str,
    ) -> Reader:
        """A reader of a topic that exists. Raises BrokerError. `ended`: the topic was deleted. A group goes
        on with the terms of its first reader as long as it is read."""
        self._broker.require(principal, Operation.SUBSCRIBE, topic)
        if self._broker.engine.topic(topic) is None:
            raise BrokerError(Code.UNKNOWN_TOPIC, f"no topic named {topic!r}")
        cursor = None if terms.group is None else self._groups.get((terms.group, topic))
        if cursor is None:
            cursor = SharedCursor(self._broker, topic, terms, protocol)
            cursor.open(principal)
            self._by_topic.setdefault(topic, {})[cursor] = None
            if terms.group is not None:
                self._groups[terms.group, topic] = cursor
        elif not cursor.readers:
            cursor.terms = terms
        reader = Reader(cursor, principal, auto_commit, wake, ended)
        cursor.readers[reader] = None
        return reader

    def held(self, group: str) -> dict[str, list[int]]:
        """By topic: the partitions that readers of the group share here."""
        return {
            topic: cursor.partitions
            for (one, topic), cursor in self._groups.items()
            if one == group and cursor.readers
        }

    def left(self, cursor: SharedCursor) -> None:
        """A reader has gone, or a commit is done: the cursor is dropped when nothing would be lost."""
        if not cursor.disposable:
            return
        same = self._by_topic.get(cursor.topic)
        if same is None or cursor not in same:
            return
        del same[cursor]
        if not same:
            del self._by_topic[cursor.topic]
        if cursor.terms.group is not None:
            self._groups.pop((cursor.terms.group, cursor.topic), None)
        cursor.forget()

    def _changed(self, topic: str) -> None:
        for cursor in self._by_topic.get(topic, ()):
            for reader in cursor.readers:
                cursor.follow(reader.principal)
                reader.wake()
                break

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted."""
        for cursor in list(self._by_topic.pop(topic, ())):
            if cursor.terms.group is not None:
                self._groups.pop((cursor.terms.group, topic), None)
            cursor.forget()
