"""What a peer did wrong on the wire.

    PeerError              the bytes break the rules of their protocol
        BlipMQProtocolError    (penstock.wire.blipmq.frames)
        RustLogProtocolError   (penstock.wire.rustlog.frames)

A decoder raises its protocol's child of PeerError and nothing else. A wrong call of an encoder (a
topic too long, a message that no frame can hold) is a bug of the caller and a ValueError.
Not compiled: an exception must be catchable and picklable like any other Python class.
"""

from penstock.errors import PenstockError


class PeerError(PenstockError):
    """`what` is the text for the peer; `position` counts bytes from the start of what was decoded.

    `code` is the number the protocol answers with, or None where it closes without an answer.
    """

    what: str
    position: int
    code: int | None = None

    def __str__(self) -> str:
        code = "" if self.code is None else f" (code {self.code})"
        return f"{self.what}, at byte {self.position}{code}"
