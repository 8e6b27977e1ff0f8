"""Any payload of any opcode over a socket: each request gets one answer, and the connection goes on."""

from collections.abc import Iterator

import pytest
from conformance.flymq.peer import FlyMQPeer, frame, live, text
from hypothesis import given
from hypothesis import strategies as st
from kit.live_server import LiveServer
from wire.flymq.strategies import ANYTHING, payloads

from penstock.sessions.flymq.operations import OPERATIONS
from penstock.wire.flymq.opcodes import OPCODES

AUTH, AUTH_REPLY, WHO_AM_I, ERROR = 0x70, 0x71, 0x72, 0xFF
# Names that exist now and then, because other requests make them, and ones at the limits.
NAMES = ["t", "t.dlq", "g", "u", "al", "", "0-0", "_audit", "..", "x" * 249, "x" * 250, "csv"]
TEXTS = st.one_of(st.sampled_from(NAMES), ANYTHING["str"])
NUMBERS = [0, 1, 2, 3, 10, 1_000, 60_000, (1 << 31) - 1]
POOLS = {
    **ANYTHING,
    "str": TEXTS,
    "bstr": st.one_of(st.sampled_from(["json", "avro", "earliest", "offset"]), ANYTHING["bstr"]),
    "mode": st.one_of(st.sampled_from(["earliest", "latest", "commit", "offset", ""]), TEXTS),
    "filter": st.one_of(st.sampled_from(["", "v", "$.a", "(", "a{99}{99}"]), ANYTHING["filter"]),
    "i32": st.sampled_from([*NUMBERS, -1, -2, -(1 << 31)]),
    "u32": st.sampled_from([*NUMBERS, (1 << 32) - 1]),
    "u64": st.sampled_from([*NUMBERS, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]),
    "i64": st.sampled_from([*NUMBERS, -1, (1 << 63) - 1, -(1 << 63)]),
    "blob": st.one_of(
        st.sampled_from([b"", b"{}", b'{"a":1}', b'{"type":"object"}', b'"int"']), ANYTHING["blob"]
    ),
}
requests = st.sampled_from(sorted(OPERATIONS)).flatmap(
    lambda number: st.tuples(st.just(number), payloads(OPCODES[number].request, POOLS))
)


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with live(tmp_path_factory.mktemp("any")) as server:
        yield server


@given(sent=st.lists(requests, min_size=1, max_size=12), sdk=st.booleans(), pipelined=st.booleans())
def test_every_request_gets_one_answer(
    fuzzed: LiveServer, sent: list[tuple[int, bytes]], sdk: bool, pipelined: bool
) -> None:
    if sum(number == AUTH for number, _ in sent) > 1:
        return  # too many logins that fail end a connection
    with FlyMQPeer(fuzzed.port()) as peer:
        if sdk:
            peer.want(0x53)
        if pipelined:
            peer.send(b"".join(frame(*one) for one in sent))
        for number, payload in sent:
            reply = peer.hear() if pipelined else peer.ask(number, payload)
            assert reply.opcode in (ERROR, AUTH_REPLY if number == AUTH else number)
            assert b"internal error" not in reply.payload
        assert peer.ask(WHO_AM_I).opcode == WHO_AM_I
        # Whatever was asked for, the next peer is served.
        assert peer.ask(0x13, text("none") + bytes(4)).opcode == ERROR
