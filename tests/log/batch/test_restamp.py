"""A header for another place, without the body: what it gives is what a stamp with the body gives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.records import SOME_ROWS, Row, build

from penstock.log.batch.format import BatchError, check_batch, parse_header
from penstock.log.batch.restamp import check_body, restamped

U32 = st.integers(0, (1 << 32) - 1)
OFFSET = st.integers(0, 1 << 62)


@given(SOME_ROWS, OFFSET, OFFSET, U32, st.integers(0, (1 << 64) - 1), U32)
def test_the_same_as_with_the_body(
    rows: list[Row], base: int, durable: int, salt: int, producer: int, sequence: int
) -> None:
    batch = build(rows)
    head = batch.stamp(7 << 24 | 1, 0)
    found = restamped(head, parse_header(head, 0), base, durable, salt, producer, sequence)
    assert found == batch.from_producer(producer, 0, sequence).stamp(base, durable, salt)
    check_batch(found + batch.body, 0)


def test_a_damaged_body_stays_damaged() -> None:
    batch = build([Row(b"value")])
    head = batch.stamp(1, 0)
    found = restamped(head, parse_header(head, 0), 5, 5, 9, 3, 0)
    damaged = batch.body[:-1] + bytes([batch.body[-1] ^ 1])
    with pytest.raises(BatchError, match="checksum"):
        check_batch(found + damaged, 0)


def test_a_body_is_checked_with_its_header() -> None:
    batch = build([Row(b"value")])
    head = batch.stamp(1, 0)
    assert check_body(head, batch.body).count == 1
    with pytest.raises(BatchError, match="cut off"):
        check_body(head, batch.body[:-8])
    with pytest.raises(BatchError, match="checksum is"):
        check_body(head, b"\1" + batch.body[1:])
