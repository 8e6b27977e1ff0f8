"""Where the two dialects of RustLog differ: error texts, codes, and the meaning of some requests.

J is the protocol document; B is what the existing programs do. The rows of the conformance table prove each
difference. Both dialects use the same broker.
"""

from collections.abc import Iterable, Iterator
from typing import ClassVar, Protocol

from penstock.broker.errors import BrokerError, Code, from_exception
from penstock.log.batch.view import BatchView
from penstock.wire.rustlog import binary as rustlog_binary
from penstock.wire.rustlog import binary_reply as rustlog_binary_reply
from penstock.wire.rustlog import frames as wire
from penstock.wire.rustlog import json as rustlog_json
from penstock.wire.rustlog import json_encode as rustlog_json_encode

Fetched = tuple[bytes, int]

# Records of other producers that may get their offsets before those of a Produce do. This is far more than
# the 128 MiB of pending appends of a partition can hold, at four bytes a record.
MAX_OFFSETS_UNDER_WAY = 1 << 30


class Dialect(Protocol):
    """How one dialect interprets requests and builds its answers."""

    # Whether max_bytes 0 still gives one record.
    at_least_one: ClassVar[bool]
    # Whether an offset before the first kept record is "nothing here" instead of an error.
    skips_to_requested: ClassVar[bool]
    # Whether an offset can be committed for a partition that does not exist.
    commits_anywhere: ClassVar[bool]

    def decode(self, buffer: bytes, start: int, end: int) -> wire.Request: ...
    def error(self, code: int, message: str) -> bytes: ...
    def refusal(self, request: wire.Request, error: BaseException) -> bytes: ...
    def check_produce(self, records: list[bytes], next_offset: int) -> None: ...
    def produced(self, base_offset: int, count: int) -> bytes: ...
    def fetch_without_read(self, request: wire.Fetch, committed: int | None) -> bytes | None: ...
    def fetch_start(self, request: wire.Fetch, committed: int | None) -> int: ...
    def nothing_to_fetch(self, offset: int, latest: int) -> bytes: ...
    def fetched(self, request: wire.Fetch, views: list[BatchView], next_offset: int) -> Fetched: ...
    def offset_committed(self) -> bytes: ...
    def commit_without_partition(self) -> bytes: ...
    def committed(self, offset: int | None) -> bytes: ...
    def check_partition_count(self, count: int) -> None: ...
    def topic_created(self) -> bytes: ...
    def topics(self, pages: Iterable[list[tuple[str, int]]]) -> bytes: ...
    def topic_description(self, topic: str, high_watermarks: list[int]) -> bytes: ...
    def partition_description(self, topic: str, partition: int, high_watermark: int) -> bytes: ...
    def metrics(self, text: str) -> bytes: ...
    def pong(self) -> bytes: ...


_MISSING = (Code.UNKNOWN_TOPIC, Code.UNKNOWN_PARTITION)


def _place(request: wire.Request) -> tuple[str, int]:
    """Topic and partition of a request that has them."""
    return getattr(request, "topic", ""), getattr(request, "partition", 0)


class JsonDialect:
    at_least_one: ClassVar[bool] = True
    skips_to_requested: ClassVar[bool] = False
    commits_anywhere: ClassVar[bool] = False

    def decode(self, buffer: bytes, start: int, end: int) -> wire.Request:
        return rustlog_json.decode_request(buffer, start, end)

    def error(self, code: int, message: str) -> bytes:
        return rustlog_json_encode.encode_error(message)

    def refusal(self, request: wire.Request, error: BaseException) -> bytes:
        refused = from_exception(error)
        topic, partition = _place(request)
        text = str(refused)
        if refused.code in _MISSING:
            text = f"partition not found: topic={topic}, partition={partition}"
        elif refused.code is Code.OFFSET_OUT_OF_RANGE:
            earliest = getattr(refused.__cause__, "earliest", 0)
            requested = getattr(refused.__cause__, "offset", 0)
            text = f"offset out of range: requested {requested}, earliest {earliest}"
        return self.error(0, text)

    def check_produce(self, records: list[bytes], next_offset: int) -> None:
        """Refuses records that could be written but never be read or answered in this dialect."""
        latest_first = next_offset + MAX_OFFSETS_UNDER_WAY
        if not rustlog_json_encode.fits_produce_reply(latest_first, len(records)):
            raise BrokerError(
                Code.RECORD_TOO_LARGE,
                f"too many records: the reply would pass {wire.MAX_FRAME_BYTES} bytes",
            )
        for record in records:
            if not rustlog_json_encode.fits_single_record_reply(record):
                raise BrokerError(
                    Code.RECORD_TOO_LARGE,
                    f"record of {len(record)} bytes would not fit a reply of "
                    f"{wire.MAX_FRAME_BYTES} bytes",
                )

    def produced(self, base_offset: int, count: int) -> bytes:
        return rustlog_json_encode.encode_produce_reply(base_offset, count)

    def fetch_without_read(self, request: wire.Fetch, committed: int | None) -> bytes | None:
        return None

    def fetch_start(self, request: wire.Fetch, committed: int | None) -> int:
        return max(request.offset, committed or 0)

    def nothing_to_fetch(self, offset: int, latest: int) -> bytes:
        return rustlog_json_encode.FetchReplyWriter(0).finish(latest)

    def fetched(self, request: wire.Fetch, views: list[BatchView], next_offset: int) -> Fetched:
        writer = rustlog_json_encode.FetchReplyWriter(request.max_bytes)
        for view in views:
            taken = _add_json_rows(writer, view)
            if taken < len(view):
                next_offset = view.offset_of(view.first_row + taken)
                if writer.count == 0:
                    return self.error(0, _unreadable(view, next_offset)), 0
                break
        return writer.finish(next_offset), writer.count

    def offset_committed(self) -> bytes:
        return rustlog_json_encode.encode_offset_commit_reply(True)

    def commit_without_partition(self) -> bytes:
        return rustlog_json_encode.encode_offset_commit_reply(False)

    def committed(self, offset: int | None) -> bytes:
        return rustlog_json_encode.encode_offset_fetch_reply(offset)

    def check_partition_count(self, count: int) -> None:
        """The broker's own limits apply."""

    def topic_created(self) -> bytes:
        return rustlog_json_encode.encode_create_topic_reply(True)

    def topics(self, pages: Iterable[list[tuple[str, int]]]) -> bytes:
        sizes: list[int] = []
        try:
            return rustlog_json_encode.encode_list_topics_reply(_counted(pages, sizes))
        except ValueError:
            return self.error(0, _too_many(sum(sizes)))

    def topic_description(self, topic: str, high_watermarks: list[int]) -> bytes:
        raise BrokerError(Code.INVALID_REQUEST)

    def partition_description(self, topic: str, partition: int, high_watermark: int) -> bytes:
        raise BrokerError(Code.INVALID_REQUEST)

    def metrics(self, text: str) -> bytes:
        return rustlog_json_encode.encode_metrics_reply(text)

    def pong(self) -> bytes:
        return rustlog_json_encode.encode_pong()


def _add_json_rows(writer: rustlog_json_encode.FetchReplyWriter, view: BatchView) -> int:
    """How many rows of the view the reply took."""
    if not view.offsets_at:
        return writer.add_rows(
            view.buffer,
            view.value_offsets_at,
            view.values_at,
            view.first_row,
            len(view),
            view.first_offset(),
        )
    taken = 0
    for row in range(view.first_row, view.last_row):
        if not writer.add(view.offset_of(row), view.value(row)):
            break
        taken += 1
    return taken


def _counted(
    pages: Iterable[list[tuple[str, int]]], sizes: list[int]
) -> Iterator[list[tuple[str, int]]]:
    """The same pages; `sizes` gets the size of each."""
    for page in pages:
        sizes.append(len(page))
        yield page


def _too_many(count: int) -> str:
    return f"the names of {count} topics do not fit a reply of {wire.MAX_FRAME_BYTES} bytes"


def _unreadable(view: BatchView, offset: int) -> str:
    size = len(view.value(view.row_at(offset)))
    return (
        f"record too large for a reply: offset {offset} has {size} bytes, fetch from {offset + 1}"
    )


class BinaryDialect:
    at_least_one: ClassVar[bool] = False
    skips_to_requested: ClassVar[bool] = True
    commits_anywhere: ClassVar[bool] = True

    # Error codes of the existing broker.
    FETCH_FAILED: ClassVar[int] = 4
    COMMIT_FAILED: ClassVar[int] = 5
    MISSING: ClassVar[int] = 10
    EXISTS: ClassVar[int] = 11
    BAD_PARTITION_COUNT: ClassVar[int] = 12
    UNKNOWN_TOPIC: ClassVar[int] = 13
    UNKNOWN_PARTITION: ClassVar[int] = 14
    FAILED: ClassVar[int] = 500

    def decode(self, buffer: bytes, start: int, end: int) -> wire.Request:
        return rustlog_binary.decode_request(buffer, start, end)

    def error(self, code: int, message: str) -> bytes:
        return rustlog_binary_reply.encode_error(code, message)

    def refusal(self, request: wire.Request, error: BaseException) -> bytes:
        refused = from_exception(error)
        topic, partition = _place(request)
        if isinstance(request, wire.DescribeTopic):
            text = f"DescribeTopic failed: Topic '{topic}' not found"
            return self.error(self.UNKNOWN_TOPIC, text)
        if isinstance(request, wire.DescribePartition):
            text = f"DescribePartition failed: Partition {partition} not found in topic '{topic}'"
            return self.error(self.UNKNOWN_PARTITION, text)
        if isinstance(request, wire.CreateTopic):
            return self._create_refusal(topic, request.partition_count, refused)
        if refused.code in _MISSING:
            text = f"Topic or partition does not exist: topic={topic}, partition={partition}"
            return self.error(self.MISSING, text)
        if isinstance(request, wire.Fetch):
            return self.error(self.FETCH_FAILED, f"Failed to fetch records: {refused}")
        if isinstance(request, wire.OffsetCommit):
            return self.error(self.COMMIT_FAILED, f"Failed to commit offset: {refused}")
        if isinstance(request, wire.Produce):
            return self.error(self.FAILED, f"Failed to write record: {refused}")
        return self.error(self.FAILED, str(refused))

    def _create_refusal(self, topic: str, count: int, refused: BrokerError) -> bytes:
        if refused.code is Code.TOPIC_EXISTS:
            return self.error(self.EXISTS, f"Topic '{topic}' already exists")
        if refused.code is Code.INVALID_SETTINGS:
            return self.error(self.BAD_PARTITION_COUNT, f"Invalid partition count: {count}")
        return self.error(self.FAILED, f"Failed to create topic: {refused}")

    def check_produce(self, records: list[bytes], next_offset: int) -> None:
        """Every record that fits a request fits a reply in this dialect."""

    def produced(self, base_offset: int, count: int) -> bytes:
        return rustlog_binary_reply.encode_produce_reply(base_offset if count else 0, count)

    def fetch_without_read(self, request: wire.Fetch, committed: int | None) -> bytes | None:
        """A group without a commit gets nothing, and this comes before the partition is looked up."""
        if request.group_id and committed is None:
            return rustlog_binary_reply.FetchReplyWriter(0).finish(0)
        return None

    def fetch_start(self, request: wire.Fetch, committed: int | None) -> int:
        return committed if committed is not None else request.offset

    def nothing_to_fetch(self, offset: int, latest: int) -> bytes:
        return rustlog_binary_reply.FetchReplyWriter(0).finish(offset)

    def fetched(self, request: wire.Fetch, views: list[BatchView], next_offset: int) -> Fetched:
        writer = rustlog_binary_reply.FetchReplyWriter(request.max_bytes)
        # Replies carry no offsets, a reader takes the records as dense: a gap ends the reply.
        expected = views[0].first_offset() if views else 0
        for view in views:
            if view.first_offset() != expected:
                return writer.finish(expected), writer.count
            dense = _dense_rows(view)
            taken = _add_binary_rows(writer, view, dense)
            expected = view.first_offset() + taken
            if taken < len(view):
                if writer.count == 0:
                    return self.error(self.FETCH_FAILED, _unreadable(view, expected)), 0
                return writer.finish(expected), writer.count
        return writer.finish(next_offset), writer.count

    def offset_committed(self) -> bytes:
        return rustlog_binary_reply.encode_offset_commit_reply()

    def commit_without_partition(self) -> bytes:
        return rustlog_binary_reply.encode_offset_commit_reply()

    def committed(self, offset: int | None) -> bytes:
        return rustlog_binary_reply.encode_offset_fetch_reply(offset)

    def check_partition_count(self, count: int) -> None:
        """Zero is refused before anybody looks whether the topic exists."""
        if count == 0:
            raise BrokerError(Code.INVALID_SETTINGS)

    def topic_created(self) -> bytes:
        return rustlog_binary_reply.encode_create_topic_reply()

    def topics(self, pages: Iterable[list[tuple[str, int]]]) -> bytes:
        sizes: list[int] = []
        try:
            return rustlog_binary_reply.encode_list_topics_reply(_counted(pages, sizes))
        except ValueError:
            return self.error(self.FAILED, _too_many(sum(sizes)))

    def topic_description(self, topic: str, high_watermarks: list[int]) -> bytes:
        return rustlog_binary_reply.encode_describe_topic_reply(topic, high_watermarks)

    def partition_description(self, topic: str, partition: int, high_watermark: int) -> bytes:
        return rustlog_binary_reply.encode_describe_partition_reply(
            topic, partition, high_watermark
        )

    def metrics(self, text: str) -> bytes:
        return rustlog_binary_reply.encode_metrics_reply(text)

    def pong(self) -> bytes:
        return rustlog_binary_reply.encode_pong()


def _dense_rows(view: BatchView) -> int:
    """Rows from the first on whose offsets follow each other."""
    if not view.offsets_at:
        return len(view)
    first = view.first_offset()
    rows = 1
    while rows < len(view) and view.offset_of(view.first_row + rows) == first + rows:
        rows += 1
    return rows


def _add_binary_rows(
    writer: rustlog_binary_reply.FetchReplyWriter, view: BatchView, rows: int
) -> int:
    return writer.add_rows(view.buffer, view.value_offsets_at, view.values_at, view.first_row, rows)
