"""Fujin over real QUIC, rows 51 to 90: readers, FETCH, ACK and NACK of the log."""

from pathlib import Path
from typing import Any

import pytest
from broker.bench import ANYBODY
from conformance.fujin.kit import CONNECTED, DISCONNECT, LOST, SETTINGS, end
from conformance.quic import Wire
from kit.live_server import LiveServer
from sessions.fujin.peer import WRITER, connect_reader, done, failed, fetch, message, write

from penstock.sessions.fujin.options import FujinOptions
from penstock.wire.fujin.commands import encode_result
from penstock.wire.fujin.reading import encode_id, encode_settle

ACK, NACK = 8, 9


def publish(wire: Wire, topic: bytes, *values: bytes) -> None:
    sent = b"".join(write(1, value, topic) for value in values)
    wire.ask(wire.open(WRITER), sent, done(2, *[1] * len(values)))


def reader(wire: Wire, name: str, **how: Any) -> int:
    stream = wire.open(connect_reader(name, **how))
    assert wire.take(stream, 2) == CONNECTED
    return stream


def fetched(cid: int, *messages: bytes) -> bytes:
    return (
        b"\7"
        + cid.to_bytes(4, "big")
        + b"\0"
        + len(messages).to_bytes(4, "big")
        + b"".join(messages)
    )


# --- CONNECT READER and MSG -------------------------------------------------------------------------


@pytest.mark.row("fujin-51")
@pytest.mark.row("fujin-66")
def test_the_example_of_the_document(wire: Wire) -> None:
    stream = wire.open(bytes([2, 1, 0, 0, 0, 0, 3, 112, 117, 98]))
    assert wire.take(stream, 2) == bytes([1, 0])
    wire.send(stream, DISCONNECT)
    assert wire.rest(stream) == DISCONNECT  # two bytes were all of the reply


@pytest.mark.row("fujin-52")
@pytest.mark.row("fujin-53")
@pytest.mark.row("fujin-54")
@pytest.mark.row("fujin-55")
@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        pytest.param(b"\2\3\0", b"\1\1\0\0\0\x13invalid reader type", id="52"),
        pytest.param(
            b"\2\1\2", b"\1\1\0\0\0\x29connect reader is auto commit arg invalid", id="53"
        ),
        pytest.param(
            b"\2\1\0\0\0\0\0", b"\1\1\0\0\0\x21reader name size arg not provided", id="54"
        ),
        pytest.param(connect_reader("gone"), b"\1\1\0\0\0\x10reader not found", id="55"),
        pytest.param(connect_reader("no topic"), b"\1\1\0\0\0\x10reader not found", id="55-topic"),
    ],
)
def test_refusals(wire: Wire, sent: bytes, expected: bytes) -> None:
    """Without a DISCONNECT."""
    assert wire.rest(wire.open(sent)) == expected


@pytest.mark.row("fujin-56")
@pytest.mark.row("fujin-59")
def test_messages_of_a_topic_of_one_character(wire: Wire) -> None:
    stream = reader(wire, "u", auto_commit=True)
    publish(wire, b"u", b"hello")
    assert wire.take(stream, 10) == bytes([6, 0, 0, 0, 5, 104, 101, 108, 108, 111])


@pytest.mark.row("fujin-57")
@pytest.mark.parametrize("push", [True, False])
def test_a_topic_that_is_deleted_ends_its_readers(live: LiveServer, wire: Wire, push: bool) -> None:
    """No second result."""
    live.call(lambda: live.server.broker.create_topic(ANYBODY, "short", 1))
    stream = reader(wire, "short", push=push)
    live.delete_topic("short")
    assert wire.rest(stream) == DISCONNECT


@pytest.mark.row("fujin-58")
def test_the_reply_is_alone_in_its_packet(wire: Wire) -> None:
    """Messages that are there already come later than the reply, in a packet of their own."""
    publish(wire, b"t", b"there")
    pieces: list[tuple[int, bytes]] = []
    take = wire.peer._take

    def noted(event: Any) -> None:
        if type(event).__name__ == "StreamDataReceived":
            pieces.append((event.stream_id, bytes(event.data)))
        take(event)

    wire.peer._take = noted  # type: ignore[method-assign]
    stream = wire.open(connect_reader("first"))
    wire.until(lambda: len([one for one in pieces if one[0] == stream]) >= 2)
    of_reader = [data for number, data in pieces if number == stream]
    assert of_reader[0] == CONNECTED
    assert of_reader[1][:1] == b"\6"


@pytest.mark.row("fujin-60")
@pytest.mark.row("fujin-61")
@pytest.mark.row("fujin-62")
def test_ids_are_as_long_as_they_say_and_stay_the_same(wire: Wire, live: LiveServer) -> None:
    stream = reader(wire, "again")
    offset = end(live, "t")
    publish(wire, b"t", b"value")
    pushed = b"\6" + message(offset, b"value")
    assert wire.take(stream, len(pushed)) == pushed
    id = encode_id(0, offset)
    assert pushed[1:5] == len(id).to_bytes(4, "big") and len(id) >= 1
    one = b"\0\0\0\1" + len(id).to_bytes(4, "big") + id + b"\0"
    # The answer to the NACK, then the same message with the same id.
    wire.ask(stream, encode_settle(NACK, 3, [id]), b"\x09\0\0\0\3\0" + one + pushed)


@pytest.mark.row("fujin-63")
def test_a_push_reader_does_not_fetch(wire: Wire) -> None:
    stream = reader(wire, "v")
    wire.ask(stream, fetch(1), b"\7\0\0\0\1\1\0\0\0\x13invalid reader type")


@pytest.mark.row("fujin-64")
def test_a_pull_reader_gets_nothing_by_itself(wire: Wire) -> None:
    stream = reader(wire, "v", push=False, auto_commit=True)
    other = reader(wire, "v", auto_commit=True)
    publish(wire, b"v", b"one")
    assert wire.take(other, 8) == b"\6\0\0\0\3one"
    wire.ask(stream, fetch(5), fetched(1, b"\0\0\0\3one"))


@pytest.mark.row("fujin-65")
def test_each_reader_without_a_group_gets_everything(wire: Wire) -> None:
    streams = [reader(wire, "v", auto_commit=True) for _ in range(3)]
    publish(wire, b"v", b"all")
    for stream in streams:
        assert wire.take(stream, 8) == b"\6\0\0\0\3all"


@pytest.mark.row("fujin-65")
def test_readers_of_a_group_share_and_groups_each_get_everything(
    wire: Wire, live: LiveServer
) -> None:
    """Message by message, within one partition."""
    first, second = (reader(wire, "shared", push=False, auto_commit=True) for _ in range(2))
    other = reader(wire, "shared2", push=False, auto_commit=True)
    publish(wire, b"v", *(b"%03d" % number for number in range(10)))
    size = len(fetched(1, b"\0\0\0\x03" + b"000"))
    found = []
    for number in range(10):
        stream = (first, second)[number % 2]
        wire.send(stream, fetch(1))
        found.append(wire.take(stream, size)[-3:])
    assert sorted(found) == [b"%03d" % number for number in range(10)]
    got: list[bytes] = []
    while len(got) < 10:
        wire.send(other, fetch(10))
        count = int.from_bytes(wire.take(other, 10)[-4:], "big")
        got += [wire.take(other, 7)[-3:] for _ in range(count)]
    assert got == [b"%03d" % number for number in range(10)]


# --- FETCH ------------------------------------------------------------------------------------------


@pytest.mark.row("fujin-67")
@pytest.mark.row("fujin-68")
def test_the_error_comes_before_the_count(wire: Wire) -> None:
    stream = reader(wire, "u", push=False, auto_commit=True)
    publish(wire, b"u", b"hello")
    example = bytes([7, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 5, 104, 101, 108, 108, 111])
    wire.ask(stream, bytes([7, 0, 0, 0, 1, 0, 0, 0, 1]), example)


@pytest.mark.row("fujin-69")
@pytest.mark.row("fujin-76")
@pytest.mark.row("fujin-77")
def test_ids_of_fetched_messages_and_never_more_than_asked_for(
    wire: Wire, live: LiveServer
) -> None:
    stream = reader(wire, "u", push=False)
    offset = end(live, "u")
    publish(wire, b"u", b"a", b"b", b"c")
    # Messages of one byte are sent as all others.
    wire.ask(stream, fetch(2, 5), fetched(5, message(offset, b"a"), message(offset + 1, b"b")))
    wire.ask(stream, fetch(2, 6), fetched(6, message(offset + 2, b"c")))


@pytest.mark.row("fujin-70")
@pytest.mark.row("fujin-74")
def test_a_fetch_waits_and_is_empty_then(wire: Wire) -> None:
    stream = reader(wire, "v", push=False)
    wire.ask(stream, fetch(1), bytes([7, 0, 0, 0, 1, 0, 0, 0, 0, 0]))
    wire.send(stream, fetch(1, 2))
    publish(wire, b"v", b"in time")
    found = wire.take(stream, 10)
    assert found[:6] == b"\7\0\0\0\2\0" and found[6:] in (b"\0\0\0\0", b"\0\0\0\1")


@pytest.mark.row("fujin-71")
def test_the_error_of_a_fetch(live: LiveServer, wire: Wire) -> None:
    """The document's example with its four zeros left out: no count stands before an error."""
    text = "kafka: poll fetches: [{ -1 client closed}]"
    expected = bytes([7, 0, 0, 0, 1, 1, 0, 0, 0, 42]) + text.encode()
    assert encode_result(7, b"\0\0\0\1", text) == expected
    stream = reader(wire, "v", push=False)
    wire.ask(stream, fetch(0), b"\7\0\0\0\1\1\0\0\0\x16fetch arg not provided")


@pytest.mark.row("fujin-72")
def test_a_fetch_of_nothing(wire: Wire) -> None:
    stream = reader(wire, "v", push=False)
    wire.ask(stream, fetch(0, 4), failed(7, 4, "fetch arg not provided"))
    wire.ask(stream, fetch(1), fetched(1))


@pytest.mark.row("fujin-75")
def test_a_fetch_may_wait_without_end(tmp_path: Path) -> None:
    assert FujinOptions().fetch_max_wait_us == 1_000_000
    with LiveServer(tmp_path / "data", {"fujin.fetch_max_wait": "off"}) as live:
        live.call(lambda: live.server.broker.create_topic(ANYBODY, "v", 1))
        wire = Wire(live, ["fujin"])
        stream = reader(wire, "v", push=False, auto_commit=True)
        wire.send(stream, fetch(1))
        start = live.call(live.server.engine.run_us)
        wire.until(lambda: live.call(live.server.engine.run_us) > start + 1_200_000)
        assert len(wire.peer.received[stream]) == 2
        publish(wire, b"v", b"late")
        assert wire.take(stream, 18) == fetched(1, b"\0\0\0\4late")
        wire.close()


@pytest.mark.row("fujin-78")
def test_several_fetches_are_answered_in_order(wire: Wire) -> None:
    stream = reader(wire, "v", push=False, auto_commit=True)
    wire.send(stream, fetch(1, 1) + fetch(1, 2) + fetch(1, 3))
    publish(wire, b"v", b"aa", b"bb")
    expected = [fetched(1, b"\0\0\0\2aa"), fetched(2, b"\0\0\0\2bb"), fetched(3)]
    assert wire.take(stream, sum(map(len, expected))) == b"".join(expected)


# --- ACK and NACK -----------------------------------------------------------------------------------


def settled(opcode: int, cid: int, *results: bytes) -> bytes:
    head = bytes([opcode]) + cid.to_bytes(4, "big") + b"\0"
    return head + len(results).to_bytes(4, "big") + b"".join(results)


def result(id: bytes, outcome: bytes = b"\0") -> bytes:
    return len(id).to_bytes(4, "big") + id + outcome


@pytest.mark.row("fujin-79")
@pytest.mark.row("fujin-82")
@pytest.mark.row("fujin-83")
@pytest.mark.row("fujin-84")
@pytest.mark.row("fujin-87")
def test_every_id_has_a_result(wire: Wire, live: LiveServer) -> None:
    stream = reader(wire, "work", push=False)
    offset = end(live, "t")
    publish(wire, b"t", b"a", b"b")
    wire.ask(stream, fetch(9), fetched(1, message(offset, b"a"), message(offset + 1, b"b")))
    ids = [encode_id(0, offset + 1), b"", b"no", encode_id(0, offset)]
    results = [result(ids[0]), result(b"", LOST), result(b"no", LOST), result(ids[3])]
    wire.ask(stream, encode_settle(ACK, 6, ids), settled(ACK, 6, *results))
    # The answer comes when the committed offset is durable.
    committed = live.server.broker.committed_offset
    assert live.call(lambda: committed("billing", "t", 0)) == offset + 2
    # Settled already: nobody has it any more.
    again = settled(ACK, 7, result(ids[0], LOST))
    wire.ask(stream, encode_settle(ACK, 7, ids[:1]), again)


@pytest.mark.row("fujin-80")
@pytest.mark.parametrize("opcode", [ACK, NACK])
def test_the_examples_wait_for_an_id(wire: Wire, opcode: int) -> None:
    stream = reader(wire, "u")
    wire.send(stream, bytes([opcode, 0, 0, 0, 1, 0, 0, 0, 1]))
    publish(wire, b"v", b"meanwhile")
    assert len(wire.peer.received[stream]) == 2
    wire.ask(stream, b"\0\0\0\1x", settled(opcode, 1, result(b"x", LOST)))


@pytest.mark.row("fujin-81")
@pytest.mark.parametrize("opcode", [ACK, NACK])
def test_no_ids(wire: Wire, opcode: int) -> None:
    stream = reader(wire, "u")
    sent = bytes([opcode, 0, 0, 0, 5, 0, 0, 0, 0])
    wire.ask(stream, sent, bytes([opcode, 0, 0, 0, 5, 0, 0, 0, 0, 0]))


@pytest.mark.row("fujin-83")
def test_outcomes_as_the_document_has_them(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "data", {**SETTINGS, "fujin.outcomes": "document"}) as live:
        live.call(lambda: live.server.broker.create_topic(ANYBODY, "t", 1))
        wire = Wire(live, ["fujin"])
        stream = reader(wire, "work", push=False)
        publish(wire, b"t", b"a")
        wire.ask(stream, fetch(1), fetched(1, message(0, b"a")))
        id = encode_id(0, 0)
        expected = settled(ACK, 2, result(id, b"\1"))
        wire.ask(stream, encode_settle(ACK, 2, [id]), expected)
        wire.close()


@pytest.mark.row("fujin-86")
@pytest.mark.parametrize("opcode", [ACK, NACK])
def test_with_auto_commit_there_is_nothing_to_settle(wire: Wire, opcode: int) -> None:
    stream = reader(wire, "u", auto_commit=True)
    text = "auto commit is on, there is nothing to settle"
    wire.ask(stream, encode_settle(opcode, 1, [b"x"]), failed(opcode, 1, text))


@pytest.mark.row("fujin-89")
def test_a_message_that_is_refused_comes_again_and_then_is_a_dead_letter(tmp_path: Path) -> None:
    settings = {**SETTINGS, "fujin.retry_backoff": "1 ms", "fujin.max_deliveries": "3"}
    with LiveServer(tmp_path / "data", settings) as live:
        live.call(lambda: live.server.broker.create_topic(ANYBODY, "t", 1))
        wire = Wire(live, ["fujin"])
        stream = reader(wire, "work")
        publish(wire, b"t", b"bad")
        id = encode_id(0, 0)
        pushed = b"\6" + message(0, b"bad")
        for _ in range(3):
            assert wire.take(stream, len(pushed)) == pushed
            wire.ask(stream, encode_settle(NACK, 1, [id]), settled(NACK, 1, result(id)))
        broker = live.server.broker
        wire.until(lambda: live.call(lambda: broker.committed_offset("billing", "t", 0)) == 1)
        assert end(live, "t.dlq") == 1
        wire.close()
