"""Fujin's readers: every example of FETCH, ACK, NACK and MSG in the form that the rows settle."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire.ways import WAYS, Feed, SplitResult, byte_by_byte, prefixes, whole

from penstock.log.batch.format import encode_values
from penstock.log.batch.view import view_appended
from penstock.wire.fujin import reading as r
from penstock.wire.fujin.commands import Ends
from penstock.wire.fujin.sizes import size_auto

CID = bytes([0, 0, 0, 1])


def split(buffer: bytes, start: int, end: int) -> SplitResult:
    items, position = r.split_reader(buffer, start, end)
    return items, position, None


def events(items: list[Any]) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for item in items:
        if isinstance(item, r.Fetch):
            found.append(("fetch", item.cid, item.count))
        elif isinstance(item, r.Settle):
            found.append(("settle", item.opcode, item.cid, item.ids))
        else:
            found.append(("ends", item.words))
    return found


@pytest.mark.parametrize("feed", WAYS)
@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (bytes([7, 0, 0, 0, 1, 0, 0, 0, 1]), ("fetch", CID, 1)),
        (bytes([8, 0, 0, 0, 1, 0, 0, 0, 0]), ("settle", 8, CID, [])),
        # The example of the document with the id that it leaves out (row 80).
        (bytes([8, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 7, 8]), ("settle", 8, CID, [b"\7\10"])),
        (bytes([9, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0]), ("settle", 9, CID, [b""])),
        (
            r.encode_settle(9, 1, [b"one", b"", r.encode_id(1, 2)]),
            ("settle", 9, CID, [b"one", b"", r.encode_id(1, 2)]),
        ),
    ],
)
def test_requests(feed: Feed, sent: bytes, expected: tuple[object, ...]) -> None:
    items, position, _ = feed(split, sent * 2 + sent[:-1])
    assert (events(items), position) == ([expected] * 2, 2 * len(sent))
    for part in prefixes(sent):
        assert r.split_reader(part, 0, len(part)) == ([], 0)
        assert size_auto(part, 0, len(part)) <= len(sent)


def test_the_examples_of_ack_and_nack_wait_for_their_id() -> None:
    """Row 80: a count of 1 without an id."""
    for opcode in (8, 9):
        sent = bytes([opcode, 0, 0, 0, 1, 0, 0, 0, 1])
        assert r.split_reader(sent, 0, len(sent)) == ([], 0)


@pytest.mark.parametrize("opcode", [0, 1, 2, 3, 4, 5, 6, 11, 12, 255])
def test_an_opcode_that_readers_do_not_have_ends_the_session(opcode: int) -> None:
    data = bytes([7, 0, 0, 0, 1, 0, 0, 0, 1, opcode, 7])
    items, position = r.split_reader(data, 0, len(data))
    assert events(items) == [("fetch", CID, 1), ("ends", b"\x0a")]
    assert position == len(data)


def test_disconnect() -> None:
    items, position = r.split_reader(b"\x0abehind", 0, 7)
    assert position == 7
    assert isinstance(items[0], Ends) and (items[0].words, items[0].flaw) == (b"\x0a", "")


@pytest.mark.parametrize(
    "sent",
    [
        bytes([8, 0, 0, 0, 1, 255, 255, 255, 255]),
        bytes([9, 0, 0, 0, 1, 0, 0, 0, 2, 255, 255, 255, 255]),
        bytes([9, 0, 0, 0, 1, 0, 4, 0, 0]),
    ],
)
def test_ids_without_end_are_not_waited_for(sent: bytes) -> None:
    words = sent[:5] + bytes([1, 0, 0, 0, 20]) + b"too many message ids" + b"\x0a"
    assert events(r.split_reader(sent, 0, len(sent))[0]) == [("ends", words)]


# --- messages --------------------------------------------------------------------------------------


def written(writer: r.MessageWriter, *values: bytes, offset: int = 0, partition: int = 0) -> None:
    view = view_appended(encode_values(list(values), 1), offset)
    writer.add_rows(
        view.buffer,
        view.value_offsets_at,
        view.values_at,
        view.first_row,
        len(view),
        partition,
        offset,
    )


def test_messages_of_the_document() -> None:
    push = r.MessageWriter(push=True, with_ids=False)
    written(push, b"hello")
    assert list(push.take()) == [6, 0, 0, 0, 5, 104, 101, 108, 108, 111]
    fetched = r.MessageWriter(push=False, with_ids=False)
    written(fetched, b"hello")
    # Row 68: the error comes before the count.
    expected = [7, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 5, 104, 101, 108, 108, 111]
    assert list(fetched.fetched(CID)) == expected
    nothing = r.MessageWriter(push=False, with_ids=True)
    assert list(nothing.fetched(CID)) == [7, 0, 0, 0, 1, 0, 0, 0, 0, 0]


def test_messages_with_ids() -> None:
    id = [0, 0, 0, 12, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 1, 0]
    push = r.MessageWriter(push=True, with_ids=True)
    written(push, b"a", offset=256, partition=3)
    assert list(push.take()) == [6, *id, 0, 0, 0, 1, 97]
    fetched = r.MessageWriter(push=False, with_ids=True)
    written(fetched, b"a", b"bc", offset=256, partition=3)
    second = [*id[:-1], 1, 0, 0, 0, 2, 98, 99]
    assert list(fetched.fetched(CID)) == [
        7,
        0,
        0,
        0,
        1,
        0,
        0,
        0,
        0,
        2,
        *id,
        0,
        0,
        0,
        1,
        97,
        *second,
    ]


def test_empty_records_are_skipped_and_counted() -> None:
    push = r.MessageWriter(push=True, with_ids=True)
    written(push, b"", b"x", b"", offset=5)
    assert (push.count, push.skipped) == (1, 2)
    assert push.take() == b"\6\0\0\0\x0c" + r.encode_id(0, 6) + b"\0\0\0\1x"


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**63 - 1))
def test_ids_both_ways(partition: int, offset: int) -> None:
    id = r.encode_id(partition, offset)
    assert (r.partition_of(id), r.offset_of(id)) == (partition, offset)


@pytest.mark.parametrize("id", [b"", b"x", bytes(11), bytes(13)])
def test_what_is_no_id_of_ours(id: bytes) -> None:
    assert r.partition_of(id) == -1


def test_results_of_ack() -> None:
    """Rows 81 to 84: the array is always there, 0 is done."""
    assert list(r.encode_settled(8, CID, [], {}, False)) == [8, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    failures = {1: "msg not found"}
    found = r.encode_settled(9, CID, [b"a", b""], failures, False)
    text = [0, 0, 0, 13, *b"msg not found"]
    head = [9, 0, 0, 0, 1, 0, 0, 0, 0, 2]
    assert list(found) == [*head, 0, 0, 0, 1, 97, 0, 0, 0, 0, 0, 1, *text]
    literal = r.encode_settled(9, CID, [b"a", b""], failures, True)
    assert list(literal) == [*head, 0, 0, 0, 1, 97, 1, 0, 0, 0, 0, 0]


# --- anything --------------------------------------------------------------------------------------

COMMANDS = st.one_of(
    st.builds(
        r.encode_settle,
        st.sampled_from([8, 9]),
        st.integers(0, 9),
        st.lists(st.binary(max_size=5), max_size=4),
    ),
    st.just(bytes([7, 0, 0, 0, 1, 0, 0, 0, 9])),
    st.binary(max_size=4),
)


@given(st.lists(COMMANDS, max_size=8))
def test_commands_split_the_same_however_they_arrive(commands: list[bytes]) -> None:
    data = b"".join(commands)
    first = events(whole(split, data)[0])
    second = events(byte_by_byte(split, data)[0])
    ended = next((at for at, event in enumerate(second) if event[0] == "ends"), len(second))
    assert first == second[: ended + 1]


@given(st.binary())
def test_any_bytes_split_or_end_the_session(data: bytes) -> None:
    """The invariant: nothing is raised, and the rest begins within the input."""
    assert 0 <= r.split_reader(data, 0, len(data))[1] <= len(data)
