"""What an engine on one machine is as a cluster: one node, which keeps every partition."""

from collections.abc import Callable
from typing import Final, TypeVar

from penstock.log.engine import ClusterView, Node, TopicInfo
from penstock.log.errors import UnknownTopic
from penstock.log.pending import Pending

ENGINE: Final = "embedded"
CLUSTER_ID: Final = "standalone"
NODE_ID: Final = "n1"

T = TypeVar("T")


def settled(value: T) -> Pending[T]:
    done: Pending[T] = Pending()
    done.settle(value, None)
    return done


class Alone:
    """What such an engine says where others would have to ask. `topic` and `offsets` are the engine's."""

    def __init__(
        self,
        topic: Callable[[str], TopicInfo | None],
        offsets: Callable[[str, int], tuple[int, int]],
    ) -> None:
        self._topic = topic
        self._offsets = offsets
        self._node = Node(NODE_ID, "")

    def announce(self, address: str, flight: str) -> None:
        self._node = Node(NODE_ID, address, flight=flight)

    def cluster(self) -> ClusterView:
        return ClusterView(ENGINE, CLUSTER_ID, NODE_ID, (self._node,))

    def fresh_offsets(self, topic: str, partition: int, seen: int = 0) -> Pending[tuple[int, int]]:
        return settled(self._offsets(topic, partition))

    def all_fresh_offsets(self, topic: str) -> Pending[object]:
        if self._topic(topic) is None:
            raise UnknownTopic(topic)
        return settled(None)

    def fresh_topic(self, name: str, *, expected: bool = False) -> Pending[TopicInfo | None]:
        return settled(self._topic(name))

    def share_duty(
        self, name: str, shares: int, gained: Callable[[int], None], lost: Callable[[int], None]
    ) -> None:
        for share in range(shares):
            gained(share)

    def replicas(self, topic: str) -> list[tuple[list[str], list[str]]]:
        found = self._topic(topic)
        if found is None:
            raise UnknownTopic(topic)
        return [([NODE_ID], [NODE_ID])] * found.partitions
