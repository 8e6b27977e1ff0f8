"""The batch codec: header, checksum, hot encoder, compression, and what bad bytes get."""

import random
from struct import pack_into

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from kit.records import SOME_ROWS, Row, build, stored, view_batch

from penstock.log.batch.format import (
    CRC_FROM,
    FLAG_NULLS,
    FLAG_PRODUCER,
    FLAG_ZSTD,
    HEADER_SIZE,
    HEADER_SIZE_1,
    MAX_BATCH_BYTES,
    MAX_BATCH_RECORDS,
    MAX_OFFSET,
    Batch,
    BatchError,
    check_batch,
    encode_values,
    parse_header,
)
from penstock.log.batch.view import UnknownKeyId, view_appended

VALUES = st.lists(st.binary(max_size=40), min_size=1, max_size=20)


def resealed(data: bytes, **fields: int) -> bytes:
    """The batch with some header fields changed and the checksum made right again."""
    places = {"flags": ("<H", 12), "version": ("<H", 14), "base": ("<q", 16), "count": ("<I", 24)}
    places |= {"raw": ("<I", 28), "length": ("<I", 4), "magic": ("<I", 0)}
    places |= {"salt": ("<I", 72), "key_id": ("<I", 76)}
    changed = bytearray(data)
    for name, number in fields.items():
        form, position = places[name]
        pack_into(form, changed, position, number)
    body_checksum = crc32c(bytes(changed[HEADER_SIZE:]))
    pack_into("<I", changed, 8, crc32c(bytes(changed[CRC_FROM:HEADER_SIZE]), body_checksum))
    return bytes(changed)


@given(VALUES, st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 1 << 62))
def test_plain_values_come_back(values: list[bytes], time_us: int, base: int) -> None:
    data = stored(encode_values(values, time_us), base)
    view = view_batch(data, 0)
    assert view.values() == values
    assert [record.offset for record in view.records()] == list(range(base, base + len(values)))
    assert {record.time_us for record in view.records()} == {time_us}
    assert len(data) % 8 == 0


@given(VALUES)
def test_both_encoders_write_the_same_bytes(values: list[bytes]) -> None:
    hot = encode_values(values, 5)
    general = build([Row(value, 5) for value in values])
    assert (hot.body, hot.flags, hot.count) == (general.body, general.flags, general.count)


def test_the_header_holds_every_field() -> None:
    batch = encode_values([b"a", b"b"], 11).from_producer((1 << 64) - 1, (1 << 32) - 1, 3)
    header = check_batch(batch.stamp(40, 39) + batch.body, 0)
    assert header.length == batch.size() == HEADER_SIZE + len(batch.body)
    assert header.flags == FLAG_PRODUCER
    assert (header.base_offset, header.count, header.durable_offset) == (40, 2, 39)
    assert (header.first_time_us, header.max_time_us, header.raw_length) == (11, 11, 0)
    assert (header.producer_id, header.epoch, header.sequence) == ((1 << 64) - 1, (1 << 32) - 1, 3)


def test_a_batch_is_found_behind_and_before_other_bytes() -> None:
    data = stored(encode_values([b"value"], 1), 9)
    assert check_batch(b"x" * 8 + data + b"y" * 5, 8).base_offset == 9


@given(SOME_ROWS)
def test_compression_changes_nothing_but_the_size(rows: list[Row]) -> None:
    plain = build([*rows, Row(b"a" * 4000)]).from_producer(5, 6, 7)
    packed = plain.compressed()
    assert packed.flags == plain.flags | FLAG_ZSTD
    assert packed.size() < plain.size() and packed.size() % 8 == 0
    assert packed.compressed() is packed
    one, other = view_appended(plain, 3), view_batch(stored(packed, 3), 0)
    assert one.buffer == other.buffer
    assert repr(one.records()) == repr(other.records())
    assert (other.header.producer_id, other.header.epoch, other.header.sequence) == (5, 6, 7)


def test_what_does_not_get_smaller_stays_plain() -> None:
    batch = encode_values([random.Random(1).randbytes(100)], 0)
    assert batch.compressed() is batch


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([], "at least one record"),
        ([b""] * (MAX_BATCH_RECORDS + 1), "over 1048576 records"),
        ([b"a" * MAX_BATCH_BYTES, b"b"], "over 67108864 bytes"),
    ],
    ids=["empty", "too many", "too large"],
)
def test_what_could_never_be_read_is_not_encoded(values: list[bytes], reason: str) -> None:
    with pytest.raises(BatchError, match=reason):
        encode_values(values, 0)


@pytest.mark.parametrize("time_us", [-(1 << 63) - 1, 1 << 63])
def test_a_time_that_does_not_fit_is_refused_at_once(time_us: int) -> None:
    with pytest.raises(BatchError, match="impossible times"):
        encode_values([b"v"], time_us)
    for rows in ([Row(b"v", time_us), Row(b"v")], [Row(b"v", expiry_us=time_us)]):
        with pytest.raises(BatchError, match="does not fit"):
            build(rows)


@pytest.mark.parametrize("numbers", [(-1, 0, 0), (1 << 64, 0, 0), (0, 1 << 32, 0), (0, 0, -1)])
def test_producer_numbers_that_do_not_fit_are_refused_at_once(
    numbers: tuple[int, int, int],
) -> None:
    with pytest.raises(BatchError, match="impossible producer"):
        encode_values([b"v"], 0).from_producer(*numbers)


def test_the_largest_batches_come_back() -> None:
    data = stored(encode_values([b""] * MAX_BATCH_RECORDS, 0))
    assert check_batch(data, 0).count == MAX_BATCH_RECORDS


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"magic": 1}, "no batch magic"),
        ({"length": HEADER_SIZE - 8}, "impossible batch length"),
        ({"length": HEADER_SIZE + 4}, "impossible batch length"),
        ({"length": (1 << 32) - 8}, "impossible batch length"),
        ({"length": HEADER_SIZE + 800}, "cut off"),
        ({"version": 3}, "unknown batch version 3"),
        ({"version": 0}, "unknown batch version 0"),
        ({"version": 1, "flags": FLAG_NULLS}, "unknown batch flags 0x200"),
        ({"flags": 0x8000}, "unknown batch flags 0x8000"),
        ({"count": 0}, "impossible batch of 0 records"),
        ({"count": MAX_BATCH_RECORDS + 1}, "impossible batch"),
        ({"base": -1}, "impossible batch"),
        ({"base": MAX_OFFSET}, "impossible batch"),
    ],
)
def test_impossible_headers_are_refused(fields: dict[str, int], reason: str) -> None:
    data = stored(encode_values([b"value", b"more"], 1))
    with pytest.raises(BatchError, match=reason):
        check_batch(resealed(data, **fields), 0)


def as_version_1(batch: Batch, base: int = 0) -> bytes:
    """The batch as the versions before wrote it: 8 bytes less of header."""
    header = batch.stamp(base, 0)[:HEADER_SIZE_1]
    data = bytearray(header + batch.body)
    pack_into("<I", data, 4, len(data))
    pack_into("<H", data, 14, 1)
    checksum = crc32c(bytes(data[CRC_FROM:HEADER_SIZE_1]), crc32c(batch.body))
    pack_into("<I", data, 8, checksum)
    return bytes(data)


@pytest.mark.parametrize("zstd", [False, True])
def test_version_1_is_read(zstd: bool) -> None:
    batch = build([Row(b"value" * 50, key=b"k"), Row(b"", key=b"k"), Row(b"")])
    data = as_version_1(batch.compressed() if zstd else batch, 7)
    view = view_batch(b"x" * 8 + data + b"y" * 8, 8)
    header = view.header
    assert (header.version, header.size, header.salt, header.key_id) == (1, HEADER_SIZE_1, 0, 0)
    assert view.values() == [b"value" * 50, b"", b""]
    assert [view.is_deletion(row) for row in range(3)] == [False, True, False]
    assert [view.is_null(row) for row in range(3)] == [False] * 3


def test_salt_and_key_id_stand_in_the_header() -> None:
    header = check_batch(stored(encode_values([b"v"], 1), 3, 2, 0xFFFF_FFFF), 0)
    assert (header.version, header.size, header.salt) == (2, HEADER_SIZE, 0xFFFF_FFFF)
    assert header.key_id == 0


def test_an_unknown_key_id_is_whole_but_refused() -> None:
    """Recovery must not cut what another server could read; a reader must not show it."""
    data = resealed(stored(encode_values([b"v"], 1), 3), key_id=7)
    assert check_batch(data, 0).key_id == 7
    with pytest.raises(UnknownKeyId, match="encrypted with key 7, which is not known here") as told:
        view_batch(data, 0)
    assert told.value.key_id == 7


def test_every_flipped_bit_is_found() -> None:
    data = stored(encode_values([b"some", b"values"], 1), 3)
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with pytest.raises(BatchError):
                check_batch(bytes(damaged), 0)


def test_every_cut_is_found() -> None:
    data = stored(encode_values([b"some", b"values"], 1), 3)
    for size in range(len(data)):
        with pytest.raises(BatchError):
            check_batch(data[:size], 0)


@given(st.binary(max_size=200), st.integers(0, 8))
def test_any_bytes_parse_or_raise_our_error(data: bytes, position: int) -> None:
    for function in (parse_header, check_batch):
        with pytest.raises(BatchError):
            function(data, position)
