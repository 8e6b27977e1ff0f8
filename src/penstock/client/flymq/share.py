"""A member of a group that shares partitions: joins, says that it is alive, and leaves.

Knows which partitions are its own; client.py reads them.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from penstock.client.errors import ClientError, NotAuthorized, NotFound, Refused
from penstock.client.flymq.asking import Asking
from penstock.wire.flymq import messages as m
from penstock.wire.flymq.layout import Message

# Heartbeats in one timeout: one that is lost does no harm.
BEATS: Final = 3
# And no longer than this between two: so late a member hears that its partitions are others now.
BEAT_MOST_S: Final = 3.0


class Share:
    def __init__(
        self,
        asking: Asking,
        topic: str,
        group: str,
        timeout_ms: int,
        clock_s: Callable[[], float],
    ) -> None:
        self._asking = asking
        self._topic = topic
        self._group = group
        self._timeout_ms = timeout_ms
        self._clock_s = clock_s
        self._due_s = 0.0
        self._assigned = m.Assignment("", 0, [])

    @property
    def partitions(self) -> list[int]:
        return self._assigned.partitions

    async def join(self) -> None:
        request = m.JoinGroup(self._topic, self._group, self._assigned.member, self._timeout_ms)
        await self._ask(0x67, request, "JOIN_GROUP")

    async def beat_when_due(self) -> None:
        if self._clock_s() >= self._due_s:
            await self.beat()

    async def beat(self) -> None:
        """Says that it is alive, and hears which partitions it has."""
        told = self._assigned
        request = m.Heartbeat(self._topic, self._group, told.member, told.generation)
        try:
            await self._ask(0x68, request, "HEARTBEAT")
        except (NotAuthorized, NotFound):
            raise
        except Refused:  # it was silent for too long, or the server was restarted
            await self.join()

    async def _ask(self, opcode: int, request: Message, name: str) -> None:
        what = f"{name} {self._group}"
        self._assigned = await self._asking.ask(opcode, request, m.Assignment, what, patient=True)
        self._due_s = self._clock_s() + min(self._timeout_ms / 1000 / BEATS, BEAT_MOST_S)

    async def leave(self) -> None:
        """Its partitions are free at once. Where that cannot be said they are so after the timeout."""
        request = m.LeaveGroup(self._topic, self._group, self._assigned.member)
        with suppress(ClientError):
            await self._asking.ask(0x69, request, m.Done, f"LEAVE_GROUP {self._group}")
