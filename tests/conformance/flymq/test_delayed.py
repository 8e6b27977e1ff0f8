"""PRODUCE_DELAYED and CANCEL_DELAYED over a socket, and across SIGKILLs."""

import struct
import time
from pathlib import Path

import pytest
from conformance.blipmq.peer import until
from conformance.flymq.peer import OK, FlyMQPeer, blob, both, frame, placed, text
from kit.live_server import ServerProcess

HOUR_MS = 3_600_000
KILLS = 5


def delayed(topic: str, value: bytes, delay_ms: int) -> bytes:
    return text(topic) + blob(value) + struct.pack(">q", delay_ms)


def everything(peer: FlyMQPeer, topic: str) -> list[bytes]:
    found: list[bytes] = []
    offset = 0
    while True:
        messages, after = peer.fetch(topic, offset)
        if not messages:
            return found
        found += [value for _, _, value in messages]
        offset = after


@pytest.mark.row("flymq-0x30", "flymq-0x31", "flymq-D19")
@both
def test_delayed_and_cancelled(peer: FlyMQPeer, topic: str, dialect: str) -> None:
    if dialect == "sdk":
        peer.want(0x53)
    reply = peer.want(0x30, delayed(topic, b"late", HOUR_MS))
    partition, number = placed(reply)
    assert partition == 0 and reply[-8:] == struct.pack(">ii", -1, 4)
    assert abs(int.from_bytes(reply[-16:-8], "big") - time.time() * 1000) < HOUR_MS
    _, second = placed(peer.want(0x30, delayed(topic, b"later", HOUR_MS)))
    _, third = placed(peer.want(0x30, delayed(topic, b"last", HOUR_MS)))
    for request in (
        text(f"delayed-{number}"),
        text(topic) + struct.pack(">Q", second),
        text(str(third)),
    ):
        assert peer.want(0x31, request) == OK
        again = peer.want(0x31, request)
        assert again[:1] == b"\x00" and again[3:].startswith(b"message not found: delayed-")
    for unknown in ("delayed-17", "", "x" * 100, "9" * 19):
        assert peer.want(0x31, text(unknown))[:1] == b"\x00"
    sent = [delayed(topic, b"%d" % delay_ms, delay_ms) for delay_ms in (5_000, 1, 4_000, -1)]
    peer.send(b"".join(frame(0x30, one) for one in sent))
    assert all(peer.hear().opcode == 0x30 for _ in sent)
    until(lambda: len(everything(peer, topic)) == 4, "the delivery of four")
    assert everything(peer, topic)[2:] == [b"4000", b"5000"]


@pytest.mark.row("flymq-0x30")
@both
def test_a_delay_that_is_too_long(peer: FlyMQPeer, topic: str, dialect: str) -> None:
    if dialect == "sdk":
        peer.want(0x53)
    reply = peer.ask(0x30, delayed(topic, b"v", 25 * HOUR_MS))
    words = "delay 25h0m0s exceeds maximum allowed delay 24h0m0s"
    assert (reply.error if dialect == "spec" else reply.sdk_error[1].rstrip()) == words


@pytest.mark.parametrize("opcode", [0x30, 0x35])
def test_in_a_run_only_the_bad_ones_are_refused(peer: FlyMQPeer, topic: str, opcode: int) -> None:
    """Too long a delay, and a time to live that no clock can hold: each in its place of the answers."""
    bad = 1 << 60
    times_ms = [HOUR_MS, bad, HOUR_MS + 1, bad, bad, HOUR_MS]
    payloads = [delayed(topic, b"%d" % number, one) for number, one in enumerate(times_ms)]
    peer.send(b"".join(frame(opcode, one) for one in payloads))
    answers = [peer.hear() for _ in times_ms]
    assert [one.opcode for one in answers] == [
        0xFF if time_ms == bad else opcode for time_ms in times_ms
    ]
    offsets = [placed(one.payload)[1] for one in answers if one.opcode == opcode]
    assert len(set(offsets)) == 3
    if opcode == 0x35:
        assert offsets == [0, 1, 2] and everything(peer, topic) == [b"0", b"2", b"5"]


def test_each_message_once_across_kills(tmp_path: Path) -> None:
    """Killed while messages are delivered: what was answered comes, and comes once."""
    answered: set[bytes] = set()
    for turn in range(KILLS):
        with ServerProcess(tmp_path) as process, FlyMQPeer(process.ports["tcp"]) as peer:
            values = [b"%d-%d" % (turn, number) for number in range(200)]
            for number, value in enumerate(values):
                peer.send(frame(0x30, delayed("t", value, number)))
            assert all(peer.hear().opcode == 0x30 for _ in values)
            answered.update(values)
            until(lambda: bool(everything(peer, "t")), "the first delivery")
            process.kill()
    with ServerProcess(tmp_path) as process, FlyMQPeer(process.ports["tcp"]) as peer:
        until(lambda: len(everything(peer, "t")) >= len(answered), "the delivery of all")
        assert sorted(everything(peer, "t")) == sorted(answered)
