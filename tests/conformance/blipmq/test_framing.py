"""BlipMQ: lengths, types, order, ends of connections. Rows 14 to 27 of the table, over a real socket."""

import socket

import pytest
from conformance.blipmq.conftest import Connect, Exchange, Start
from conformance.blipmq.peer import (
    ALL_ONES,
    HELLO_ALREADY,
    INVALID_KEY,
    INVALID_POLL,
    MAX_LENGTH,
    MAX_LOGIN_LENGTH,
    NACK,
    PING,
    POLL,
    PONG,
    UNAUTHENTICATED,
    ZERO_SUBSCRIPTION,
    BlipMQPeer,
    ack,
    auth,
    frame,
    hello,
    message,
    ping,
    poll,
    pong,
    subscribe,
    u16,
    until,
    x,
)
from kit.limits import HANG_S
from kit.live_server import LiveServer

from penstock.server.config.loading import load_config

UNKNOWN_TYPES = [0x00, 0x0A, 0x0B, 0x7F, 0x80, 0xFF]
TOO_LONG = [MAX_LENGTH + 1, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF]


def still_open(server: LiveServer, peer: BlipMQPeer, read_before: int, sent: int) -> bool:
    """Whether the server has read everything and neither answers nor closes."""
    traffic = server.server.hub.counters.of("blipmq")
    until(lambda: traffic.bytes_in == read_before + sent, "the server has read it")
    # Two turns of the loop: what was read is carried out, and what it wrote is out.
    server.call(lambda: None)
    server.call(lambda: None)
    peer.socket.setblocking(False)
    try:
        peer.socket.recv(1)
    except BlockingIOError:
        return True
    finally:
        peer.socket.settimeout(HANG_S)
    return False


@pytest.mark.row("blipmq-14")
def test_length_zero_closes_at_once(peer: BlipMQPeer, exchange: Exchange) -> None:
    exchange.closes(peer, x("00000000"))


@pytest.mark.row("blipmq-15")
@pytest.mark.parametrize("length", range(1, 9))
def test_a_length_below_nine_closes_at_once(
    peer: BlipMQPeer, length: int, exchange: Exchange
) -> None:
    exchange.closes(peer, length.to_bytes(4, "big"))


@pytest.mark.row("blipmq-16")
@pytest.mark.parametrize("length", TOO_LONG)
def test_a_length_over_16_mib_closes_at_once(
    peer: BlipMQPeer, length: int, exchange: Exchange
) -> None:
    exchange.closes(peer, length.to_bytes(4, "big"))


@pytest.mark.row("blipmq-17")
@pytest.mark.parametrize("single_bytes", [0, 40], ids=["whole", "byte by byte"])
def test_a_length_of_16_mib_is_accepted(
    peer: BlipMQPeer, other: BlipMQPeer, topic: str, single_bytes: int
) -> None:
    """The largest message there is, and a frame behind it. `byte by byte` for the header and a bit
    more: it decides."""
    body = bytes(range(256)) * (MAX_LENGTH // 256)
    largest = message(4, topic, body[: MAX_LENGTH - 9 - 3 - len(topic)])
    assert largest[:4] == x("01000000")
    subscription = other.subscribe(topic)
    for number in range(single_bytes):
        peer.send(largest[number : number + 1])
    peer.send(largest[single_bytes:] + ping(5)[:7])
    peer.ask(ping(5)[7:], pong(5))
    assert other.poll(subscription) == message(1, topic, body[: MAX_LENGTH - 9 - 3 - len(topic)])
    peer.quiet()


@pytest.mark.row("blipmq-17", "blipmq-27")
def test_a_ping_of_16_mib_is_answered(peer: BlipMQPeer) -> None:
    peer.ask(frame(PING, 7, bytes(MAX_LENGTH - 9)), pong(7))


@pytest.mark.row("blipmq-18")
@pytest.mark.parametrize("kind", UNKNOWN_TYPES)
def test_an_unknown_type_closes_after_the_frames_before_it(
    peer: BlipMQPeer, kind: int, exchange: Exchange
) -> None:
    exchange.closes(peer, ping(7) + frame(kind, 8, b"payload"), pong(7))


@pytest.mark.row("blipmq-18")
@pytest.mark.parametrize("kind", UNKNOWN_TYPES)
@pytest.mark.parametrize("logged_in", [True, False])
def test_an_unknown_type_closes_only_when_its_frame_is_complete(
    blipmq: LiveServer, stranger: BlipMQPeer, kind: int, logged_in: bool
) -> None:
    if logged_in:
        stranger.login()
    before = blipmq.server.hub.counters.of("blipmq").bytes_in
    unknown = frame(kind, 8, b"payload")
    stranger.send(unknown[:-1])
    assert still_open(blipmq, stranger, before, len(unknown) - 1)
    stranger.send(unknown[-1:])
    assert stranger.at_end()


@pytest.mark.row("blipmq-19")
@pytest.mark.parametrize("greeted", [False, True], ids=["before HELLO", "before AUTH"])
@pytest.mark.parametrize(
    "broken",
    [length.to_bytes(4, "big") for length in (*range(9), *TOO_LONG)]
    + [frame(kind, 8, b"payload") for kind in UNKNOWN_TYPES],
    ids=lambda broken: broken[:5].hex(),
)
def test_framing_errors_before_login_close_too(
    stranger: BlipMQPeer, greeted: bool, broken: bytes, exchange: Exchange
) -> None:
    if greeted:
        stranger.ask(hello(1), ack(1, 0))
    exchange.closes(stranger, broken)


@pytest.mark.row("blipmq-19")
def test_frames_before_login_are_small(
    stranger: BlipMQPeer, blipmq: LiveServer, connect: Connect, exchange: Exchange
) -> None:
    """The reference server buffers 16 MiB for anybody; no legal HELLO or AUTH is longer than 64 KiB
    and a bit (protocol notes, section 2, question 25)."""
    assert load_config(None, {}, {}).config.limits.prelogin_frame_bytes == 64 * 1024
    stranger.ask(hello(1), ack(1, 0))
    largest_auth = auth(2, "k" * 65_535)
    assert len(largest_auth) == 65_550
    stranger.ask(largest_auth, INVALID_KEY.frame(2))
    stranger.ask(frame(PING, 3, bytes(MAX_LOGIN_LENGTH - 9)), UNAUTHENTICATED.frame(3))
    exchange.closes(stranger, (MAX_LOGIN_LENGTH + 1).to_bytes(4, "big"))
    # The same frame is fine behind the login, also when it comes with it.
    late = frame(PING, 4, bytes(MAX_LOGIN_LENGTH))
    connect(blipmq).ask(hello(1) + auth(2) + late, ack(1, 0), ack(2, 0), pong(4))


@pytest.mark.row("blipmq-20")
def test_a_whole_conversation_byte_by_byte(stranger: BlipMQPeer, topic: str) -> None:
    def dribble(data: bytes) -> None:
        for number in range(len(data)):
            stranger.send(data[number : number + 1])

    dribble(hello(1) + auth(2) + subscribe(3, topic))
    stranger.expect(ack(1, 0), ack(2, 0))
    subscription = int.from_bytes(stranger.frame()[-8:], "big")
    dribble(message(4, topic, b"hi"))
    assert stranger.poll(subscription) == message(1, topic, b"hi")
    dribble(ack(1, subscription) + ack(1, subscription) + ping(5))
    assert stranger.frame()[4] == NACK
    stranger.expect(pong(5))


@pytest.mark.row("blipmq-20")
def test_there_is_no_time_limit_behind_the_login(start: Start, connect: Connect) -> None:
    """As there. Before the login there is one, 10 s by default, which the reference server has not
    (protocol notes, section 2, question 24)."""
    limits = load_config(None, {}, {}).config.limits
    assert limits.idle_time_us is None
    assert limits.login_time_us == 10_000_000
    server = start({"limits.login_time": "300 ms"})
    logged_in, silent, dribbling = connect(server).login(), connect(server), connect(server)
    dribbling.send(hello(1)[:9])
    assert silent.at_end()
    assert dribbling.at_end()
    logged_in.quiet()


@pytest.mark.row("blipmq-21")
@pytest.mark.parametrize("cut", [1, 4, 5, 13, 20], ids=lambda cut: f"{cut} bytes")
def test_an_end_within_a_frame_is_silent(
    peer: BlipMQPeer, other: BlipMQPeer, topic: str, cut: int
) -> None:
    subscription = other.subscribe(topic)
    peer.send(ping(7) + message(8, topic, b"never")[:cut])
    peer.socket.shutdown(socket.SHUT_WR)
    peer.expect(pong(7))
    assert peer.at_end()
    other.send(message(9, topic, b"next"))
    assert other.poll(subscription) == message(1, topic, b"next")


@pytest.mark.row("blipmq-22")
def test_complete_frames_before_an_end_are_answered(
    peer: BlipMQPeer, other: BlipMQPeer, topic: str, exchange: Exchange
) -> None:
    subscription = other.subscribe(topic)
    other.send(message(3, topic, b"first"))
    assert other.poll(subscription, 4) == message(1, topic, b"first")
    frames = ping(7) + message(8, topic, b"second") + poll(9, 0) + ping(10)
    exchange(peer, frames, pong(7), ZERO_SUBSCRIPTION.frame(9), pong(10))
    peer.send(message(11, topic, b"third") + ping(12) + poll(13, 0))
    peer.socket.shutdown(socket.SHUT_WR)
    peer.expect(pong(12), ZERO_SUBSCRIPTION.frame(13))
    assert peer.at_end()
    # What was published is not lost with the connection.
    assert other.poll(subscription) == message(2, topic, b"second")
    assert other.poll(subscription) == message(3, topic, b"third")


@pytest.mark.row("blipmq-23")
def test_many_frames_in_one_segment_are_answered_in_order(stranger: BlipMQPeer, topic: str) -> None:
    login = ping(1) + hello(2) + ping(3) + auth(4, "wrong") + auth(5)
    stranger.ask(
        login + ping(6) + hello(7) + frame(POLL, 8, b"short") + poll(9, 0) + ping(10),
        UNAUTHENTICATED.frame(1),
        ack(2, 0),
        UNAUTHENTICATED.frame(3),
        INVALID_KEY.frame(4),
        ack(5, 0),
        pong(6),
        HELLO_ALREADY.frame(7),
        INVALID_POLL.frame(8),
        ZERO_SUBSCRIPTION.frame(9),
        pong(10),
    )
    numbers = range(1000)
    stranger.ask(b"".join(map(ping, numbers)), *map(pong, numbers))


@pytest.mark.row("blipmq-24")
@pytest.mark.parametrize("cid", [0, 1, 0x8000_0000_0000_0000, ALL_ONES], ids=hex)
def test_any_correlation_id_is_echoed(stranger: BlipMQPeer, topic: str, cid: int) -> None:
    stranger.ask(hello(cid), ack(cid, 0))
    stranger.ask(auth(cid, "wrong"), INVALID_KEY.frame(cid))
    stranger.ask(auth(cid), ack(cid, 0))
    stranger.ask(ping(cid), pong(cid))
    stranger.ask(poll(cid, 0), ZERO_SUBSCRIPTION.frame(cid))
    stranger.send(subscribe(cid, topic, 0))
    answer = stranger.frame()
    subscription = int.from_bytes(answer[-8:], "big")
    assert answer == ack(cid, subscription)
    stranger.send(message(cid, topic, b"hi", 0))
    assert stranger.poll(subscription, cid) == message(cid, topic, b"hi", 0)


@pytest.mark.row("blipmq-25")
def test_a_close_with_unread_input_is_an_end_or_a_reset(
    peer: BlipMQPeer, other: BlipMQPeer
) -> None:
    """Penstock ends its side and reads on for a moment, so that the answers before the close are not
    lost in a reset; a test accepts both, as the protocol does."""
    try:
        peer.send(ping(7) + x("00000000") + bytes(1024 * 1024))
    except (BrokenPipeError, ConnectionResetError):
        assert peer.at_end()
    else:
        peer.expect(pong(7))
        assert peer.at_end()
    other.quiet()


@pytest.mark.row("blipmq-26")
@pytest.mark.parametrize("kind", [PONG, NACK])
@pytest.mark.parametrize("payload", [b"", u16(400) + u16(2) + b"no", b"\xff"])
def test_a_pong_or_nack_of_a_client_is_ignored(
    peer: BlipMQPeer, kind: int, payload: bytes, exchange: Exchange
) -> None:
    exchange(peer, frame(kind, 7, payload))


@pytest.mark.row("blipmq-27")
@pytest.mark.parametrize("payload", [b"", b"\x00", b"anything at all"])
def test_a_ping_is_answered_whatever_it_carries(
    peer: BlipMQPeer, payload: bytes, exchange: Exchange
) -> None:
    exchange(peer, frame(PING, 0x0102, payload), x("00000009 08 0000000000000102"))
