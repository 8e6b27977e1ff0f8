"""Every opcode over a socket, cut off at every byte: an answer each time, and the connection stays.

From the vectors of the wire's table, which every opcode must have: a new one cannot be without this.
"""

import pytest
from conformance.flymq.peer import FlyMQPeer, frame
from wire.flymq.vectors import VECTORS, Vector

HEADER_BYTES = 8
REQUESTS = [vector for vector in VECTORS if vector.side == "request"]
# An AUTH that is whole is answered by this.
AUTH_REPLY = 0x71


@pytest.mark.parametrize("vector", REQUESTS, ids=str)
def test_a_request_that_is_cut_off(peer: FlyMQPeer, vector: Vector) -> None:
    payload = vector.frame[HEADER_BYTES:]
    cut = [frame(vector.opcode, payload[:size]) for size in range(len(payload))]
    peer.send(b"".join(cut) + frame(0x72))
    for _ in cut:
        assert peer.hear().opcode in (0xFF, vector.opcode, AUTH_REPLY)
    assert peer.hear().opcode == 0x72


@pytest.mark.parametrize("vector", REQUESTS, ids=str)
def test_a_request_with_bytes_behind_it(peer: FlyMQPeer, vector: Vector) -> None:
    """And one whose texts are no UTF-8."""
    payload = vector.frame[HEADER_BYTES:]
    spoilt = bytes(0xFF if 0x61 <= byte <= 0x7A else byte for byte in payload)
    peer.send(b"".join(frame(vector.opcode, one) for one in (payload + bytes(9), spoilt)))
    peer.send(frame(0x72))
    for _ in range(2):
        assert peer.hear().opcode in (0xFF, vector.opcode, AUTH_REPLY)
    assert peer.hear().opcode == 0x72
