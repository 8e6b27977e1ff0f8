"""What a task counts in one range of a partition: record batches in, a few rows out. No Spark, no server.

Works on columns, several small batches at a time. Memory does not grow with the records: bars become
wider, and of keys and reasons only the most frequent are kept. The rows of all ranges together are a
table; a column means something else for each kind of row:

    kind      topic  text      key  number         records  payload_bytes  low       high
    range     yes              -    largest value  yes      yes            first_us  last_us
    volume    yes    protocol  -    start in s     yes      yes                      width in s
    size      yes              -    bits of size   yes                               (-1: null)
    keyed     yes              -    slack          yes
    key       yes              yes                 yes
    letters   yes              -                   yes                     first_us  last_us
    reason    yes    reason    -                   yes
    refusals  door             -                   yes                     first_us  last_us
    refusal   door   what      -                   yes
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.report.asking import AUDIT_TOPIC, DEAD_LETTER_SUFFIX
from penstock.spark.report.buckets import MOST_BARS, wider_s
from penstock.spark.report.heavy import HeavyHitters

REASON_HEADER: Final = "penstock-reason"
NO_REASON: Final = "no reason given"
# A reason may hold a whole value; what is behind this only tells one record from the next.
REASON_CHARACTERS: Final = 200
# A longer key is kept as its beginning and a digest: it stays another key than the next.
KEY_BYTES: Final = 128
# Columns are counted when so much has come: Arrow's calls cost as much for a row as for a thousand.
ROWS_AT_ONCE: Final = 65_536
BYTES_AT_ONCE: Final = 32 << 20
SECOND_US: Final = 1_000_000
NULL_VALUE: Final = -1

COLUMNS: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("text", pa.string()),
        ("key", pa.binary()),
        ("number", pa.int64()),
        ("records", pa.int64()),
        ("payload_bytes", pa.int64()),
        ("low", pa.int64()),
        ("high", pa.int64()),
    ]
)


class Range(ABC):
    """Counts for one range. `extras`: the columns that it needs beside those that every read has."""

    extras: tuple[str, ...] = ()

    def __init__(self, topic: str, partition: int, from_us: int, to_us: int) -> None:
        self._topic = topic
        self._partition = partition
        self._period = from_us, to_us
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        self._records = 0
        self._first_us = 0
        self._last_us = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes the records of the period; a read by time may give a few more."""
        times = np.asarray(batch.column("timestamp").cast(pa.int64()))
        inside = (times >= self._period[0]) & (times < self._period[1])
        if not inside.all():
            batch, times = batch.filter(pa.array(inside)), times[inside]
        if not batch.num_rows:
            return
        low, high = int(times.min()), int(times.max())
        self._first_us = low if not self._records else min(low, self._first_us)
        self._last_us = max(high, self._last_us)
        self._records += batch.num_rows
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self._pending_bytes += batch.nbytes
        if self._pending_rows >= ROWS_AT_ONCE or self._pending_bytes >= BYTES_AT_ONCE:
            self._digest()

    def rows(self) -> pa.RecordBatch:
        """All that was counted."""
        self._digest()
        found = list(self._rows()) if self._records else []
        common = {"topic": self._topic, "partition": self._partition}
        return pa.RecordBatch.from_pylist([{**common, **one} for one in found], COLUMNS)

    def _digest(self) -> None:
        if self._pending:
            table = pa.Table.from_batches(self._pending)
            self._pending, self._pending_rows, self._pending_bytes = [], 0, 0
            self._count(table)

    @abstractmethod
    def _count(self, table: pa.Table) -> None: ...

    @abstractmethod
    def _rows(self) -> Iterator[dict[str, Any]]: ...

    @property
    def _times(self) -> dict[str, int]:
        return {"low": self._first_us, "high": self._last_us}


class TrafficRange(Range):
    extras = ("protocol",)

    def __init__(self, topic: str, partition: int, from_us: int, to_us: int) -> None:
        super().__init__(topic, partition, from_us, to_us)
        self._width_s = 1
        # By start and protocol: records and bytes.
        self._volume: dict[tuple[int, str], tuple[int, int]] = {}
        self._sizes: dict[int, int] = {}
        self._bytes = 0
        self._largest = 0
        self._keyed = 0
        self._keys: HeavyHitters[bytes] = HeavyHitters()

    def _count(self, table: pa.Table) -> None:
        lengths = pc.fill_null(pc.binary_length(table["value"]), NULL_VALUE)
        sizes = np.asarray(lengths.cast(pa.int64()))
        self._count_sizes(sizes)
        self._count_volume(table, np.maximum(sizes, 0))
        self._count_keys(table["key"])

    def _count_sizes(self, sizes: Any) -> None:
        self._bytes += int(np.maximum(sizes, 0).sum())
        self._largest = max(self._largest, int(sizes.max()))
        # The exponent of a float is the number of bits of a whole number below 2^53.
        bits = np.where(sizes < 0, NULL_VALUE, np.frexp(np.maximum(sizes, 0))[1])
        for number, count in zip(*np.unique(bits, return_counts=True), strict=True):
            self._sizes[int(number)] = self._sizes.get(int(number), 0) + int(count)

    def _count_volume(self, table: pa.Table, sizes: Any) -> None:
        seconds = np.asarray(table["timestamp"].cast(pa.int64())) // SECOND_US
        starts = seconds - seconds % self._width_s
        named = pc.fill_null(table["protocol"].cast(pa.string()), "").combine_chunks()
        protocols = named.dictionary_encode()
        names = protocols.dictionary.to_pylist()
        # One number for time and protocol: numpy counts what is equal.
        places = starts * len(names) + np.asarray(protocols.indices)
        found, which = np.unique(places, return_inverse=True)
        sums = np.bincount(which, weights=sizes)
        for place, count, size in zip(found, np.bincount(which), sums, strict=True):
            start, protocol = divmod(int(place), len(names))
            self._add_volume((start, names[protocol]), int(count), int(size))
        while len({start for start, _ in self._volume}) > MOST_BARS:
            self._widen()

    def _add_volume(self, place: tuple[int, str], records: int, size: int) -> None:
        before = self._volume.get(place, (0, 0))
        self._volume[place] = before[0] + records, before[1] + size

    def _widen(self) -> None:
        narrow, self._volume = self._volume, {}
        self._width_s = wider_s(self._width_s)
        for (start, protocol), (records, size) in narrow.items():
            self._add_volume((start - start % self._width_s, protocol), records, size)

    def _count_keys(self, keys: pa.ChunkedArray) -> None:
        keys = keys.drop_null()
        if not len(keys):
            return
        self._keyed += len(keys)
        counted = keys.value_counts()
        found, numbers = (counted.field(name).to_pylist() for name in ("values", "counts"))
        long = max(map(len, found)) > KEY_BYTES
        self._keys.add(zip(map(short_key, found) if long else found, numbers, strict=True))

    def _rows(self) -> Iterator[dict[str, Any]]:
        yield {
            "kind": "range",
            "number": self._largest,
            "records": self._records,
            "payload_bytes": self._bytes,
            **self._times,
        }
        for (start, protocol), (records, size) in self._volume.items():
            counted = {"number": start, "records": records, "payload_bytes": size}
            yield {"kind": "volume", "text": protocol, "high": self._width_s, **counted}
        for bits, count in self._sizes.items():
            yield {"kind": "size", "number": bits, "records": count}
        keys = self._keys.counts()
        if self._keyed:
            yield {"kind": "keyed", "records": self._keyed, "number": self._keys.slack}
        for key, count in keys.items():
            yield {"kind": "key", "key": key, "records": count}


class LetterRange(Range):
    """Dead letters, by their reasons. They are no traffic: what they hold was counted once already."""

    extras = ("headers",)

    def __init__(self, topic: str, partition: int, from_us: int, to_us: int) -> None:
        super().__init__(topic.removesuffix(DEAD_LETTER_SUFFIX), partition, from_us, to_us)
        self._reasons: HeavyHitters[str] = HeavyHitters()

    def _count(self, table: pa.Table) -> None:
        for headers in table["headers"].chunks:
            found = dict.fromkeys(range(len(headers)), NO_REASON)
            parents, flat = pc.list_parent_indices(headers), headers.flatten()
            ours = pc.equal(flat.field("key"), REASON_HEADER)
            pairs = zip(
                parents.filter(ours).to_pylist(), flat.field("value").filter(ours), strict=True
            )
            # The broker's own header stands behind those that the record had, and wins.
            found.update((parent, short_reason(value.as_py())) for parent, value in pairs)
            self._reasons.add((reason, 1) for reason in found.values())

    def _rows(self) -> Iterator[dict[str, Any]]:
        yield {"kind": "letters", "records": self._records, **self._times}
        for reason, count in self._reasons.counts().items():
            yield {"kind": "reason", "text": reason, "records": count}


class _Event(msgspec.Struct):
    """Of an event of the audit trail what counts here."""

    type: str
    door: str = ""
    action: str = ""
    result: str = ""
    details: dict[str, str] = {}

    @property
    def times(self) -> int:
        repeats = self.details.get("repeats", "")
        return int(repeats) if repeats.isascii() and repeats.isdigit() else 1

    @property
    def text(self) -> str:
        words = [self.type, self.action]
        words += [self.details.get(name, "") for name in ("reason", "with", "error")]
        return short_reason(", ".join(filter(None, words)).encode())


class AuditRange(Range):
    """Logins that failed, rights that were missing, changes that did not come about."""

    def __init__(self, topic: str, partition: int, from_us: int, to_us: int) -> None:
        super().__init__(topic, partition, from_us, to_us)
        self._refused: HeavyHitters[tuple[str, str]] = HeavyHitters()
        self._total = 0
        self._decoder = msgspec.json.Decoder(_Event)

    def _count(self, table: pa.Table) -> None:
        for value in table["value"].to_pylist():
            try:
                event = self._decoder.decode(value or b"")
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            if event.result != "success":
                self._total += event.times
                self._refused.add([((event.door, event.text), event.times)])

    def _rows(self) -> Iterator[dict[str, Any]]:
        if self._total:
            yield {"kind": "refusals", "records": self._total, **self._times}
        for (door, text), count in self._refused.counts().items():
            yield {"kind": "refusal", "topic": door, "text": text, "records": count}


def range_for(topic: str, partition: int, from_us: int, to_us: int) -> Range:
    kind: type[Range] = TrafficRange
    if topic == AUDIT_TOPIC:
        kind = AuditRange
    elif topic.endswith(DEAD_LETTER_SUFFIX):
        kind = LetterRange
    return kind(topic, partition, from_us, to_us)


def short_key(key: bytes) -> bytes:
    if len(key) <= KEY_BYTES:
        return key
    digest = hashlib.blake2b(key, digest_size=8).hexdigest().encode()
    return key[:KEY_BYTES] + b"... " + digest


def short_reason(raw: bytes | None) -> str:
    text = (raw or b"").decode("utf-8", "replace")[:REASON_CHARACTERS]
    return " ".join(text.split()) or NO_REASON
