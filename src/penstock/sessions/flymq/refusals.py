"""The words and numbers of ERROR replies, from the broker's table of errors.

FlyMQ has no error codes of its own: SDKs show the number of our table, the document's dialect has a text
alone. Some texts are those of the existing server, because clients look for them.
"""

from typing import Final

from penstock.broker.errors import BrokerError, Code, from_exception
from penstock.wire.errors import PeerError
from penstock.wire.flymq.layout import Message

_OUT_OF_RANGE: Final = "partition {partition} out of range"
_NOT_FOUND: Final = "partition {partition} not found"
# The operations that say it in other words than the rest.
OUT_OF_RANGE_NAMES: Final = frozenset({"PRODUCE", "CONSUME", "CONSUME_ZERO_COPY"})


def not_supported(name: str) -> BrokerError:
    return BrokerError(Code.INVALID_REQUEST, f"not supported yet by this version: {name}")


def refusal(name: str, request: Message | None, error: BaseException) -> tuple[int, str]:
    """Number and text for a request of the opcode `name` that failed."""
    if isinstance(error, PeerError):
        return Code.INVALID_REQUEST.number, str(error)
    refused = from_exception(error)
    topic = getattr(request, "topic", "")
    text = str(refused)
    if refused.code is Code.UNKNOWN_TOPIC:
        text = f"topic not found: {topic}"
    elif refused.code is Code.UNKNOWN_PARTITION:
        words = _OUT_OF_RANGE if name in OUT_OF_RANGE_NAMES else _NOT_FOUND
        text = words.format(partition=getattr(request, "partition", 0))
    elif refused.code is Code.UNKNOWN_GROUP:
        text = f"consumer group not found: {topic}:{getattr(request, 'group', '')}"
    return refused.code.number, text
