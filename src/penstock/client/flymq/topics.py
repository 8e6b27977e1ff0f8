"""Topics over FlyMQ, and the server as a cluster."""

from penstock.client.flymq.operations import Operations
from penstock.wire.flymq import messages as m


class TopicOperations(Operations):
    async def create_topic(self, topic: str, partitions: int = 1) -> None:
        """One that is there already stays as it is."""
        await self._change(0x03, m.CreateTopic(topic, partitions), topic)

    async def delete_topic(self, topic: str) -> None:
        await self._change(0x09, m.Topic(topic), topic)

    async def list_topics(self) -> list[str]:
        return (await self._ask(0x08, m.Nothing(), m.Names)).names

    async def describe_topic(self, topic: str) -> m.TopicMetadata:
        """Its partitions, each with the first offset and the one after the last."""
        return await self._ask(0x04, m.Topic(topic), m.TopicMetadata, topic)

    # ---- the cluster ----

    async def cluster_status(self) -> m.ClusterStatus:
        return await self._ask(0x52, m.Nothing(), m.ClusterStatus)

    async def cluster_metadata(self, topic: str = "") -> m.ClusterMetadata:
        """Which node leads which partition, of one topic or of all."""
        return await self._ask(0x53, m.ClusterMetadataOf(topic), m.ClusterMetadata, topic)

    async def join_cluster(self, peer_address: str) -> None:
        """Our server is a cluster of one and refuses it."""
        await self._change(0x50, m.ClusterJoin(peer_address), peer_address)

    async def leave_cluster(self) -> None:
        """Our server is a cluster of one and refuses it."""
        await self._change(0x51, m.Nothing(), "")

    async def who_am_i(self) -> m.WhoAmI:
        return await self._ask(0x72, m.Nothing(), m.WhoAmI)
