"""RustLog over a socket: frames, dialects, golden vectors. Broken requests: test_rustlog_strict."""

import socket

import pytest
from conformance.rustlog.peer import (
    BINARY,
    CAP,
    JSON,
    PING_B,
    Dialect,
    Talker,
    Topics,
    Way,
    both,
    every_way,
    framed,
    live,
    parse_error,
)
from kit.live_server import LiveServer


def alive(server: LiveServer) -> bool:
    with Talker(server.port()) as other:
        return other.ask(JSON.ping()) == JSON.pong()


# ---- golden vectors ------------------------------------------------------------------------------

GOLDEN = [
    ("00000001 FF", "00000001 FF"),
    ("0000000B 05 0004 64656D6F 00000001", "00000002 05 01"),
    (
        "00000015 01 0004 64656D6F 00000000 00000001 00000002 6869",
        "0000000D 01 0000000000000000 00000001",
    ),
    (
        "00000019 02 0000 0004 64656D6F 00000000 0000000000000000 00000400",
        "00000013 02 00000001 00000002 6869 0000000000000001",
    ),
    ("0000000E 04 0001 67 0004 64656D6F 00000000", "00000002 04 00"),
    ("00000016 03 0001 67 0004 64656D6F 00000000 0000000000000005", "00000002 03 01"),
    ("0000000E 04 0001 67 0004 64656D6F 00000000", "0000000A 04 01 0000000000000005"),
    (
        "00000013 01 0008 6E6F2D746F706963 00000000 00000000",
        "00000043 FE 000A 003E "
        + b"Topic or partition does not exist: topic=no-topic, partition=0".hex(),
    ),
]
# The document's examples on a log of our own, so offsets begin at 0.
EXAMPLES = [
    ('"Ping"', '"Pong"'),
    (
        '{"CreateTopic":{"topic":"orders","partition_count":1}}',
        '{"CreateTopic":{"success":true}}',
    ),
    (
        '{\n  "Produce": {\n    "topic": "orders",\n    "partition": 0,\n'
        '    "records": [[98, 121, 116, 101, 115], [109, 111, 114, 101]]\n  }\n}',
        '{"Produce":{"offsets":[0,1]}}',
    ),
    (
        '{"Fetch":{"topic":"orders","partition":0,"offset":0,"max_bytes":1048576,'
        '"group_id":"processor"}}',
        '{"Fetch":{"records":[{"offset":0,"payload":[98,121,116,101,115]},'
        '{"offset":1,"payload":[109,111,114,101]}],"next_offset":2}}',
    ),
    (
        '{"OffsetFetch":{"topic":"orders","partition":0,"group_id":"processor"}}',
        '{"OffsetFetch":{"offset":null}}',
    ),
    (
        '{"OffsetCommit":{"topic":"orders","partition":0,"group_id":"processor","offset":1}}',
        '{"OffsetCommit":{"success":true}}',
    ),
    (
        '{"OffsetFetch":{"topic":"orders","partition":0,"group_id":"processor"}}',
        '{"OffsetFetch":{"offset":1}}',
    ),
    (
        '{"Fetch":{"topic":"orders","partition":0,"offset":0,"max_bytes":1048576,'
        '"group_id":"processor"}}',
        '{"Fetch":{"records":[{"offset":1,"payload":[109,111,114,101]}],"next_offset":2}}',
    ),
    (
        '{"Fetch":{"topic":"orders","partition":0,"offset":100,"max_bytes":1048576,'
        '"group_id":null}}',
        '{"Fetch":{"records":[],"next_offset":2}}',
    ),
    (
        '{"Fetch":{"topic":"nonexistent","partition":0,"offset":0,"max_bytes":1048576,'
        '"group_id":null}}',
        '{"Error":{"message":"partition not found: topic=nonexistent, partition=0"}}',
    ),
]


@pytest.mark.row("rustlog-12", "rustlog-13", "rustlog-21", "rustlog-38", "rustlog-42", "rustlog-43")
@pytest.mark.row("rustlog-14", "rustlog-46", "rustlog-54")
@every_way
def test_golden_vectors_of_b(tmp_path_factory: pytest.TempPathFactory, way: Way) -> None:
    requests = [bytes.fromhex(request)[4:] for request, _ in GOLDEN]
    replies = [bytes.fromhex(reply) for _, reply in GOLDEN]
    assert [framed(request) for request in requests] == [bytes.fromhex(r) for r, _ in GOLDEN]
    with live(tmp_path_factory.mktemp("golden")) as running, Talker(running.port()) as peer:
        assert list(map(framed, way(peer, requests))) == replies


@pytest.mark.row("rustlog-12", "rustlog-13", "rustlog-21", "rustlog-32", "rustlog-36", "rustlog-58")
@every_way
def test_examples_of_the_document(tmp_path_factory: pytest.TempPathFactory, way: Way) -> None:
    requests = [request.encode() for request, _ in EXAMPLES]
    with live(tmp_path_factory.mktemp("examples")) as running, Talker(running.port()) as peer:
        assert way(peer, requests) == [reply.encode() for _, reply in EXAMPLES]


# ---- frames --------------------------------------------------------------------------------------


@pytest.mark.row("rustlog-1")
def test_a_json_frame_of_exactly_the_cap(peer: Talker) -> None:
    assert peer.ask(b'"Ping"'.ljust(CAP)) == b'"Pong"'


@pytest.mark.row("rustlog-1")
def test_a_binary_frame_of_exactly_the_cap(peer: Talker, topics: Topics) -> None:
    topic = topics.new()
    record = b"\xab" * (CAP - len(BINARY.produce(topic, 0, [b""])))
    request = BINARY.produce(topic, 0, [record])
    assert len(request) == CAP
    assert peer.ask(request) == BINARY.produced(0, 1)
    # A reply has less around a record than a request: what came in goes out again.
    assert peer.ask(BINARY.fetch(topic, 0, 0, CAP)) == BINARY.fetched(0, [record], 1)


@pytest.mark.row("rustlog-2", "rustlog-18")
@pytest.mark.parametrize("length", [CAP + 1, (1 << 32) - 1])
@both
def test_a_longer_frame_is_refused_and_closed(
    server: LiveServer, dialect: Dialect, length: int
) -> None:
    """Also the fate of a record over 10 MB: no frame can bring it. The body is never waited for;
    Penstock ends the connection in order, so the Error is not lost in a reset."""
    words = {
        "J": f"max frame size exceeded: {length} bytes (max: {CAP})",
        "B": f"Frame error: frame too large: {length} bytes (max: {CAP})",
    }
    with Talker(server.port()) as peer:
        assert peer.ask(dialect.ping()) == dialect.pong()
        peer.send(length.to_bytes(4, "big") + b"{" * 100)
        assert peer.hear() == dialect.error(1, words[dialect.name])
        assert peer.at_end()
    assert alive(server)


@pytest.mark.row("rustlog-2")
@pytest.mark.parametrize("listener", ["tcp", "rustlog"])
@pytest.mark.parametrize("behind", [b"", b"{", b"\x01", b"\xff"])
def test_a_first_frame_that_is_too_long_is_answered_in_its_own_dialect(
    server: LiveServer, listener: str, behind: bytes
) -> None:
    """In JSON while its four bytes are all there is; and at once, on either port."""
    binary = behind in (b"\x01", b"\xff")
    words = f"Frame error: frame too large: {CAP + 1} bytes (max: {CAP})"
    if not binary:
        words = f"max frame size exceeded: {CAP + 1} bytes (max: {CAP})"
    with Talker(server.port(listener)) as peer:
        peer.send((CAP + 1).to_bytes(4, "big") + behind)
        assert peer.hear() == (BINARY if binary else JSON).error(1, words)
        assert peer.at_end()


@pytest.mark.row("rustlog-9")
@pytest.mark.parametrize("request_type", [0x0A, 0x0D, 0x20])
def test_a_blank_type_leaves_a_binary_connection_binary(peer: Talker, request_type: int) -> None:
    assert peer.ask(BINARY.ping()) == BINARY.pong()
    words = f"Decode error: unknown request type: {request_type}"
    assert peer.ask(bytes([request_type])) == BINARY.error(2, words)
    assert peer.ask(bytes([request_type]) + b'"Ping"') == b'"Pong"'


@pytest.mark.row("rustlog-3")
@both
def test_a_frame_without_bytes_is_refused_and_closed(server: LiveServer, dialect: Dialect) -> None:
    words = {
        "J": "failed to parse request: zero-length frame",
        "B": "Frame error: invalid protocol: zero-length frame",
    }
    with Talker(server.port()) as peer:
        peer.send(framed(dialect.ping()) + bytes(4) + framed(dialect.ping()))
        assert peer.hear() == dialect.pong()
        assert peer.hear() == dialect.error(1, words[dialect.name])
        assert peer.at_end()


@pytest.mark.row("rustlog-3")
def test_a_connection_that_begins_with_nothing_is_told_so_in_json(server: LiveServer) -> None:
    with Talker(server.port()) as peer:
        peer.send(bytes(4))
        assert peer.hear() == JSON.error(0, "failed to parse request: zero-length frame")
        assert peer.at_end()


@pytest.mark.row("rustlog-2", "rustlog-6")
@both
def test_a_broken_stream_is_answered_after_what_came_before(
    server: LiveServer, topics: Topics, dialect: Dialect
) -> None:
    topic = topics.new()
    with Talker(server.port()) as peer:
        peer.send(framed(dialect.produce(topic, 0, [b"kept"])) + b"\xff\xff\xff\xff")
        assert peer.hear() == dialect.produced(0, 1)
        assert b"4294967295" in peer.hear()
        assert peer.at_end()


@pytest.mark.row("rustlog-4")
@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, -1])
@both
def test_an_early_end_closes_in_silence(
    server: LiveServer, topics: Topics, dialect: Dialect, size: int
) -> None:
    topic = topics.new()
    frame = framed(dialect.produce(topic, 0, [b"torn"]))
    with Talker(server.port()) as peer:
        assert peer.ask(dialect.ping()) == dialect.pong()
        peer.send(frame[:size])
        peer.socket.shutdown(socket.SHUT_WR)
        assert peer.at_end()
    with Talker(server.port()) as other:
        assert other.ask(dialect.fetch(topic, 0, 0, 100)) == dialect.fetched(0, [], 0)


@pytest.mark.row("rustlog-4", "rustlog-6")
@both
def test_requests_before_the_end_are_still_answered(
    server: LiveServer, topics: Topics, dialect: Dialect
) -> None:
    topic = topics.new()
    with Talker(server.port()) as peer:
        peer.tell(dialect.produce(topic, 0, [b"one"]), dialect.fetch(topic, 0, 0, 100))
        peer.socket.shutdown(socket.SHUT_WR)
        assert peer.hear() == dialect.produced(0, 1)
        assert peer.hear() == dialect.fetched(0, [b"one"], 1)
        assert peer.at_end()


@pytest.mark.row("rustlog-5")
@both
def test_a_slow_peer_is_waited_for(
    tmp_path_factory: pytest.TempPathFactory, dialect: Dialect
) -> None:
    """RustLog has no login, so the time to log in ends with its first bytes. The silent peer, which
    came later, is closed by that time: so it has passed for the slow one too."""
    data = tmp_path_factory.mktemp("slow")
    frame = framed(dialect.ping())
    with (
        live(data, limits__login_time="100 ms") as running,
        Talker(running.port()) as slow,
        Talker(running.port()) as silent,
    ):
        slow.send(framed(dialect.ping()) + frame[:3])
        assert slow.hear() == dialect.pong()
        assert silent.at_end()
        for byte in frame[3:]:
            slow.send(bytes((byte,)))
        assert slow.hear() == dialect.pong()


@pytest.mark.row("rustlog-6")
@both
def test_pipelined_requests_are_answered_in_order_and_see_each_other(
    peer: Talker, topics: Topics, dialect: Dialect
) -> None:
    topic = topics.new()
    requests: list[bytes] = []
    replies: list[bytes] = []
    values: list[bytes] = []
    for number in range(50):
        values.append(b"%d" % number)
        requests += [
            dialect.produce(topic, 0, values[-1:]),
            dialect.fetch(topic, 0, 0, 1_000_000),
            dialect.commit("g", topic, 0, number),
            dialect.offset_fetch("g", topic, 0),
            dialect.ping(),
        ]
        replies += [
            dialect.produced(number, 1),
            dialect.fetched(0, values, number + 1),
            dialect.committed(),
            dialect.offset(number),
            dialect.pong(),
        ]
    peer.tell(*requests)
    assert [peer.hear() for _ in requests] == replies


@pytest.mark.row("rustlog-6")
@pytest.mark.parametrize("ended", [False, True], ids=["open", "half closed"])
@both
def test_a_peer_that_reads_late_gets_every_answer_in_order(
    server: LiveServer, topics: Topics, dialect: Dialect, ended: bool
) -> None:
    """More answers than the server holds for one peer, and requests torn at odd places meanwhile."""
    records = [b"\xff" * 20_000] * 10
    topic = topics.holding(*records)
    asked = 12 if dialect is JSON else 50
    big = dialect.fetch(topic, 0, 0, 1_000_000)
    requests = []
    for number in range(asked):
        requests += [big, dialect.offset_fetch(f"nobody-{number}", topic, 0)]
    data = b"".join(map(framed, requests))
    expected = dialect.fetched(0, records, 10)
    with Talker(server.port()) as peer:
        for start in range(0, len(data), 777):
            peer.send(data[start : start + 777])
        if ended:
            peer.socket.shutdown(socket.SHUT_WR)
        for _ in range(asked):
            assert peer.hear() == expected
            assert peer.hear() == dialect.offset(None)
        if ended:
            assert peer.at_end()
        else:
            assert peer.ask(dialect.ping()) == dialect.pong()


@pytest.mark.row("rustlog-8", "rustlog-9")
def test_both_dialects_on_one_connection(peer: Talker) -> None:
    """The first byte decides for each frame; where it says nothing, the dialect used last answers."""
    nothing = b"\x63"
    assert peer.ask(JSON.ping()) == JSON.pong()
    assert parse_error(peer.ask(nothing)).startswith("failed to parse request")
    assert peer.ask(BINARY.ping()) == BINARY.pong()
    assert peer.ask(nothing) == BINARY.error(2, "Decode error: unknown request type: 99")
    assert peer.ask(b' \n\r\t"Ping"') == JSON.pong()
    assert peer.ask(b'\t{"Ping":null}') == JSON.pong()
    assert peer.ask(b"\t")[0] == 9
    assert peer.ask(b"\t\t \n")[0] == 9
    assert peer.ask(b"\t!")[0] == 9


@pytest.mark.row("rustlog-9")
@pytest.mark.parametrize("kind", [0x00, 0x0B, 0x63, 0x80, 0xFD, 0xFE])
def test_an_unknown_binary_request_stays_open(peer: Talker, kind: int) -> None:
    assert peer.ask(PING_B) == PING_B
    reply = peer.ask(bytes((kind, 1, 2, 3)))
    assert reply == BINARY.error(2, f"Decode error: unknown request type: {kind}")
    assert peer.ask(PING_B) == PING_B


@pytest.mark.row("rustlog-8", "rustlog-9")
@pytest.mark.parametrize("request_", ['"Nope"', '{"Nope":{}}', '{"DescribeTopic":{"topic":"t"}}'])
def test_an_unknown_json_request_is_a_parse_failure_and_stays_open(
    peer: Talker, request_: str
) -> None:
    """The document says Error in one place and close in another: the frame boundary is still known,
    so the connection stays (section 2, item 2)."""
    assert parse_error(peer.ask(request_.encode())).startswith(
        "failed to parse request: unknown request `"
    )
    assert peer.ask(JSON.ping()) == JSON.pong()


@pytest.mark.row("rustlog-10")
def test_extra_bytes_are_ignored_in_binary(peer: Talker, topics: Topics) -> None:
    topic = topics.new()
    conversation = [
        (BINARY.produce(topic, 0, [b"hi"]), BINARY.produced(0, 1)),
        (BINARY.fetch(topic, 0, 0, 100), BINARY.fetched(0, [b"hi"], 1)),
        (BINARY.commit("g", topic, 0, 1), BINARY.committed()),
        (BINARY.offset_fetch("g", topic, 0), BINARY.offset(1)),
        (BINARY.ping(), BINARY.pong()),
    ]
    for request, reply in conversation:
        assert peer.ask(request + b"\x00trailing\xff") == reply
    assert peer.ask(BINARY.list_topics() + b"x")[0] == 6


@pytest.mark.row("rustlog-10", "rustlog-11")
def test_unknown_fields_are_ignored_in_json(peer: Talker, topics: Topics) -> None:
    topic = topics.new()
    extra = '"later":{"a":[1,2.5,-3e9,null,true,"\\u00e9"]},"offsets":[]'
    produce = f'{{"Produce":{{{extra},"records":[[1]],"partition":0,"topic":"{topic}"}}}}'
    assert peer.ask(produce.encode()) == JSON.produced(0, 1)
    fetch = f'{{"Fetch":{{"max_bytes":9,{extra},"offset":0,"partition":0,"topic":"{topic}"}}}}'
    assert peer.ask(fetch.encode()) == JSON.fetched(0, [b"\x01"], 1)


@pytest.mark.row("rustlog-5")
def test_half_frames_of_many_peers_count_against_the_memory_of_all(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Ten megabytes of a frame that never ends are held and counted, and given back with the peer."""
    part = framed(bytes(CAP))[: 9 * 1024 * 1024]
    with live(tmp_path_factory.mktemp("held")) as running:
        hub = running.server.hub
        with Talker(running.port("rustlog")) as peer:
            peer.send(framed(PING_B) + part + b"")
            assert peer.hear() == PING_B
            while running.call(lambda: hub.held_bytes) < len(part):
                assert alive(running)
        while running.call(lambda: len(hub.connections)):
            assert running.call(lambda: hub.held_bytes) >= 0
        assert running.call(lambda: hub.held_bytes) == 0
