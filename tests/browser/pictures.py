"""The colours of a screenshot, without a library for pictures: a PNG, 8 bits for a channel."""

import struct
import zlib
from collections import Counter

SIGNATURE = b"\x89PNG\r\n\x1a\n"
# By the type of colour: bytes for a pixel.
CHANNELS = {2: 3, 6: 4}


def colours(png: bytes) -> Counter[tuple[int, int, int]]:
    """How many pixels have each colour."""
    assert png.startswith(SIGNATURE)
    width, height, depth, kind = struct.unpack_from(">IIBB", png, 16)
    assert depth == 8
    step = CHANNELS[kind]
    found: Counter[tuple[int, int, int]] = Counter()
    for line in _lines(_content(png), width * step, height, step):
        pixels = zip(line[0::step], line[1::step], line[2::step], strict=True)
        found.update(pixels)
    return found


def _content(png: bytes) -> bytes:
    at, parts = len(SIGNATURE), []
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        if png[at + 4 : at + 8] == b"IDAT":
            parts.append(png[at + 8 : at + 8 + length])
        at += length + 12
    return zlib.decompress(b"".join(parts))


def _lines(content: bytes, length: int, height: int, step: int) -> "list[bytearray]":
    """Takes back what the filter of each line did."""
    found, before = [], bytearray(length)
    for number in range(height):
        start = number * (length + 1)
        line = bytearray(content[start + 1 : start + 1 + length])
        _unfilter(content[start], line, before, step)
        found.append(line)
        before = line
    return found


def _unfilter(kind: int, line: bytearray, before: bytearray, step: int) -> None:
    if kind == 0:
        return
    for place, value in enumerate(line):
        left = line[place - step] if place >= step else 0
        up = before[place]
        corner = before[place - step] if place >= step else 0
        guess = (0, left, up, (left + up) // 2, _nearest(left, up, corner))[kind]
        line[place] = (value + guess) & 0xFF


def _nearest(left: int, up: int, corner: int) -> int:
    guess = left + up - corner
    distances = abs(guess - left), abs(guess - up), abs(guess - corner)
    return (left, up, corner)[distances.index(min(distances))]
