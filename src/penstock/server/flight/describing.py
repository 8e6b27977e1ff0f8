"""What the server tells its Flight process of topics: whether they are there, offsets, who else has them.

Of a log that others write to as well, this process may know less than the peer does: another gateway has
told it of a topic or of an end. Then the engine is asked for what is true now, before anything is refused.
Lives on the event loop; what grows with the number of partitions is made in a thread.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Action, Operation
from penstock.broker.broker import Broker
from penstock.broker.errors import BrokerError, Code
from penstock.broker.port import DESCRIBED_AT_ONCE
from penstock.log.engine import ClusterView, Engine, Pending, TopicInfo
from penstock.log.errors import UnknownTopic
from penstock.server.flight.link import (
    Answer,
    Describe,
    PartitionFacts,
    TopicFacts,
    TopicList,
)
from penstock.server.net.address import Address, parse_address

# Listing a topic shows its offsets, so it needs the right to read it.
READ_ONLY: Final[tuple[Action, ...]] = ("read",)
PLANNING: Final = Operation.DESCRIBE_TOPIC.name

Give = Callable[[Answer], None]
Fail = Callable[[BaseException], Answer]


class Describing:
    def __init__(self, broker: Broker, engine: Engine, fail: Fail) -> None:
        self._broker = broker
        self._engine = engine
        self._fail = fail

    def aside(self, make: Callable[[], Answer], give: Give) -> None:
        """Has an answer made in a thread that grows with the number of topics or partitions."""

        def made(done: Pending[Answer]) -> None:
            give(done.result() if done.error is None else self._fail(done.error))

        self._broker.aside(make).on_done(made)

    def list_all(self, who: Principal) -> TopicList:
        shows = self._broker.access.shows
        found = [info for info in self._engine.topics() if shows(who, info.name, READ_ONLY)]
        facts: list[TopicFacts] = []
        for info in found:
            with suppress(UnknownTopic):  # it was deleted a moment ago
                facts.append(self._facts(info))
        return TopicList(tuple(facts))

    def info(self, topic: str) -> TopicInfo:
        info = self._engine.topic(topic)
        if info is None:
            raise BrokerError(Code.UNKNOWN_TOPIC, f"no topic named {topic!r}")
        return info

    # --- one topic -------------------------------------------------------------------------------

    def describe(self, question: Describe, give: Give) -> None:
        self._broker.require(question.who, Operation[question.operation], question.topic)
        if question.create:
            self._broker.require(question.who, Operation.CREATE_TOPIC, question.topic)
            self._tell(self._broker.ensure_topic(question.topic, question.who), question, give)
        elif _fits(self._engine.topic(question.topic), question):
            self._tell_ends(question, give)
        else:
            expected = question.created_us is not None
            self._after(
                self._engine.fresh_topic(question.topic, expected=expected),
                lambda: self._tell(self.info(question.topic), question, give),
                give,
            )

    def _tell_ends(self, question: Describe, give: Give) -> None:
        """A plan begins with ends as they are now; a read needs them only where it goes beyond what is
        known here."""
        topic = question.topic
        told: Pending[object] | None = None
        if question.operation == PLANNING:
            told = self._engine.all_fresh_offsets(topic)
        elif question.end is not None and question.partitions:
            number = question.partitions[0]
            if self._engine.offsets(topic, number)[1] < question.end:
                told = self._engine.fresh_offsets(topic, number, question.end)
        if told is None or told.done:
            self._tell(self.info(topic), question, give)
        else:
            self._after(told, lambda: self._tell(self.info(topic), question, give), give)

    def _after(self, told: Pending[object], tell: Callable[[], None], give: Give) -> None:
        def done(told: Pending[object]) -> None:
            try:
                if told.error is not None:
                    raise told.error
                tell()
            except Exception as error:  # the caller must get an answer, whatever the error is
                give(self._fail(error))

        told.on_done(done)

    def _tell(self, info: TopicInfo, question: Describe, give: Give) -> None:
        wanted = None if question.create else question.partitions
        servers: tuple[str, ...] = ()
        if question.operation == PLANNING:
            servers = flight_servers(self._engine.cluster(), question.who)
        count = info.partitions if wanted is None else len(wanted)
        if count <= DESCRIBED_AT_ONCE:
            give(self._facts(info, wanted, servers))
        else:
            self.aside(lambda: self._facts(info, wanted, servers), give)

    def _facts(
        self,
        info: TopicInfo,
        wanted: tuple[int, ...] | None = None,
        servers: tuple[str, ...] = (),
    ) -> TopicFacts:
        numbers = range(info.partitions) if wanted is None else wanted
        for number in numbers:
            if number >= info.partitions:
                text = f"topic {info.name!r} has no partition {number}"
                raise BrokerError(Code.UNKNOWN_PARTITION, text)
        partitions = tuple(self._partition_facts(info.name, number) for number in numbers)
        return TopicFacts(info.name, info.created_us, info.settings, partitions, servers)

    def _partition_facts(self, topic: str, number: int) -> PartitionFacts:
        one = self._engine.partition_info(topic, number)
        directory = self._engine.partition_directory(topic, number)
        return PartitionFacts(directory, one.earliest, one.latest, one.size_bytes)


def flight_servers(cluster: ClusterView, who: Principal) -> tuple[str, ...]:
    """Addresses of Arrow Flight at which the same log is served; none where there is only one. Those on
    the loopback interface are for peers of this machine, and mean this machine."""
    here = next((node.loopback for node in cluster.nodes if node.id == cluster.this), "")
    local = Address(who.origin.address, 0).is_loopback
    found = {
        node.flight: None
        for node in cluster.nodes
        if node.flight and (not is_loopback(node.flight) or (local and node.loopback == here))
    }
    return tuple(found) if len(found) > 1 else ()


def is_loopback(address: str) -> bool:
    try:
        return parse_address(address).is_loopback
    except ValueError:
        return False


def _fits(info: TopicInfo | None, question: Describe) -> bool:
    """Whether what is known here can be what the peer was told."""
    if info is None or question.created_us not in (None, info.created_us):
        return False
    return all(number < info.partitions for number in question.partitions or ())
