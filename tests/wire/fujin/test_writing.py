"""Fujin's writers: the three reading rules, runs, flaws, limits, and agreement however bytes arrive."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire.ways import WAYS, Feed, SplitResult, Splitter, byte_by_byte, prefixes, whole

from penstock.wire.fujin import commands as c
from penstock.wire.fujin import writing as w
from penstock.wire.fujin.sizes import size_auto, size_off, size_on

# The example of the document, and the same in the form of its table.
EXAMPLE = bytes([3, 0, 1, 1, 1, 0, 0, 0, 3, 112, 117, 98, 0, 0, 0, 5, 104, 101, 108, 108, 111])
WITH_HEADERS = bytes(
    [*EXAMPLE[:12], 0, 2, 0, 0, 0, 1, 110, 0, 0, 0, 1, 118, 0, 0, 0, 5, 104, 101, 108, 108, 111]
)
NO_HEADERS = bytes(
    [3, 0, 1, 1, 1, 0, 0, 0, 3, 112, 117, 98, 0, 0, 0, 0, 0, 5, 104, 101, 108, 108, 111]
)
SIZES = {w.AUTO: size_auto, w.ON: size_on, w.OFF: size_off}


def splitter(rule: int, limit: int = w.MAX_MESSAGE_BYTES) -> Splitter:
    def split(buffer: bytes, start: int, end: int) -> SplitResult:
        items, position = w.split_writer(buffer, start, end, rule, limit)
        return items, position, None

    return split


def events(items: list[Any]) -> list[tuple[object, ...]]:
    """One entry for each command, in the order of the items."""
    found: list[tuple[object, ...]] = []
    for item in items:
        if isinstance(item, w.WriteRun):
            cids = item.cids
            for row, value in enumerate(item.values):
                cid = int.from_bytes(cids[4 * row : 4 * row + 4], "big")
                headers = [] if item.headers is None else item.headers[row]
                found.append(("write", item.topic_name, cid, value, headers))
        elif isinstance(item, w.Refused):
            found.append(("refused", item.cid, item.text))
        elif isinstance(item, w.Transaction):
            found.append(("tx", item.opcode, item.cid))
        else:
            found.append(("ends", item.words))
    return found


HELLO: tuple[object, ...] = ("write", "pub", 0x00010101, b"hello", [])


@pytest.mark.parametrize("feed", WAYS)
@pytest.mark.parametrize(
    ("rule", "sent", "expected"),
    [
        (w.AUTO, EXAMPLE, HELLO),
        (w.OFF, EXAMPLE, HELLO),
        (w.AUTO, NO_HEADERS, HELLO),
        (w.ON, NO_HEADERS, HELLO),
        (w.AUTO, WITH_HEADERS, (*HELLO[:4], [(b"n", b"v")])),
        (w.ON, WITH_HEADERS, (*HELLO[:4], [(b"n", b"v")])),
    ],
)
def test_the_example_in_each_form(
    feed: Feed, rule: int, sent: bytes, expected: tuple[object, ...]
) -> None:
    items, position, _ = feed(splitter(rule), sent * 2 + sent[:-1])
    assert events(items) == [expected] * 2
    assert position == 2 * len(sent)
    for part in prefixes(sent):
        assert w.split_writer(part, 0, len(part), rule) == ([], 0)
        assert len(part) < max(SIZES[rule](part, 0, len(part)), len(part) + 1) <= len(sent)


def test_results_of_the_example() -> None:
    assert list(w.encode_written(bytes([0, 1, 1, 1]))) == [2, 0, 1, 1, 1, 0]
    refusal = [1, 0, 0, 0, 16, *b"writer not found"]
    expected = [2, 0, 0, 0, 1, *refusal, 2, 255, 255, 255, 255, *refusal]
    assert list(w.encode_written(b"\0\0\0\1\xff\xff\xff\xff", "writer not found")) == expected


@pytest.mark.parametrize(
    ("opcode", "expected"),
    [
        (4, ("tx", c.BEGIN, bytes([0, 0, 0, 1]))),
        (5, ("tx", c.COMMIT, bytes([0, 0, 0, 1]))),
        (6, ("tx", c.ROLLBACK, bytes([0, 0, 0, 1]))),
    ],
)
@pytest.mark.parametrize("feed", WAYS)
def test_transactions(feed: Feed, opcode: int, expected: tuple[object, ...]) -> None:
    items, position, _ = feed(splitter(w.AUTO), bytes([opcode, 0, 0, 0, 1, opcode, 0]))
    assert (events(items), position) == ([expected], 5)


def test_messages_of_one_topic_are_one_run_up_to_the_next_command() -> None:
    data = b"".join(
        (
            w.encode_write(1, b"a", b"1", None),
            w.encode_write(2, b"b", b"2", [(b"n", b"v")]),
            w.encode_write(3, b"a", b"3", []),
            w.encode_write(4, b"b", b"4", None),
            bytes([4, 0, 0, 0, 5]),
            w.encode_write(6, b"a", b"6", None),
        )
    )
    items, position = w.split_writer(data, 0, len(data), w.AUTO)
    assert position == len(data)
    assert events(items) == [
        ("write", "a", 1, b"1", []),
        ("write", "a", 3, b"3", []),
        ("write", "b", 2, b"2", [(b"n", b"v")]),
        ("write", "b", 4, b"4", []),
        ("tx", 4, b"\0\0\0\5"),
        ("write", "a", 6, b"6", []),
    ]
    first, second = items[0], items[1]
    assert isinstance(first, w.WriteRun) and first.headers is None
    assert isinstance(second, w.WriteRun)
    assert events([second.single(0)]) == [("write", "b", 2, b"2", [(b"n", b"v")])]
    assert events([second.single(1)]) == [("write", "b", 4, b"4", [])]


# --- flaws -----------------------------------------------------------------------------------------


def failed(cid: int, text: str) -> bytes:
    return bytes((2, 0, 0, 0, cid, 1, 0, 0, 0, len(text))) + text.encode()


@pytest.mark.parametrize("feed", WAYS)
def test_a_topic_of_no_bytes_ends_the_session(feed: Feed) -> None:
    """Row 33."""
    items, _, _ = feed(splitter(w.OFF), EXAMPLE + bytes([3, 0, 0, 0, 9, 0, 0, 0, 0]))
    assert events(items) == [
        HELLO,
        ("ends", failed(9, "writer topic len arg not provided") + b"\x0a"),
    ]


@pytest.mark.parametrize("feed", WAYS)
def test_a_message_of_no_bytes_is_refused_and_the_session_goes_on(feed: Feed) -> None:
    """Row 34, with the rule that it is for, and with headers."""
    empty = EXAMPLE[:12] + bytes(4)
    for rule, sent in (
        (w.OFF, empty),
        (w.ON, empty[:12] + bytes(6)),
        (w.AUTO, empty[:12] + bytes(6)),
    ):
        items, _, _ = feed(splitter(rule), sent + sent)
        refusal = ("refused", bytes([0, 1, 1, 1]), "write size arg not provided")
        assert events(items) == [refusal] * 2


@pytest.mark.parametrize("feed", WAYS)
def test_an_odd_number_of_header_strings_is_refused_and_the_session_goes_on(feed: Feed) -> None:
    odd = EXAMPLE[:12] + bytes([0, 1, 0, 0, 0, 1, 110, 0, 0, 0, 1, 120])
    items, _, _ = feed(splitter(w.AUTO), odd + EXAMPLE)
    assert events(items) == [("refused", bytes([0, 1, 1, 1]), c.ODD_HEADERS), HELLO]


@pytest.mark.parametrize("opcode", [0, 1, 2, 7, 8, 9, 11, 12, 255])
def test_an_opcode_that_writers_do_not_have_ends_the_session(opcode: int) -> None:
    data = EXAMPLE + bytes([opcode]) + EXAMPLE
    items, position = w.split_writer(data, 0, len(data), w.AUTO)
    assert events(items) == [HELLO, ("ends", b"\x0a")]
    assert position == len(data)


def test_disconnect_drops_what_is_behind_it() -> None:
    data = EXAMPLE + b"\x0a" + EXAMPLE
    items, position = w.split_writer(data, 0, len(data), w.AUTO)
    assert events(items) == [HELLO, ("ends", b"\x0a")]
    assert position == len(data)
    assert isinstance(items[1], c.Ends) and not items[1].flaw


def test_a_topic_that_is_not_text_is_not_found() -> None:
    data = w.encode_write(1, b"\xff", b"x", None) + EXAMPLE
    items, _ = w.split_writer(data, 0, len(data), w.AUTO)
    assert events(items) == [("refused", b"\0\0\0\1", "writer not found"), HELLO]


@pytest.mark.parametrize("there", [0, 1, 50, 101, 150])
def test_a_message_above_the_limit_is_skipped(there: int) -> None:
    """Refused before its bytes are there; those that come later are the caller's to drop."""
    large = w.encode_write(7, b"pub", bytes(101), None)
    behind = large[-101:] + EXAMPLE
    data = large[:-101] + behind[:there]
    items, position = w.split_writer(data, 0, len(data), w.AUTO, 100)
    text = "message too large, the most is 100 bytes"
    assert events(items)[0] == ("refused", b"\0\0\0\7", text)
    assert isinstance(items[0], w.Refused)
    assert items[0].skip == max(0, 101 - there)
    assert position == (len(data) if there < 122 else len(large) + 21)


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (bytes([3, 0, 0, 0, 1, 255, 0, 0, 0]), failed(1, "writer not found") + b"\x0a"),
        (
            bytes([3, 0, 0, 0, 1, 0, 0, 0, 1, 97, 0, 2, 255, 0, 0, 0]),
            failed(1, "headers too large") + b"\x0a",
        ),
    ],
)
def test_a_declared_length_without_end_is_not_waited_for(sent: bytes, words: bytes) -> None:
    items, _ = w.split_writer(sent, 0, len(sent), w.ON)
    assert events(items) == [("ends", words)]


# --- the collisions of AUTO ------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 65_535, 65_536, 65_537, 1_048_576])
@pytest.mark.parametrize("rule", [w.AUTO, w.ON])
@pytest.mark.parametrize("headers", [[], [(b"name", b"content")], [(b"", b"content")]])
def test_what_we_encode_with_headers_is_read_by_auto_and_on(
    rule: int, headers: w.Headers, size: int
) -> None:
    data = w.encode_write(1, b"t", bytes([7]) * size, headers)
    items, position = w.split_writer(data, 0, len(data), rule)
    assert position == len(data)
    assert events(items) == [("write", "t", 1, bytes([7]) * size, headers)]


def test_a_multiple_of_65536_without_headers_needs_the_rule_off() -> None:
    data = w.encode_write(1, b"t", bytes([7]) * 65_536, None)
    assert len(events(w.split_writer(data, 0, len(data), w.OFF)[0])) == 1
    assert events(w.split_writer(data, 0, len(data), w.AUTO)[0]) != events(
        w.split_writer(data, 0, len(data), w.OFF)[0]
    )


# --- anything --------------------------------------------------------------------------------------

SHORT = st.binary(max_size=6)
COMMANDS = st.one_of(
    st.builds(
        w.encode_write,
        st.integers(0, 2**32 - 1),
        st.sampled_from([b"a", b"topic", b"\xff"]),
        SHORT,
        st.lists(st.tuples(SHORT, SHORT), max_size=3),
    ),
    st.sampled_from([bytes([4, 0, 0, 0, 1]), bytes([6, 9, 9, 9, 9])]),
    SHORT,
)


def by_topic(found: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Within a stretch of WRITE, topics one after the other: what may be moved."""
    ordered: list[tuple[object, ...]] = []
    stretch: list[tuple[object, ...]] = []
    for event in [*found, ("",)]:
        if event[0] in ("write", "refused"):
            stretch.append(event)
        else:
            ordered += sorted(stretch, key=lambda one: (str(one[0]), str(one[1])))
            stretch = []
            ordered.append(event)
    return ordered[:-1]


@given(st.lists(COMMANDS, max_size=8), st.sampled_from([w.AUTO, w.ON, w.OFF]))
def test_commands_split_the_same_however_they_arrive(commands: list[bytes], rule: int) -> None:
    """Up to the end of a session, which drops as much as is there."""
    data = b"".join(commands)
    at_once, bit_by_bit = whole(splitter(rule), data), byte_by_byte(splitter(rule), data)
    first, second = by_topic(events(at_once[0])), by_topic(events(bit_by_bit[0]))
    ended = next((at for at, event in enumerate(second) if event[0] == "ends"), None)
    if ended is None:
        assert (first, at_once[1]) == (second, bit_by_bit[1])
    else:
        assert first == second[: ended + 1]


@given(st.binary(), st.sampled_from([w.AUTO, w.ON, w.OFF]), st.integers(0, 20))
def test_any_bytes_split_or_end_the_session(data: bytes, rule: int, limit: int) -> None:
    """The invariant: nothing is raised, and the rest begins within the input."""
    _, position = w.split_writer(data, 0, len(data), rule, limit)
    assert 0 <= position <= len(data)
    SIZES[rule](data, 0, len(data))
