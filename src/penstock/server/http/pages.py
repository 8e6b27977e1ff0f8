"""Long pages, made off the event loop in small pieces; those of records as JSON.

Ten thousand records take tens of milliseconds to write as JSON. One thread does it for all readers, a piece
at a time, so that neither the loop nor the interpreter's lock is held for longer than one piece takes.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

import msgspec

from penstock.log.batch.view import BatchView, Record
from penstock.log.engine import ReadResult

# A piece ends with the record that passes one of these. About half a millisecond.
PIECE_RECORDS: Final = 64
PIECE_BYTES: Final = 128 * 1024

_encode: Final = msgspec.json.Encoder().encode


class Pieces(Protocol):
    """A page: it is made as it is read."""

    def pieces(self) -> Iterator[bytes]: ...


class Pages:
    """The thread that makes pages."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "penstock-http-pages")

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def pieces(self, page: Pieces) -> AsyncIterator[bytes]:
        """The text of the page, piece by piece; a piece may be empty."""
        loop = asyncio.get_running_loop()
        pieces = page.pieces()
        while (piece := await loop.run_in_executor(self._thread, _next_piece, pieces)) is not None:
            yield piece


def _next_piece(pieces: Iterator[bytes]) -> bytes | None:
    """None at the end."""
    return next(pieces, None)


class Page:
    """What was read, of one partition; at most `limit` records of it are shown."""

    media_type: Final = "application/json"

    def __init__(self, partition: int, found: ReadResult, limit: int) -> None:
        self._partition = partition
        self._found = found
        self._limit = limit

    def pieces(self) -> Iterator[bytes]:
        left = self._limit
        next_offset = self._found.next_offset
        start = b'{"records":['
        for view in self._found.views:
            rows = range(view.first_row, min(view.last_row, view.first_row + left))
            left -= len(rows)
            for piece in self._of(view, rows):
                yield start + piece
                start = b","
            if len(rows) < len(view):
                next_offset = view.offset_of(rows.stop)
                break
        if start != b",":
            yield start
        end = {"next_offset": next_offset, "end_offset": self._found.end_offset}
        yield b"]," + _encode(end)[1:]

    def _of(self, view: BatchView, rows: range) -> Iterator[bytes]:
        """Records with commas between them, without the brackets of a list."""
        piece: list[bytes] = []
        size = 0
        for row in rows:
            piece.append(_encode(self._record(view.record(row))))
            size += len(piece[-1])
            if len(piece) >= PIECE_RECORDS or size >= PIECE_BYTES:
                yield b",".join(piece)
                piece, size = [], 0
        if piece:
            yield b",".join(piece)

    def _record(self, record: Record) -> dict[str, object]:
        """msgspec writes bytes as base64."""
        return {
            "partition": self._partition,
            "offset": record.offset,
            "timestamp_us": record.time_us,
            "key": record.key,
            "value": record.value,
            "headers": [[name.decode("utf-8", "replace"), v] for name, v in record.headers],
        }
