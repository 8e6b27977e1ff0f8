"""Builds batches with any columns: keys, headers, own times, expiry, offsets with gaps.

For what is not the plain hot path (batch.encode_values): keyed publishes, merging, compaction.
Compiled by mypyc, runs uncompiled too.
"""

from librt.strings import BytesWriter, write_i32_le, write_i64_le
from mypy_extensions import i32, i64

from penstock.log.batch.format import (
    FLAG_EXPIRIES,
    FLAG_HEADERS,
    FLAG_KEYS,
    FLAG_NULLS,
    FLAG_OFFSETS,
    FLAG_TIMES,
    MAX_TIME_US,
    MIN_TIME_US,
    Batch,
    BatchError,
    check_counts,
)
from penstock.log.batch.view import BatchView, Headers


class BatchBuilder:
    """Collects records and encodes them as one batch, with just the columns that they need."""

    def __init__(self) -> None:
        self._values: list[bytes | None] = []
        self._keys: list[bytes | None] = []
        self._headers: list[Headers] = []
        self._times: list[int] = []
        self._expiries: list[int] = []
        self._offsets: list[int] = []
        self._size: i64 = 0

    def __len__(self) -> int:
        return len(self._values)

    def size(self) -> int:
        """Payload bytes collected so far plus what their columns cost at most."""
        return self._size

    def add(
        self,
        value: bytes | None,
        time_us: int,
        key: bytes | None = None,
        headers: Headers | None = None,
        expiry_us: int = 0,
        offset: int = -1,
    ) -> None:
        self._values.append(value)
        self._keys.append(key)
        self._headers.append(headers if headers is not None else [])
        self._times.append(time_us)
        self._expiries.append(expiry_us)
        self._offsets.append(offset)
        self._size += 40
        if value is not None:
            self._size += len(value)
        if key is not None:
            self._size += len(key)
        if headers:
            for name, content in headers:
                self._size += len(name) + len(content) + 8

    def add_row(self, view: BatchView, row: int) -> None:
        """Copies one stored record with its offset and time."""
        self.add(
            None if view.is_null(row) else view.value(row),
            view.time_of(row),
            view.key(row),
            view.headers(row),
            view.expiry_of(row),
            view.offset_of(row),
        )

    def first_offset(self) -> int:
        return self._offsets[0]

    def last_offset(self) -> int:
        return self._offsets[-1]

    def build(self) -> Batch:
        """Raises BatchError when the batch would be too large or is empty."""
        return build_columns(
            self._values,
            self._keys,
            self._headers,
            self._times,
            self._expiries,
            self._offsets,
            self._size,
        )


def build_columns(
    values: list[bytes | None],
    keys: list[bytes | None],
    headers: list[Headers],
    times: list[int],
    expiries: list[int],
    offsets: list[int],
    size: int,
) -> Batch:
    """One list for each column, in the same order. Keys, headers and expiries may be empty lists where no
    record has one. `size` as in BatchBuilder. Raises BatchError as `build` does."""
    count = len(values)
    if count == 0:
        raise BatchError("a batch needs at least one record")
    check_counts(count, size)
    writer = BytesWriter()
    flags = 0
    present: list[bytes] = []
    for value in values:
        present.append(value if value is not None else b"")
        if value is None:
            flags = FLAG_NULLS
    _write_column(writer, present)
    if flags:
        _write_validity(writer, values)
    if _any_present(keys):
        flags |= FLAG_KEYS
        _write_keys(writer, keys)
    if any(headers):
        flags |= FLAG_HEADERS
        _write_headers(writer, headers)
    last_us = max(times)
    if min(times) != last_us:
        flags |= FLAG_TIMES
        _write_i64s(writer, times)
    if any(expiries):
        flags |= FLAG_EXPIRIES
        _write_i64s(writer, expiries)
    if offsets[0] >= 0 and offsets[-1] - offsets[0] != count - 1:
        flags |= FLAG_OFFSETS
        _write_i64s(writer, offsets)
    return Batch(writer.getvalue(), count, flags, times[0], last_us)


def _any_present(items: list[bytes | None]) -> bool:
    for item in items:  # noqa: SIM110  # `any` would make a generator, a call for each item
        if item is not None:
            return True
    return False


def _pad(writer: BytesWriter) -> None:
    while len(writer) & 7:
        writer.append(0)


def _write_offsets(writer: BytesWriter, items: list[bytes]) -> None:
    position: i64 = 0
    write_i32_le(writer, 0)
    for item in items:
        position += len(item)
        write_i32_le(writer, i32(position))
    _pad(writer)


def _write_column(writer: BytesWriter, items: list[bytes]) -> None:
    _write_offsets(writer, items)
    for item in items:
        writer.write(item)
    _pad(writer)


def _write_keys(writer: BytesWriter, keys: list[bytes | None]) -> None:
    present = [key if key is not None else b"" for key in keys]
    _write_offsets(writer, present)
    _write_validity(writer, keys)
    for item in present:
        writer.write(item)
    _pad(writer)


def _write_validity(writer: BytesWriter, items: list[bytes | None]) -> None:
    bits: i64 = 0
    row: i64 = 0
    for item in items:
        if item is not None:
            bits |= 1 << (row & 7)
        row += 1
        if row & 7 == 0:
            writer.append(bits)
            bits = 0
    if row & 7:
        writer.append(bits)
    _pad(writer)


def _write_headers(writer: BytesWriter, headers: list[Headers]) -> None:
    names: list[bytes] = []
    contents: list[bytes] = []
    write_i32_le(writer, 0)
    for pairs in headers:
        for name, content in pairs:
            names.append(name)
            contents.append(content)
        write_i32_le(writer, len(names))
    _pad(writer)
    _write_column(writer, names)
    _write_column(writer, contents)


def _write_i64s(writer: BytesWriter, numbers: list[int]) -> None:
    if min(numbers) < MIN_TIME_US or max(numbers) > MAX_TIME_US:
        raise BatchError("a time or offset does not fit 64 bits")
    for number in numbers:
        write_i64_le(writer, number)
