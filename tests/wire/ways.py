"""The ways a peer's bytes may arrive, and what came out of a splitter in a form that can be compared."""

from collections.abc import Callable, Iterator
from typing import Any

SplitResult = tuple[list[Any], int, Exception | None]
Splitter = Callable[[bytes, int, int], SplitResult]
Feed = Callable[[Splitter, bytes], SplitResult]


def whole(split: Splitter, data: bytes) -> SplitResult:
    return split(data, 0, len(data))


def byte_by_byte(split: Splitter, data: bytes) -> SplitResult:
    """As a connection does: each byte is put behind what the split before left over."""
    operations: list[Any] = []
    rest = b""
    done = 0
    for number in range(len(data)):
        rest += data[number : number + 1]
        found, consumed, error = split(rest, 0, len(rest))
        operations += found
        done += consumed
        if error is not None:
            return operations, done, error
        rest = rest[consumed:]
    return operations, done, None


def between_strangers(split: Splitter, data: bytes) -> SplitResult:
    """In the middle of a larger buffer: neither what is before nor what is behind counts."""
    before, behind = b"\xff" * 7, b"\x00\x00\x00\x00\xff"
    operations, consumed, error = split(before + data + behind, len(before), len(before + data))
    return operations, consumed - len(before), error


WAYS: tuple[Feed, ...] = (whole, byte_by_byte, between_strangers)


def prefixes(data: bytes) -> Iterator[bytes]:
    """Everything shorter than the whole."""
    return (data[:size] for size in range(len(data)))
