"""How long the Fujin command at the beginning of a buffer is at least, for a reader that waits for it.

A large WRITE arrives in many reads, which are joined once. Does not split anything.
"""

from mypy_extensions import i64

from penstock.wire.fujin.commands import ACK, NACK, WRITE
from penstock.wire.fujin.reading import settle_size
from penstock.wire.fujin.writing import AUTO, OFF, ON, write_size


def _least(buffer: bytes, start: i64, end: i64, rule: i64) -> i64:
    if start >= end:
        return 0
    opcode: i64 = i64(buffer[start])
    if opcode == WRITE:
        return write_size(buffer, start, end, rule)
    if ACK <= opcode <= NACK:
        return settle_size(buffer, start, end)
    # All others are short: one byte more is worth a look.
    return end - start + 1


def size_auto(buffer: bytes, start: i64, end: i64) -> i64:
    return _least(buffer, start, end, AUTO)


def size_on(buffer: bytes, start: i64, end: i64) -> i64:
    return _least(buffer, start, end, ON)


def size_off(buffer: bytes, start: i64, end: i64) -> i64:
    return _least(buffer, start, end, OFF)
