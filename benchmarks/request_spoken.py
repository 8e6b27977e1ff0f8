"""What the request suite says in each protocol that it measures: one PRODUCE with one record of 100 bytes,
and the answer to it. Sends nothing.
"""

import random
from dataclasses import dataclass

from penstock.wire.flymq import messages as flymq
from penstock.wire.flymq.frames import HEADER_BYTES
from penstock.wire.flymq.opcodes import encode_request as encode_flymq
from penstock.wire.flymq.produce import PRODUCE, decode_produce, encode_produced
from penstock.wire.rustlog import frames as rustlog
from penstock.wire.rustlog.binary import encode_request
from penstock.wire.rustlog.binary_reply import encode_produce_reply

TOPIC = "request"
MESSAGE_BYTES = 100
MESSAGE = random.Random(11).randbytes(MESSAGE_BYTES)


@dataclass(frozen=True, slots=True)
class Spoken:
    """`produced` has the size of every answer, and its first bytes; the byte at `kind_at` says what kind of
    answer it is."""

    title: str
    produce: bytes
    produced: bytes
    kind_at: int


# The binary dialect: a length of four bytes, then the type.
RUSTLOG = Spoken(
    "RustLog B Produce",
    encode_request(rustlog.Produce(TOPIC, 0, [MESSAGE])),
    encode_produce_reply(0, 1),
    4,
)


def _flymq() -> Spoken:
    request = encode_flymq(PRODUCE, flymq.Produce(TOPIC, b"", MESSAGE))
    run = decode_produce(request[HEADER_BYTES:])
    assert run is not None, "we have encoded it"
    return Spoken("FlyMQ PRODUCE", request, encode_produced(run, 0, 0, 0), 2)


# Magic, version, then the opcode.
FLYMQ = _flymq()
