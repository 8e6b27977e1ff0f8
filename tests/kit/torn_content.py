"""What a power loss leaves of one file: its durable content and some of the changes since.

Pure functions of content, changes, mode and random numbers. The model is that of a page cache over
a disk which writes whole sectors:

- The disk holds, for every sector, a copy that the page cache had at some moment since the last
  sync: the durable one, or the one after any of the changes that touched this sector. Sectors
  choose independently of each other: this is the tearing of one write, and the reordering of
  several.
- The length of the file is metadata. Its changes reach the disk in order, so the length found is
  the one after some prefix of the changes, or inside the next write that grows the file.
- A sector that the found length covers but that never reached the disk reads as zeros.
- A cut that reached the disk takes the old bytes behind it along. A cut that did not leaves them
  there, next to newer bytes that were written after it: who cuts must sync before writing on.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

CrashMode = Literal["drop", "keep", "tear512", "tear4096", "any"]

# What "any" picks from, and all the modes that are not a mixture.
PURE_MODES: tuple[CrashMode, ...] = ("drop", "keep", "tear512", "tear4096")

# The atomic unit of old and of current disks (and of the page cache).
SECTOR_BYTES: dict[CrashMode, int] = {"tear512": 512, "tear4096": 4096}

# The chance that a sector is found in its newest state, drawn once per file: with one fixed value
# a large write would never be found nearly whole or nearly lost.
NEWEST_CHANCES = (0.1, 0.5, 0.95)


@dataclass(frozen=True, slots=True)
class Write:
    position: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Cut:
    """A truncation; it may also extend."""

    size: int


Change = Write | Cut


def apply_change(content: bytearray, change: Change) -> None:
    """Change the content as the page cache does: holes and extensions read as zeros."""
    match change:
        case Write(position, data) if data:
            _extend(content, position)
            content[position : position + len(data)] = data
        case Cut(size):
            del content[size:]
            _extend(content, size)


def content_after_crash(
    durable: bytes, changes: Sequence[Change], mode: CrashMode, random_: random.Random
) -> bytes:
    """The content found after a power loss."""
    if mode == "any":
        mode = random_.choice(PURE_MODES)
    if mode == "drop":
        return durable
    if mode == "keep":
        content = bytearray(durable)
        for change in changes:
            apply_change(content, change)
        return bytes(content)
    return _torn(durable, changes, SECTOR_BYTES[mode], random_)


def _torn(
    durable: bytes, changes: Sequence[Change], sector_bytes: int, random_: random.Random
) -> bytes:
    survivors = random_.randint(0, len(changes))
    length = _found_length(durable, changes, survivors, sector_bytes, random_)
    newest_chance = random_.choice(NEWEST_CHANCES)
    found = bytearray(durable)
    for sector, states in _sector_states(durable, changes, survivors, sector_bytes).items():
        newest = len(states) == 1 or random_.random() < newest_chance
        state = states[-1] if newest else random_.choice(states[:-1])
        apply_change(found, Write(sector * sector_bytes, state))
    apply_change(found, Cut(length))
    return bytes(found)


def _found_length(
    durable: bytes,
    changes: Sequence[Change],
    survivors: int,
    sector_bytes: int,
    random_: random.Random,
) -> int:
    """The length after the first `survivors` changes, or grown into the next one."""
    content = bytearray(durable)
    for change in changes[:survivors]:
        apply_change(content, change)
    length = len(content)
    if survivors == len(changes):
        return length
    following = changes[survivors]
    if isinstance(following, Cut):
        return length
    apply_change(content, following)
    first_boundary = length + -length % sector_bytes
    boundaries = range(first_boundary, len(content), sector_bytes)
    lengths: list[int] = [length, *boundaries]
    return random_.choice(lengths)


def _sector_states(
    durable: bytes, changes: Sequence[Change], survivors: int, sector_bytes: int
) -> dict[int, list[bytes]]:
    """For each sector touched: the states in which it may be found, oldest first."""
    states: dict[int, list[bytes]] = {}
    content = bytearray(durable)
    for index, change in enumerate(changes):
        length_before = len(content)
        apply_change(content, change)
        if isinstance(change, Write):
            for sector in _sectors(change.position, len(change.data), sector_bytes):
                older = states.setdefault(sector, [_sector(durable, sector, sector_bytes)])
                older.append(_sector(content, sector, sector_bytes))
        elif index < survivors:
            # The cut is on the disk: whatever state a sector is in, what was behind it is gone.
            for sector in _sectors(change.size, length_before - change.size, sector_bytes):
                older = states.get(sector) or [_sector(durable, sector, sector_bytes)]
                left = max(0, change.size - sector * sector_bytes)
                states[sector] = [state[:left].ljust(sector_bytes, b"\0") for state in older]
    return states


def _sectors(position: int, size: int, sector_bytes: int) -> Iterator[int]:
    if size > 0:
        yield from range(position // sector_bytes, (position + size - 1) // sector_bytes + 1)


def _sector(content: bytes | bytearray, sector: int, sector_bytes: int) -> bytes:
    start = sector * sector_bytes
    return bytes(content[start : start + sector_bytes]).ljust(sector_bytes, b"\0")


def _extend(content: bytearray, size: int) -> None:
    if len(content) < size:
        content.extend(bytes(size - len(content)))
