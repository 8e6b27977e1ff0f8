"""BlipMQ: HELLO and AUTH. Rows 1 to 13 of the table, over a real socket."""

import pytest
from conformance.blipmq.conftest import Connect, Exchange, Start
from conformance.blipmq.peer import (
    ALREADY_AUTHENTICATED,
    AUTH,
    HELLO,
    HELLO_ALREADY,
    HELLO_NOT_PERFORMED,
    INVALID_AUTH,
    INVALID_HELLO,
    INVALID_KEY,
    POLL,
    PUBLISH,
    UNAUTHENTICATED,
    UNSUPPORTED_VERSION,
    BlipMQPeer,
    ack,
    auth,
    frame,
    hello,
    ping,
    pong,
    u16,
    x,
)
from kit.live_server import LiveServer

from penstock.server.config.loading import load_config

HELLO_1 = x("0000000B 01 0000000000000001 0001")
ACK_TO_HELLO = x("00000011 05 0000000000000001 0000000000000000")
AUTH_2 = x("00000012 02 0000000000000002 0007 6465762D6B6579")
ACK_TO_AUTH = x("00000011 05 0000000000000002 0000000000000000")

BAD_AUTH_PAYLOADS = [
    b"",
    b"\x00",
    u16(8) + b"dev-key",  # longer than what is there
    u16(6) + b"dev-key",  # shorter: bytes are left over
    u16(0) + b"x",
    u16(2) + x("C328"),  # not UTF-8
    u16(3) + x("EDA080"),  # half a surrogate pair
]


@pytest.mark.row("blipmq-1")
@pytest.mark.parametrize("listener", ["blipmq", "tcp"])
def test_hello_is_acknowledged(blipmq: LiveServer, listener: str, exchange: Exchange) -> None:
    with BlipMQPeer(blipmq.port(listener)) as peer:
        exchange(peer, HELLO_1, ACK_TO_HELLO)


@pytest.mark.row("blipmq-2")
@pytest.mark.parametrize("version", [0, 2, 65535])
def test_another_version_is_refused_and_may_be_corrected(
    stranger: BlipMQPeer, version: int, exchange: Exchange
) -> None:
    exchange(stranger, hello(7, version), UNSUPPORTED_VERSION.frame(7))
    stranger.ask(auth(8), HELLO_NOT_PERFORMED.frame(8))
    exchange(stranger, HELLO_1, ACK_TO_HELLO)


@pytest.mark.row("blipmq-3")
@pytest.mark.parametrize("payload", [b"", b"\x01", b"\x00\x01\x00"])
def test_hello_with_a_wrong_size_is_refused_and_may_be_corrected(
    stranger: BlipMQPeer, payload: bytes, exchange: Exchange
) -> None:
    exchange(stranger, frame(HELLO, 7, payload), INVALID_HELLO.frame(7))
    exchange(stranger, HELLO_1, ACK_TO_HELLO)


@pytest.mark.row("blipmq-4")
@pytest.mark.parametrize("payload", [u16(1), u16(2), b"", b"\x00\x01\x00"])
def test_a_second_hello_is_refused_before_its_payload_is_read(
    stranger: BlipMQPeer, payload: bytes, exchange: Exchange
) -> None:
    stranger.ask(HELLO_1, ACK_TO_HELLO)
    exchange(stranger, frame(HELLO, 7, payload), HELLO_ALREADY.frame(7))
    stranger.ask(AUTH_2, ACK_TO_AUTH)
    exchange(stranger, frame(HELLO, 8, payload), HELLO_ALREADY.frame(8))


@pytest.mark.row("blipmq-5")
@pytest.mark.parametrize("payload", [u16(7) + b"dev-key", *BAD_AUTH_PAYLOADS])
def test_auth_before_hello(stranger: BlipMQPeer, payload: bytes, exchange: Exchange) -> None:
    exchange(stranger, frame(AUTH, 7, payload), HELLO_NOT_PERFORMED.frame(7))
    stranger.login()


@pytest.mark.row("blipmq-6")
@pytest.mark.parametrize("payload", [u16(7) + b"dev-key", u16(3) + b"bad", *BAD_AUTH_PAYLOADS])
def test_a_second_auth_is_refused_before_its_payload_is_read(
    peer: BlipMQPeer, payload: bytes, exchange: Exchange
) -> None:
    exchange(peer, frame(AUTH, 7, payload), ALREADY_AUTHENTICATED.frame(7))
    peer.quiet()


@pytest.mark.row("blipmq-7")
@pytest.mark.parametrize("payload", BAD_AUTH_PAYLOADS)
def test_a_malformed_auth_is_refused_and_may_be_corrected(
    stranger: BlipMQPeer, payload: bytes, exchange: Exchange
) -> None:
    stranger.ask(HELLO_1, ACK_TO_HELLO)
    exchange(stranger, frame(AUTH, 7, payload), INVALID_AUTH.frame(7))
    stranger.ask(AUTH_2, ACK_TO_AUTH)


@pytest.mark.row("blipmq-8")
def test_wrong_keys_leave_the_connection_open_up_to_a_limit(stranger: BlipMQPeer) -> None:
    """The reference server lets a peer guess for ever; here the tenth wrong key ends the connection,
    after its NACK (protocol notes, section 2, question 1)."""
    stranger.ask(HELLO_1, ACK_TO_HELLO)
    for number in range(9):
        stranger.ask(auth(number, f"wrong-{number}"), INVALID_KEY.frame(number))
        stranger.ask(ping(number), UNAUTHENTICATED.frame(number))
    stranger.ask(auth(10, "wrong-10") + ping(11), INVALID_KEY.frame(10))
    assert stranger.at_end()


@pytest.mark.row("blipmq-8")
def test_a_wrong_key_before_the_limit_does_no_harm(stranger: BlipMQPeer) -> None:
    stranger.ask(HELLO_1, ACK_TO_HELLO)
    for number in range(9):
        stranger.ask(auth(number, "wrong"), INVALID_KEY.frame(number))
    stranger.ask(AUTH_2, ACK_TO_AUTH)
    stranger.quiet()


@pytest.mark.row("blipmq-8")
def test_the_limit_of_wrong_keys_is_ten_and_can_be_chosen(start: Start, connect: Connect) -> None:
    assert load_config(None, {}, {}).config.limits.failed_logins == 10
    peer = connect(start({"limits.failed_logins": "2"}))
    peer.ask(HELLO_1, ACK_TO_HELLO)
    peer.ask(auth(3, "wrong"), INVALID_KEY.frame(3))
    peer.ask(auth(4, "wrong"), INVALID_KEY.frame(4))
    assert peer.at_end()


@pytest.mark.row("blipmq-9")
def test_the_right_key_is_acknowledged(stranger: BlipMQPeer, exchange: Exchange) -> None:
    exchange(stranger, HELLO_1, ACK_TO_HELLO)
    exchange(stranger, AUTH_2, ACK_TO_AUTH)
    stranger.quiet()


@pytest.mark.row("blipmq-10")
def test_an_empty_key_is_a_key_like_any_other(stranger: BlipMQPeer, exchange: Exchange) -> None:
    stranger.ask(HELLO_1, ACK_TO_HELLO)
    exchange(stranger, x("0000000B 02 0000000000000007 0000"), INVALID_KEY.frame(7))
    stranger.ask(AUTH_2, ACK_TO_AUTH)


@pytest.mark.row("blipmq-11")
def test_nobody_can_log_in_without_a_key(start: Start, connect: Connect) -> None:
    """A new Penstock that only its own machine can reach lets `dev-key` in, so that a first message
    needs no set-up; the reference server lets nobody in. Once a key was made, this ends: with all
    keys revoked nobody can log in, as there."""
    first = start({})
    secret = first.server.broker.access.create_key("app", "user")
    connect(first).login(secret).quiet()
    first.server.broker.access.revoke_key("app")
    first.run(first.server.stop())

    peer = connect(start({}))
    peer.ask(HELLO_1, ACK_TO_HELLO)
    for number, key in enumerate(("dev-key", secret, "", "anything")):
        peer.ask(auth(number, key), INVALID_KEY.frame(number))


@pytest.mark.row("blipmq-11")
def test_a_revoked_key_ends_an_open_login(start: Start, connect: Connect) -> None:
    """The reference server needs a restart for this."""
    server = start({})
    access = server.server.broker.access
    peer = connect(server).login(access.create_key("app", "user"))
    peer.quiet()
    access.revoke_key("app")
    peer.ask(ping(7), UNAUTHENTICATED.frame(7))


@pytest.mark.row("blipmq-12")
@pytest.mark.parametrize("kind", range(PUBLISH, POLL + 1))
@pytest.mark.parametrize("greeted", [False, True], ids=["before HELLO", "before AUTH"])
@pytest.mark.parametrize("payload", [b"", b"\xff" * 40], ids=["empty", "garbage"])
def test_everything_else_needs_a_login(
    stranger: BlipMQPeer, kind: int, greeted: bool, payload: bytes, exchange: Exchange
) -> None:
    if greeted:
        stranger.ask(HELLO_1, ACK_TO_HELLO)
    exchange(stranger, frame(kind, 7, payload), UNAUTHENTICATED.frame(7))
    if not greeted:
        stranger.ask(HELLO_1, ACK_TO_HELLO)
    stranger.ask(AUTH_2, ACK_TO_AUTH)


@pytest.mark.row("blipmq-12")
def test_a_failed_login_is_no_login(stranger: BlipMQPeer) -> None:
    stranger.ask(HELLO_1, ACK_TO_HELLO)
    stranger.ask(
        auth(3, "wrong") + ping(4) + auth(5) + ping(6),
        INVALID_KEY.frame(3),
        UNAUTHENTICATED.frame(4),
        ack(5, 0),
        pong(6),
    )


@pytest.mark.row("blipmq-13")
@pytest.mark.parametrize(
    "key", ["Dev-key", "DEV-KEY", "dev-key ", " dev-key", "dev-key\0", "dev-ke", "dev-kez"]
)
def test_keys_are_compared_byte_by_byte(stranger: BlipMQPeer, key: str) -> None:
    stranger.ask(HELLO_1, ACK_TO_HELLO)
    stranger.ask(auth(7, key), INVALID_KEY.frame(7))
