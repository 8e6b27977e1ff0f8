"""What the operations of a FlyMQ client stand on: one request and its answer, or many of one kind.

The operations themselves are in the modules of their subjects; client.py puts them together.
"""

from collections.abc import Sequence
from typing import Final, TypeVar

from penstock.client.errors import Refused
from penstock.client.flymq.asking import Asking, name_of
from penstock.wire.flymq import messages as m
from penstock.wire.flymq.layout import Message

# Messages that are sent with one write; the next write does not wait for their answers.
SENT_TOGETHER: Final = 500

Reply = TypeVar("Reply", bound=Message)


class Operations:
    """`_asking`: the connection, and what is due on it."""

    _asking: Asking

    async def _ask(
        self,
        opcode: int,
        request: Message,
        kind: type[Reply],
        on: str = "",
        *,
        patient: bool = False,
    ) -> Reply:
        """`kind`: the reply of the opcode, or a part of it that is enough."""
        return await self._asking.ask(opcode, request, kind, what_of(opcode, on), patient=patient)

    async def _change(
        self, opcode: int, request: Message, on: str, *, patient: bool = False
    ) -> None:
        """Some servers answer with the flag alone, which is enough."""
        done = await self._ask(opcode, request, m.Done, on, patient=patient)
        if not done.success:
            raise Refused(0, done.message, what_of(opcode, on))

    async def _produce_frames(
        self, opcode: int, topic: str, frames: Sequence[bytes]
    ) -> list[m.RecordMetadata]:
        """Sent without waiting; after a refusal the later ones were sent all the same."""
        what = what_of(opcode, topic)
        sent = []
        for start in range(0, len(frames), SENT_TOGETHER):
            chunk = frames[start : start + SENT_TOGETHER]
            sent.append(await self._asking.begin(b"".join(chunk), len(chunk), 1, what))
        replies = [reply for begun in sent for reply in await self._asking.answer(begun, what)]
        return [self._asking.expect(reply, opcode, m.RecordMetadata, what) for reply in replies]


def what_of(opcode: int, on: str) -> str:
    """The request as errors name it."""
    return f"{name_of(opcode)} {on}".rstrip()
