"""Groups over FlyMQ: committed offsets and lag, and members that share the partitions of a topic."""

from collections.abc import AsyncGenerator
from typing import Literal

from penstock.client.errors import NotAuthorized, NotFound, Refused
from penstock.client.flymq.records import (
    DEFAULT_MESSAGES,
    IDLE_FIRST_S,
    IDLE_MOST_S,
    FetchedBatch,
    RecordOperations,
)
from penstock.client.flymq.share import Share
from penstock.wire.flymq import messages as m


class GroupOperations(RecordOperations):
    async def committed(self, topic: str, partition: int, group: str) -> int:
        """0 if the group never committed there; NotFound if there is no such group on the topic."""
        request = m.GroupPartition(topic, group, partition)
        return (await self._ask(0x60, request, m.Offset, topic)).offset

    async def reset_offset(
        self, topic: str, partition: int, group: str, to: Literal["earliest", "latest"] | int
    ) -> None:
        mode, offset = ("offset", to) if isinstance(to, int) else (to, None)
        await self._change(0x61, m.ResetOffset(topic, group, partition, mode, offset), topic)

    async def seek_to_time(self, topic: str, partition: int, time_ms: int, group: str = "") -> int:
        """The first offset of that time or later; committed for the group, if one is given."""
        request = m.SeekToTimestamp(topic, group, partition, time_ms)
        return (await self._ask(0x66, request, m.Offset, topic)).offset

    async def list_groups(self) -> list[m.GroupRow]:
        return (await self._ask(0x62, m.Nothing(), m.GroupRows)).groups

    async def describe_group(self, group: str, topic: str = "") -> m.GroupRow:
        """On one topic, or on the first one that it has read."""
        return await self._ask(0x63, m.Group(topic, group), m.GroupRow, group)

    async def lag(self, topic: str, partition: int, group: str) -> m.Lag:
        return await self._ask(0x64, m.GroupPartition(topic, group, partition), m.Lag, topic)

    async def delete_group(self, group: str, topic: str = "") -> None:
        """On one topic, or on all of them."""
        await self._change(0x65, m.Group(topic, group), group)

    # ---- members; only our server has these ----

    async def join_group(
        self, topic: str, group: str, *, member: str = "", timeout_ms: int = 0
    ) -> m.Assignment:
        """A new member, or one that joins again; which partitions it reads. `consume_group` does this and
        all that belongs to it."""
        return await self._ask(
            0x67, m.JoinGroup(topic, group, member, timeout_ms), m.Assignment, group
        )

    async def heartbeat(
        self, topic: str, group: str, member: str, generation: int = 0
    ) -> m.Assignment:
        """The member is alive; which partitions it reads now. Refused when it was silent for too long."""
        request = m.Heartbeat(topic, group, member, generation)
        return await self._ask(0x68, request, m.Assignment, group)

    async def leave_group(self, topic: str, group: str, member: str) -> None:
        await self._change(0x69, m.LeaveGroup(topic, group, member), group)

    async def consume_group(
        self,
        topic: str,
        group: str,
        *,
        timeout_ms: int = 30_000,
        max_messages: int = DEFAULT_MESSAGES,
        auto_commit: bool = True,
    ) -> AsyncGenerator[FetchedBatch, None]:
        """Batches without end, of the partitions that the group assigns to this client. A client that is
        silent for `timeout_ms`, also because it works on a batch, loses them to the others."""
        surroundings = self._asking.connection.settings.surroundings
        share = Share(self._asking, topic, group, timeout_ms, surroundings.clock_s)
        await share.join()
        positions: dict[int, int] = {}
        idle_s = IDLE_FIRST_S
        try:
            while True:
                await share.beat_when_due()
                positions = {
                    number: positions[number]
                    if number in positions
                    else await self.subscribe(topic, number, group, "commit", patient=True)
                    for number in share.partitions
                }
                empty = True
                for number, offset in list(positions.items()):
                    batch = await self.fetch(
                        topic, number, offset, max_messages=max_messages, patient=True
                    )
                    positions[number] = batch.next_offset
                    if batch.messages:
                        empty = False
                        yield batch
                        if auto_commit and not await self._commit_share(
                            share, topic, number, group, batch.next_offset
                        ):
                            break
                if empty:
                    await surroundings.sleep(idle_s)
                idle_s = min(IDLE_MOST_S, 2 * idle_s) if empty else IDLE_FIRST_S
        finally:
            await share.leave()

    async def _commit_share(
        self, share: Share, topic: str, partition: int, group: str, offset: int
    ) -> bool:
        """False: a member on another server has the partition now, and gets these records again."""
        try:
            await self.commit(topic, partition, group, offset, patient=True)
        except (NotAuthorized, NotFound):
            raise
        except Refused:
            await share.beat()
            if partition in share.partitions:
                raise
            return False
        return True
