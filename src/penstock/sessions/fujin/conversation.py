"""What the roles of a Fujin stream know of their session, and which operation each command is."""

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.counters import ProtocolCounters
from penstock.broker.errors import from_exception
from penstock.broker.port import Port
from penstock.sessions.base import Slot
from penstock.sessions.fujin.options import FujinOptions
from penstock.sessions.stream import Stream
from penstock.wire.fujin import commands as wire

Done = TypeVar("Done")

# The operation of each client command in the broker's table of rights.
OPERATIONS: Final[dict[int, Operation]] = {
    wire.CONNECT_WRITER: Operation.LOG_IN,
    wire.CONNECT_READER: Operation.SUBSCRIBE,
    wire.WRITE: Operation.PUBLISH,
    wire.BEGIN: Operation.OPEN_TRANSACTION,
    wire.COMMIT: Operation.END_TRANSACTION,
    wire.ROLLBACK: Operation.END_TRANSACTION,
    wire.FETCH: Operation.POLL,
    wire.ACK: Operation.ACKNOWLEDGE,
    wire.NACK: Operation.ACKNOWLEDGE,
    wire.DISCONNECT: Operation.LOG_IN,
}


class Conversation(Protocol):
    """The session, as its role sees it."""

    port: Port
    principal: Principal
    options: FujinOptions
    counters: ProtocolCounters
    stream: Stream
    protocol: str

    @property
    def is_over(self) -> bool: ...
    @property
    def is_ending(self) -> bool: ...
    def answer(self, reply: bytes) -> None: ...
    def write_now(self, data: bytes) -> None:
        """Behind the answers that are complete."""
        ...

    def hold(self, size: int) -> Slot: ...
    def settle(self, slot: Slot, reply: bytes) -> None: ...
    def guarded(self, callback: Callable[[Done], None]) -> Callable[[Done], None]: ...
    def answers_are_open(self) -> bool: ...
    def go_on(self) -> None: ...
    def end(self) -> None:
        """Ends the session from our side: the rest of the answers, DISCONNECT, finish."""
        ...


def text_of(error: BaseException) -> str:
    """The words for a client; never empty."""
    refusal = from_exception(error)
    return str(refusal) or refusal.code.text
