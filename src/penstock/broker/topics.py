"""Topics: made, changed, looked up and removed, with the right to it and an event in the audit trail.

Hot: compiled by mypyc.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Final

from penstock.broker.access.principal import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.audit import events
from penstock.broker.core import BrokerCore
from penstock.broker.delivery.dead_letters import ITSELF
from penstock.broker.errors import BrokerError, Code
from penstock.broker.schemas.binding import SchemaBinding
from penstock.log.engine import ClusterView, Pending, TopicInfo, walk_topics
from penstock.log.settings import TopicSettings, check_partitions

MADE: Final = "topic %r was made, %d partition(s), by %s"

logger = logging.getLogger(__name__)


class TopicSide(BrokerCore):
    schemas: SchemaBinding

    def topic_is_gone(self, topic: str, info: TopicInfo | None) -> None:
        """Forgets what is known of a topic that was deleted."""
        raise NotImplementedError

    def ensure_topic(self, topic: str, by: Principal) -> TopicInfo:
        """The topic, made with the default settings where there is none. `by`: for the log and the audit
        trail; the right is checked by who calls this."""
        info = self.engine.topic(topic)
        if info is None:
            if self.stopping:
                raise BrokerError(Code.SHUTTING_DOWN)
            partitions = self.options.default_partitions
            settings = self.options.default_settings
            if by is not ITSELF:
                self.check_room_for(topics=1, partitions=partitions)
            elif self.engine.can_encrypt:
                # For a message that was accepted, whatever the limits, and whose topic was deleted since:
                # it may have been encrypted, and nothing of it goes to the disk in the clear.
                settings = settings.changed({"encryption": True})
            info = self.engine.create_topic(topic, partitions, settings)
            logger.info(MADE, topic, partitions, by.name)
            if by.origin.door:  # not the server's own
                details = {"partitions": partitions, "by": "first use"}
                self.audit.changed(by, events.TOPIC_CREATED, topic, details)
        return info

    def create_topic(
        self,
        principal: Principal,
        topic: str,
        partitions: int,
        settings: TopicSettings | None = None,
    ) -> Pending[int] | None:
        """What still has to be written before the topic survives a crash; None when nothing.

        Creating a topic needs the right to write to it, as a publish that creates it does.
        """
        self.require(principal, Operation.CREATE_TOPIC, topic)
        check_partitions(partitions)
        if settings is not None and settings.schema:
            self.schemas.check_settings({"schema": settings.schema}, settings)
        if self.engine.topic(topic) is None:
            self.check_room_for(topics=1, partitions=partitions)
        self.engine.create_topic(topic, partitions, settings)
        logger.info(MADE, topic, partitions, principal.name)
        if (durable := self.engine.topic_durable(topic)) is None:
            return None
        told = {"partitions": partitions}
        return self.audit.when_done(durable, principal, events.TOPIC_CREATED, topic, told)

    def change_topic(
        self,
        principal: Principal,
        topic: str,
        changes: dict[str, object],
        partitions: int | None = None,
    ) -> Pending[object]:
        self.require(principal, Operation.CHANGE_TOPIC, topic)
        self.audit.protect(topic)
        info = self.engine.topic(topic)
        if info is not None and partitions is not None:
            check_partitions(partitions)
            self.check_room_for(partitions=max(partitions - info.partitions, 0))
        if info is not None:
            self.schemas.check_settings(changes, info.settings)
        change = self.engine.change_topic(topic, changes, partitions)
        told = changes if partitions is None else {**changes, "partitions": partitions}
        return self.audit.when_done(change, principal, events.TOPIC_CHANGED, topic, told)

    def purge_topic(self, principal: Principal, topic: str) -> Pending[int]:
        """Removes every record that readers can see; returns the number of bytes freed."""
        self.require(principal, Operation.PURGE_TOPIC, topic)
        purge = self.engine.purge_topic(topic)
        return self.audit.when_done(purge, principal, events.TOPIC_PURGED, topic)

    def topic(self, topic: str) -> TopicInfo | None:
        return self.engine.topic(topic)

    def topics(self, principal: Principal) -> Iterator[list[TopicInfo]]:
        """Those that the principal may read or write, page by page. From any thread."""
        shows = self.access.shows
        for page in walk_topics(self.engine):
            yield [info for info in page if shows(principal, info.name)]

    def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        """Earliest and latest: the first offset kept, and the one after the last visible."""
        return self.engine.offsets(topic, partition)

    def cluster(self) -> ClusterView:
        """Who serves the log."""
        return self.engine.cluster()

    def replicas(self, topic: str) -> Sequence[tuple[Sequence[str], Sequence[str]]]:
        """For each partition: ids of the nodes that keep it, and of those that have all of it."""
        return self.engine.replicas(topic)

    def offset_at_time(self, topic: str, partition: int, time_us: int) -> Pending[int]:
        """The first offset whose record is of this time or later; `latest` when there is none."""
        return self.engine.offset_at_time(topic, partition, time_us)

    def delete_topic(self, principal: Principal, topic: str) -> Pending[object]:
        self.require(principal, Operation.DELETE_TOPIC, topic)
        info = self.engine.topic(topic)
        change = self.engine.delete_topic(topic)
        change.on_done(lambda done: self._deleted(topic, info, principal.name, done))
        return self.audit.when_done(change, principal, events.TOPIC_DELETED, topic)

    def _deleted(
        self, topic: str, info: TopicInfo | None, by: str, change: Pending[object]
    ) -> None:
        if change.error is None:
            logger.info("topic %r was deleted by %s", topic, by)
            self.topic_is_gone(topic, info)
