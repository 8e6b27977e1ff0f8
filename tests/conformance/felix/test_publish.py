"""Felix over real QUIC, rows 30 to 58: publishes, batches, binary batches, their replies and order."""

from collections.abc import Iterator
from itertools import groupby

import pytest
from broker.bench import ANYBODY
from conformance.felix.kit import ACKED, BATCH, OK, Events, end, event, reply
from conformance.felix.test_transport import ROW_51
from conformance.quic import Wire
from kit.live_server import LiveServer
from sessions.felix.peer import NAMES, NOT_FOUND, b64, exact, message, publish, subscribe

from penstock.wire.felix.batches import encode_publish_batch
from penstock.wire.felix.frames import framed


def several(**fields: object) -> bytes:
    return message("publish_batch", **{**NAMES, "payloads": [b64(b"a"), ""], **fields})


UNACKED = [
    pytest.param(publish(ack="none"), 1, marks=pytest.mark.row("felix-30"), id="30"),
    pytest.param(publish(stream="none"), 0, marks=pytest.mark.row("felix-31"), id="31"),
    pytest.param(publish(tenant_id="x"), 0, marks=pytest.mark.row("felix-31"), id="31-tenant"),
    pytest.param(publish(), 1, marks=pytest.mark.row("felix-36"), id="36"),
    pytest.param(several(), 2, marks=pytest.mark.row("felix-36"), id="36-batch"),
    pytest.param(publish(b""), 1, marks=pytest.mark.row("felix-47"), id="47"),
    pytest.param(several(payloads=[]), 0, marks=pytest.mark.row("felix-48"), id="48"),
    pytest.param(BATCH, 2, marks=pytest.mark.row("felix-52"), id="52"),
    pytest.param(
        encode_publish_batch("t", "n", "none", [b"x"]),
        0,
        marks=pytest.mark.row("felix-53"),
        id="53",
    ),
    pytest.param(framed(BATCH[12:] + b"behind", 1), 2, marks=pytest.mark.row("felix-56"), id="56"),
    pytest.param(
        encode_publish_batch("t", "n", "s", []), 0, marks=pytest.mark.row("felix-57"), id="57"
    ),
    pytest.param(
        encode_publish_batch("", "", "", [b"x"]), 0, marks=pytest.mark.row("felix-58"), id="58"
    ),
]


@pytest.mark.parametrize(("sent", "stored"), UNACKED)
def test_what_has_no_reply(wire: Wire, live: LiveServer, sent: bytes, stored: int) -> None:
    """It is followed by something that has one: replies are in order."""
    before = end(live)
    wire.ask(wire.open(), sent + ACKED, OK)
    assert end(live) == before + stored + 1


@pytest.mark.row("felix-31")
@pytest.mark.row("felix-53")
def test_what_is_dropped_is_counted(wire: Wire, live: LiveServer) -> None:
    refused = live.server.broker.counters["felix"].refused
    before = refused["publish: unknown_topic"]
    lost = encode_publish_batch("t", "n", "none", [b"x"])
    wire.ask(wire.open(), lost + publish(stream="none") + ACKED, OK)
    assert refused["publish: unknown_topic"] == before + 2


def publish_error(id: int) -> bytes:
    return exact(f'{{"type":"publish_error","request_id":{id},"message":"{NOT_FOUND}"}}')


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        pytest.param(ACKED, OK, marks=pytest.mark.row("felix-32"), id="32"),
        pytest.param(several(ack="per_batch"), OK, marks=pytest.mark.row("felix-33"), id="33"),
        pytest.param(
            publish(ack="per_message", request_id=1),
            bytes.fromhex("464c58310001000000000024") + b'{"type":"publish_ok","request_id":1}',
            marks=pytest.mark.row("felix-34"),
            id="34",
        ),
        pytest.param(
            publish(ack="per_message", request_id="1"),
            bytes.fromhex("464c5831000100000000001e") + b'{"type":"ok","request_id":"1"}',
            marks=pytest.mark.row("felix-35"),
            id="35",
        ),
        pytest.param(publish(ack="per_batch"), OK, marks=pytest.mark.row("felix-37"), id="37"),
        pytest.param(
            several(ack="per_message"), OK, marks=pytest.mark.row("felix-37"), id="37-batch"
        ),
        pytest.param(
            publish(stream="none", ack="per_message", request_id=7),
            publish_error(7),
            marks=pytest.mark.row("felix-39"),
            id="39",
        ),
        pytest.param(
            publish(stream="none", ack="per_message"),
            exact(f'{{"type":"error","message":"{NOT_FOUND}"}}'),
            marks=pytest.mark.row("felix-40"),
            id="40",
        ),
        pytest.param(
            publish(stream="none", ack="per_message", request_id="r"),
            exact(f'{{"type":"error","request_id":"r","message":"{NOT_FOUND}"}}'),
            marks=pytest.mark.row("felix-40"),
            id="40-text",
        ),
        pytest.param(
            several(payloads=[], ack="per_batch"), OK, marks=pytest.mark.row("felix-48"), id="48"
        ),
    ],
)
def test_replies(wire: Wire, sent: bytes, answer: bytes) -> None:
    """To the byte, and each of them one."""
    wire.ask(wire.open(), sent * 2 + ACKED, answer * 2 + OK)


@pytest.mark.row("felix-32")
def test_a_bare_ok_to_the_byte(wire: Wire) -> None:
    wire.ask(
        wire.open(), ACKED, bytes.fromhex("464c5831000100000000000d7b2274797065223a226f6b227d")
    )


@pytest.mark.row("felix-38")
def test_any_other_ack_is_an_error(wire: Wire, live: LiveServer) -> None:
    before = end(live)
    stream = wire.open(publish(ack="all", request_id=3))
    found = reply(wire, stream)
    assert (found["type"], found["request_id"]) == ("error", 3)
    wire.ask(stream, ACKED, OK)
    assert end(live) == before + 1


@pytest.mark.row("felix-41")
def test_replies_without_an_id_are_in_the_order_of_requests(wire: Wire) -> None:
    lost = exact(f'{{"type":"error","message":"{NOT_FOUND}"}}')
    sent = (ACKED + publish(stream="none", ack="per_message")) * 50
    wire.ask(wire.open(), sent, (OK + lost) * 50)


@pytest.mark.row("felix-42")
def test_every_request_with_an_id_has_its_reply(wire: Wire) -> None:
    ids: list[int | str] = [*range(50), *map(str, range(50))]
    stream = wire.open(b"".join(publish(ack="per_message", request_id=id) for id in ids))
    found = [reply(wire, stream)["request_id"] for _ in ids]
    assert sorted(map(repr, found)) == sorted(map(repr, ids))


@pytest.mark.row("felix-43")
@pytest.mark.row("felix-99")
def test_an_ack_comes_when_all_can_see_the_message(wire: Wire, live: LiveServer) -> None:
    """Durable with the default settings of a topic, and visible; a subscriber of the connection gets it."""
    info = live.call(lambda: live.server.engine.topic("t/n/s"))
    assert info is not None and info.settings.durability == "ack"
    wire.ask(wire.open(), subscribe(), OK)
    before = end(live)
    wire.ask(wire.open(), publish(b"seen", ack="per_message"), OK)
    assert end(live) == before + 1
    events = Events(wire)
    assert [events.next()["type"], events.next()] == ["event_stream_hello", event(b"seen")]


@pytest.mark.row("felix-44")
@pytest.mark.row("felix-45")
@pytest.mark.row("felix-46")
def test_a_flood_is_held_back_and_all_of_it_is_answered(live: LiveServer) -> None:
    """More than all budgets of the stream, in both directions: nothing is refused, nothing is lost."""
    wire = Wire(live)
    before = end(live)
    count = 20_000
    stream = wire.open(publish(bytes(300), ack="per_message", request_id=1) * count)
    answer = exact('{"type":"publish_ok","request_id":1}')
    assert wire.take(stream, len(answer) * count) == answer * count
    assert end(live) == before + count
    wire.close()


@pytest.mark.row("felix-49")
def test_batches_are_in_one_piece_and_in_order(wire: Wire) -> None:
    """Of two streams that publish at the same time."""
    wire.ask(wire.open(), subscribe(), OK)
    streams = [wire.open(), wire.open()]
    for batch in range(20):
        for number, stream in enumerate(streams):
            values = [b64(b"%d-%d-%d" % (number, batch, one)) for one in range(5)]
            wire.send(stream, several(payloads=values, ack="per_batch"))
    for stream in streams:
        assert wire.take(stream, 20 * len(OK)) == OK * 20
    events = Events(wire)
    assert events.next()["type"] == "event_stream_hello"
    found = list(numbers(events.values(200)))
    runs = [list(run) for _, run in groupby(found, lambda one: one[:2])]
    assert len(runs) == 40 and all([one[2] for one in run] == [0, 1, 2, 3, 4] for run in runs)
    for number in range(2):
        assert [run[0][1] for run in runs if run[0][0] == number] == list(range(20))


def numbers(values: list[str]) -> Iterator[tuple[int, int, int]]:
    import base64

    for value in values:
        stream, batch, one = base64.b64decode(value).split(b"-")
        yield int(stream), int(batch), int(one)


@pytest.mark.row("felix-50")
def test_a_stream_is_there_as_soon_as_it_is_made(wire: Wire, live: LiveServer) -> None:
    stream = wire.open()
    late = publish(stream="late", ack="per_message", request_id=1)
    text = NOT_FOUND.replace("none", "late")
    wire.ask(stream, late, exact(f'{{"type":"publish_error","request_id":1,"message":"{text}"}}'))
    live.call(lambda: live.server.broker.create_topic(ANYBODY, "t/n/late", 1))
    wire.ask(stream, late, exact('{"type":"publish_ok","request_id":1}'))


@pytest.mark.row("felix-51")
def test_the_layout_of_a_binary_batch(wire: Wire, live: LiveServer) -> None:
    assert encode_publish_batch("t1", "default", "demo", [b"hello", b""]) == ROW_51
    live.call(lambda: live.server.broker.create_topic(ANYBODY, "t1/default/demo", 1))
    wire.ask(wire.open(), ROW_51 + ACKED, OK)
    wire.until(lambda: end(live, "t1/default/demo") == 2)


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(framed(b"\x00", 1), marks=pytest.mark.row("felix-54"), id="54-name"),
        pytest.param(framed(BATCH[12:-5], 1), marks=pytest.mark.row("felix-54"), id="54-payload"),
        pytest.param(
            framed(b"\x00\x01\xff" + BATCH[15:], 1), marks=pytest.mark.row("felix-54"), id="54-utf8"
        ),
        pytest.param(
            framed(BATCH[12:21] + b"\xff\xff\xff\xff" + BATCH[25:], 1),
            marks=pytest.mark.row("felix-55"),
            id="55",
        ),
    ],
)
def test_a_binary_batch_that_is_none(wire: Wire, live: LiveServer, bad: bytes) -> None:
    before = end(live)
    stream = wire.open(bad)
    found = reply(wire, stream)
    assert set(found) == {"type", "message"} and found["type"] == "error"
    assert found["message"].startswith("invalid publish batch: ")
    wire.ask(stream, ACKED, OK)
    assert end(live) == before + 1


@pytest.mark.row("felix-47")
def test_an_empty_message_is_an_event(wire: Wire) -> None:
    wire.ask(wire.open(), subscribe(), OK)
    wire.ask(wire.open(), publish(b"", ack="per_message"), OK)
    events = Events(wire)
    assert [events.next()["type"], events.next()] == ["event_stream_hello", event(b"")]
