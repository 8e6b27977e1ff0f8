"""Every hex example of the two BlipMQ documents, sent or received on a real socket, byte for byte."""

import pytest
from conformance.blipmq.conftest import PATIENT, Connect, Exchange, Start
from conformance.blipmq.peer import (
    ALREADY_AUTHENTICATED,
    EMPTY_TOPIC,
    HELLO_ALREADY,
    HELLO_NOT_PERFORMED,
    INVALID_ACK,
    INVALID_AUTH,
    INVALID_HELLO,
    INVALID_KEY,
    INVALID_POLL,
    INVALID_PUBLISH,
    INVALID_QOS,
    INVALID_SUBSCRIBE,
    UNAUTHENTICATED,
    UNKNOWN_TAG,
    UNSUPPORTED_VERSION,
    ZERO_SUBSCRIPTION,
    BlipMQPeer,
    Nack,
    subscribe,
    until_queued,
    x,
)

# The protocol document: "Hex-Encoded Sample Frames".
HELLO = x("00 00 00 0B  01  00 00 00 00 00 00 00 01  00 01")
AUTH = x("00 00 00 12  02  00 00 00 00 00 00 00 02  00 07  64 65 76 2D 6B 65 79")
SUBSCRIBE = x("00 00 00 10  04  00 00 00 00 00 00 00 03  00 04  64 65 6D 6F  01")
PUBLISH = x("00 00 00 12  03  00 00 00 00 00 00 00 04  01  00 04  64 65 6D 6F  68 69")
ACK_42 = x("00 00 00 11  05  00 00 00 00 00 00 00 03  00 00 00 00 00 00 00 2A")

# The page on the server's behaviour: "Byte reference".
ACK_TO_HELLO = x("00000011 05 0000000000000001 0000000000000000")
ACK_TO_AUTH = x("00000011 05 0000000000000002 0000000000000000")
POLL_2 = x("00000011 09 0000000000000009 0000000000000002")
DELIVERY_QOS1 = x("00000012 03 0000000000000001 01 0004 64656D6F 6869")
DELIVERY_QOS0 = x("00000012 03 0000000000000009 00 0004 64656D6F 6869")
CLIENT_ACK = x("00000011 05 0000000000000001 0000000000000002")
PING = x("00000009 07 0000000000000005")
PONG = x("00000009 08 0000000000000005")

CID = x("0102030405060708")

# What brings each refusal of the table: the login before it, the frame behind its length, the NACK.
REFUSALS: list[tuple[bytes, str, Nack]] = [
    (HELLO, "01 {} 0001", HELLO_ALREADY),
    (b"", "01 {} 000100", INVALID_HELLO),
    (b"", "01 {} 0002", UNSUPPORTED_VERSION),
    (b"", "02 {} 0007 6465762D6B6579", HELLO_NOT_PERFORMED),
    (HELLO + AUTH, "02 {} 0007 6465762D6B6579", ALREADY_AUTHENTICATED),
    (HELLO, "02 {} 0008 6465762D6B6579", INVALID_AUTH),
    (HELLO, "02 {} 0007 6465762D6B657A", INVALID_KEY),
    (HELLO, "07 {}", UNAUTHENTICATED),
    (HELLO + AUTH, "03 {} 01 0005 64656D6F", INVALID_PUBLISH),
    (HELLO + AUTH, "03 {} 01 0000 6869", EMPTY_TOPIC),
    (HELLO + AUTH, "03 {} 02 0004 64656D6F 6869", INVALID_QOS),
    (HELLO + AUTH, "04 {} 0004 64656D6F", INVALID_SUBSCRIBE),
    (HELLO + AUTH, "04 {} 0000 01", EMPTY_TOPIC),
    (HELLO + AUTH, "04 {} 0004 64656D6F 02", INVALID_QOS),
    (HELLO + AUTH, "05 {} 00", INVALID_ACK),
    (HELLO + AUTH, "05 {} 0000000000000000", ZERO_SUBSCRIPTION),
    (HELLO + AUTH, "05 {} 00000000000F4240", UNKNOWN_TAG),
    (HELLO + AUTH, "09 {} 00", INVALID_POLL),
    (HELLO + AUTH, "09 {} 0000000000000000", ZERO_SUBSCRIPTION),
]


def test_the_examples_in_one_conversation(
    start: Start, connect: Connect, exchange: Exchange
) -> None:
    """As a client would use them. The examples have subscription 2, so one is made before."""
    server = start(PATIENT)
    connect(server).login().subscribe("another")
    peer = connect(server)
    exchange(peer, HELLO, ACK_TO_HELLO)
    exchange(peer, AUTH, ACK_TO_AUTH)
    exchange(peer, SUBSCRIBE, x("00000011 05 0000000000000003 0000000000000002"))
    exchange(peer, PUBLISH)
    until_queued(server, 2, 1)
    exchange(peer, POLL_2, DELIVERY_QOS1)
    exchange(peer, CLIENT_ACK)
    exchange(peer, CLIENT_ACK, UNKNOWN_TAG.frame(1))
    exchange(peer, PING, PONG)


def test_the_examples_in_one_segment(start: Start, connect: Connect) -> None:
    server = start(PATIENT)
    connect(server).login().subscribe("another")
    peer = connect(server)
    peer.ask(
        HELLO + AUTH + SUBSCRIBE + PUBLISH + POLL_2 + CLIENT_ACK + PING,
        ACK_TO_HELLO,
        ACK_TO_AUTH,
        x("00000011 05 0000000000000003 0000000000000002"),
        DELIVERY_QOS1,
        PONG,
    )


def test_the_example_of_a_qos0_delivery(start: Start, connect: Connect, exchange: Exchange) -> None:
    server = start(PATIENT)
    peer = connect(server).login()
    peer.subscribe("another")
    assert peer.subscribe("demo", 0) == 2
    peer.send(PUBLISH)
    until_queued(server, 2, 1)
    exchange(peer, POLL_2, DELIVERY_QOS0)


def test_the_example_of_subscription_42(start: Start, connect: Connect, exchange: Exchange) -> None:
    peer = connect(start(PATIENT)).login()
    for number in range(1, 42):
        peer.send(subscribe(7, "other"))
        assert peer.frame()[-1] == number
    exchange(peer, SUBSCRIBE, ACK_42)


@pytest.mark.parametrize(
    ("login", "hexadecimal", "refusal"), REFUSALS, ids=[f"{r[1][:2]} {r[2].text}" for r in REFUSALS]
)
def test_every_refusal_of_the_table(
    stranger: BlipMQPeer, login: bytes, hexadecimal: str, refusal: Nack, exchange: Exchange
) -> None:
    """Length field, code and text length as they stand in the table."""
    stranger.ask(login, *[ACK_TO_HELLO, ACK_TO_AUTH][: len(login) // 15])
    body = x(hexadecimal.format(CID.hex()))
    expected = refusal.length.to_bytes(4, "big") + b"\x06" + CID + x(refusal.start)
    exchange(stranger, len(body).to_bytes(4, "big") + body, expected + refusal.text.encode())
