"""Transactions over FlyMQ: records of several topics that become visible together."""

from collections.abc import Sequence

from penstock.client.errors import Refused
from penstock.client.flymq.operations import Operations, what_of
from penstock.wire.flymq import administration as a
from penstock.wire.flymq import messages as m
from penstock.wire.flymq.opcodes import encode_request


class TransactionOperations(Operations):
    async def begin_transaction(self) -> str:
        """The id of a new transaction. Without a login it lives as long as the connection."""
        return (await self._ask(0x40, m.Nothing(), a.TransactionDone)).id

    async def stage(self, transaction: str, topic: str, values: Sequence[bytes]) -> None:
        """Records that the commit makes visible, together with all others of the transaction. Sent without
        waiting; where one was refused, roll back."""
        frames = [
            encode_request(0x43, a.TransactionProduce(transaction, topic, one)) for one in values
        ]
        await self._produce_frames(0x43, topic, frames)

    async def commit_transaction(self, transaction: str) -> None:
        """All of it is durable and visible afterwards. May be repeated: after a lost answer, say."""
        await self._end_transaction(0x41, transaction)

    async def roll_back_transaction(self, transaction: str) -> None:
        """Refused when there is no such one any more."""
        await self._end_transaction(0x42, transaction)

    async def _end_transaction(self, opcode: int, transaction: str) -> None:
        request = a.Transaction(transaction)
        done = await self._ask(opcode, request, a.TransactionDone, transaction)
        if not done.success:
            what = what_of(opcode, transaction)
            raise Refused(0, f"transaction not found: {transaction}", what)
