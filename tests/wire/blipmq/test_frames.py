"""BlipMQ single frames: every hex example of the protocol pages, tolerance of each payload, texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.blipmq import batch as blipmq_batch
from penstock.wire.blipmq import frames as blipmq
from penstock.wire.blipmq.frames import BlipMQProtocolError, Nack, Publish, Subscribe
from penstock.wire.blipmq.split import Control, PollRun, PublishRun, split_replies, split_requests

CID = "1122334455667788"
CID_NUMBER = 0x1122334455667788
U64 = st.integers(0, 2**64 - 1)
TOPICS = st.text(min_size=1, max_size=30).map(lambda text: text.encode("utf-8", "replace"))

EXAMPLES = {
    "HELLO": (blipmq.encode_hello(1), "0000000B 01 0000000000000001 0001"),
    "AUTH": (
        blipmq.encode_auth(2, "dev-key"),
        "00000012 02 0000000000000002 0007 6465762D6B6579",
    ),
    "SUBSCRIBE": (
        blipmq.encode_subscribe(3, b"demo", 1),
        "00000010 04 0000000000000003 0004 64656D6F 01",
    ),
    "PUBLISH": (
        blipmq.encode_publish(4, b"demo", 1, b"hi"),
        "00000012 03 0000000000000004 01 0004 64656D6F 6869",
    ),
    "ACK to SUBSCRIBE": (blipmq.encode_ack(3, 42), "00000011 05 0000000000000003 000000000000002A"),
    "ACK to HELLO": (blipmq.encode_ack(CID_NUMBER, 0), f"00000011 05 {CID} 0000000000000000"),
    "PONG": (blipmq.encode_pong(CID_NUMBER), f"00000009 08 {CID}"),
    "PING": (blipmq.encode_ping(CID_NUMBER), f"00000009 07 {CID}"),
    "POLL": (blipmq.encode_poll(CID_NUMBER, 2), f"00000011 09 {CID} 0000000000000002"),
    "delivery QoS1": (
        blipmq_batch.encode_messages(b"demo", 1, [b"hi"], bytes(7) + b"\x01"),
        "00000012 03 0000000000000001 01 0004 64656D6F 6869",
    ),
    "delivery QoS0": (
        blipmq_batch.encode_messages(b"demo", 0, [b"hi"], bytes(7) + b"\x09"),
        "00000012 03 0000000000000009 00 0004 64656D6F 6869",
    ),
    "client ACK": (
        blipmq_batch.encode_acks(2, bytes(7) + b"\x01"),
        "00000011 05 0000000000000001 0000000000000002",
    ),
}

# Code, text, length of the text, length field, first bytes of the payload: the table of the page.
NACKS = [
    (400, "HELLO already performed", 23, 0x24, "0190 0017", blipmq.HELLO_ALREADY_PERFORMED),
    (400, "invalid HELLO payload", 21, 0x22, "0190 0015", blipmq.INVALID_HELLO),
    (426, "unsupported protocol version", 28, 0x29, "01AA 001C", blipmq.UNSUPPORTED_VERSION),
    (400, "HELLO not performed", 19, 0x20, "0190 0013", blipmq.HELLO_NOT_PERFORMED),
    (400, "already authenticated", 21, 0x22, "0190 0015", blipmq.ALREADY_AUTHENTICATED),
    (400, "invalid AUTH payload", 20, 0x21, "0190 0014", blipmq.INVALID_AUTH),
    (401, "invalid API key", 15, 0x1C, "0191 000F", blipmq.INVALID_API_KEY),
    (401, "unauthenticated", 15, 0x1C, "0191 000F", blipmq.UNAUTHENTICATED),
    (400, "invalid PUBLISH payload", 23, 0x24, "0190 0017", blipmq.INVALID_PUBLISH),
    (400, "empty topic", 11, 0x18, "0190 000B", blipmq.EMPTY_TOPIC),
    (400, "invalid QoS value", 17, 0x1E, "0190 0011", blipmq.INVALID_QOS),
    (400, "invalid SUBSCRIBE payload", 25, 0x26, "0190 0019", blipmq.INVALID_SUBSCRIBE),
    (400, "invalid ACK payload", 19, 0x20, "0190 0013", blipmq.INVALID_ACK),
    (400, "invalid POLL payload", 20, 0x21, "0190 0014", blipmq.INVALID_POLL),
    (400, "subscription_id must be non-zero", 32, 0x2D, "0190 0020", blipmq.ZERO_SUBSCRIPTION),
    (404, "unknown subscription or delivery tag", 36, 0x31, "0194 0024", blipmq.UNKNOWN_TAG),
]


@pytest.mark.parametrize("name", EXAMPLES)
def test_encoders_write_the_bytes_of_the_document(name: str) -> None:
    encoded, expected = EXAMPLES[name]
    assert encoded == bytes.fromhex(expected)


@pytest.mark.parametrize(("code", "text", "size", "length", "head", "nack"), NACKS)
def test_nacks_have_the_exact_texts(
    code: int, text: str, size: int, length: int, head: str, nack: Nack
) -> None:
    assert (nack.code, nack.text, len(nack.text)) == (code, text, size)
    frame = blipmq.encode_nack(CID_NUMBER, nack)
    assert frame == (
        length.to_bytes(4, "big") + b"\x06" + bytes.fromhex(CID + head) + text.encode("ascii")
    )
    assert blipmq.decode_nack(frame[13:]) == nack


def test_a_failed_durable_publish_names_its_reason() -> None:
    nack = blipmq.durable_publish_failed("I/O error: disk full")
    assert nack == Nack(500, "durable publish failed: I/O error: disk full")


def test_a_nack_text_beyond_u16_is_cut_between_characters() -> None:
    frame = blipmq.encode_nack(1, Nack(500, "x" + "é" * 40_000))
    text = blipmq.decode_nack(frame[13:]).text
    assert text == "x" + "é" * 32_767
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4


@pytest.mark.parametrize(
    ("decode", "payload", "expected"),
    [
        (blipmq.decode_hello, "0001", 1),
        (blipmq.decode_hello, "FFFF", 65535),
        (blipmq.decode_auth, "0007 6465762D6B6579", "dev-key"),
        (blipmq.decode_auth, "0000", ""),
        (blipmq.decode_publish, "01 0004 64656D6F 6869", Publish("demo", 1, b"hi")),
        (blipmq.decode_publish, "00 0001 61", Publish("a", 0, b"")),
        (blipmq.decode_subscribe, "0004 64656D6F 01", Subscribe("demo", 1)),
        (blipmq.decode_subscribe, "0004 64656D6F 00 FFFFFF", Subscribe("demo", 0)),
        (blipmq.decode_ack, "000000000000002A", 42),
        (blipmq.decode_poll, "FFFFFFFFFFFFFFFF", 2**64 - 1),
        (blipmq.decode_ack_reply, "0000000000000000", 0),
        (blipmq.decode_nack, "0190 0002 6869 FF", Nack(400, "hi")),
        (blipmq.decode_nack, "0190 0001 FF", Nack(400, "\ufffd")),
    ],
)
def test_payloads_that_are_right(decode: object, payload: str, expected: object) -> None:
    assert callable(decode)
    assert decode(bytes.fromhex(payload)) == expected


@pytest.mark.parametrize(
    ("decode", "payload", "nack"),
    [
        *((blipmq.decode_hello, bad, blipmq.INVALID_HELLO) for bad in ("", "00", "000100")),
        *(
            (blipmq.decode_auth, bad, blipmq.INVALID_AUTH)
            for bad in ("", "00", "0001", "0001 6161", "0002 61", "0001 FF")
        ),
        *(
            (blipmq.decode_publish, bad, blipmq.INVALID_PUBLISH)
            for bad in ("", "01", "01 00", "01 0001", "01 0002 61", "01 0001 FF", "07 0001 FF")
        ),
        *((blipmq.decode_publish, bad, blipmq.EMPTY_TOPIC) for bad in ("01 0000", "07 0000 61")),
        *(
            (blipmq.decode_publish, bad, blipmq.INVALID_QOS)
            for bad in ("02 0001 61", "FF 0001 61 62")
        ),
        *(
            (blipmq.decode_subscribe, bad, blipmq.INVALID_SUBSCRIBE)
            for bad in ("", "00", "0000", "0001 61", "0001 FF 01", "FFFF 61 01")
        ),
        *((blipmq.decode_subscribe, bad, blipmq.EMPTY_TOPIC) for bad in ("0000 01", "0000 09 61")),
        (blipmq.decode_subscribe, "0001 61 02", blipmq.INVALID_QOS),
        *((blipmq.decode_ack, bad, blipmq.INVALID_ACK) for bad in ("", "00" * 7, "00" * 9)),
        *((blipmq.decode_poll, bad, blipmq.INVALID_POLL) for bad in ("", "01" * 7, "01" * 9)),
        (blipmq.decode_ack, "00" * 8, blipmq.ZERO_SUBSCRIPTION),
        (blipmq.decode_poll, "00" * 8, blipmq.ZERO_SUBSCRIPTION),
    ],
)
def test_payloads_that_are_refused(decode: object, payload: str, nack: Nack) -> None:
    assert callable(decode)
    with pytest.raises(BlipMQProtocolError) as caught:
        decode(bytes.fromhex(payload))
    assert (caught.value.code, caught.value.what) == (nack.code, nack.text)
    assert 0 <= caught.value.position <= len(payload)


@pytest.mark.parametrize("payload", ["", "00", "0190 00", "0190 0003 6869"])
def test_a_broken_nack_is_the_servers_fault(payload: str) -> None:
    with pytest.raises(BlipMQProtocolError) as caught:
        blipmq.decode_nack(bytes.fromhex(payload))
    assert caught.value.code is None


DECODERS = [
    blipmq.decode_hello,
    blipmq.decode_auth,
    blipmq.decode_publish,
    blipmq.decode_subscribe,
    blipmq.decode_ack,
    blipmq.decode_poll,
    blipmq.decode_ack_reply,
    blipmq.decode_nack,
]


@given(st.sampled_from(DECODERS), st.binary(max_size=40))
def test_any_payload_decodes_or_is_the_peers_fault(decode: object, payload: bytes) -> None:
    assert callable(decode)
    try:
        decode(payload)
    except BlipMQProtocolError as error:
        assert 0 <= error.position <= len(payload)


@given(U64, TOPICS, st.integers(0, 1), st.binary(max_size=200))
def test_messages_come_back(cid: int, topic: bytes, qos: int, message: bytes) -> None:
    frame = blipmq.encode_publish(cid, topic, qos, message)
    for split in (split_requests, split_replies):
        operations, consumed, error = split(frame, 0, len(frame))
        assert (consumed, error) == (len(frame), None)
        (run,) = operations
        assert isinstance(run, PublishRun)
        assert (run.topic, run.topic_name, run.qos) == (topic, topic.decode(), qos)
        assert (run.values, run.correlation_ids) == ([message], cid.to_bytes(8, "big"))
    assert blipmq.decode_publish(frame[13:]) == Publish(topic.decode(), qos, message)


@given(U64, U64.filter(bool), TOPICS, st.integers(0, 1))
def test_other_frames_come_back(cid: int, number: int, topic: bytes, qos: int) -> None:
    def payload(frame: bytes) -> bytes:
        ((control,), consumed, error) = split_replies(frame, 0, len(frame))
        assert isinstance(control, Control)
        assert (consumed, error, control.correlation_id) == (len(frame), None, cid)
        return control.payload

    assert blipmq.decode_hello(payload(blipmq.encode_hello(cid, 9))) == 9
    assert blipmq.decode_auth(payload(blipmq.encode_auth(cid, topic.decode()))) == topic.decode()
    subscribe = payload(blipmq.encode_subscribe(cid, topic, qos))
    assert blipmq.decode_subscribe(subscribe) == Subscribe(topic.decode(), qos)
    assert blipmq.decode_ack(payload(blipmq.encode_ack(cid, number))) == number
    assert blipmq.decode_poll(payload(blipmq.encode_poll(cid, number))) == number
    assert payload(blipmq.encode_ping(cid)) == payload(blipmq.encode_pong(cid)) == b""
    ((polls,), _, _) = split_requests(blipmq.encode_poll(cid, number), 0, 21)
    assert isinstance(polls, PollRun)
    assert polls.subscription_id == number


@pytest.mark.parametrize("topic", [b"", b"x" * 65_536, b"\xff"])
def test_a_topic_no_frame_can_hold_is_our_own_fault(topic: bytes) -> None:
    with pytest.raises(ValueError, match="topic"):
        blipmq.encode_subscribe(1, topic, 0)
    with pytest.raises(ValueError, match="topic"):
        blipmq.encode_publish(1, topic, 0, b"")


def test_the_longest_message_fits_and_one_byte_more_does_not() -> None:
    room = blipmq.message_room(b"demo")
    frame = blipmq.encode_publish(1, b"demo", 0, bytes(room))
    assert int.from_bytes(frame[:4], "big") == blipmq.MAX_LENGTH
    with pytest.raises(ValueError, match="message of"):
        blipmq.encode_publish(1, b"demo", 0, bytes(room + 1))


def test_an_api_key_beyond_u16_is_our_own_fault() -> None:
    with pytest.raises(ValueError, match="API key of 65536 bytes"):
        blipmq.encode_auth(1, "x" * 65_536)


def test_the_longest_auth_fits_before_login() -> None:
    frame = blipmq.encode_auth(1, "x" * 65_535)
    assert int.from_bytes(frame[:4], "big") <= blipmq.MAX_LOGIN_LENGTH


def test_the_error_says_what_where_and_with_which_code() -> None:
    assert str(BlipMQProtocolError("empty topic", 3, 400)) == "empty topic, at byte 3 (code 400)"
    assert str(BlipMQProtocolError("bad", 0)) == "bad, at byte 0"
