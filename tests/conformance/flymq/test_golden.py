"""The frames of the protocol documents over a real socket, in each dialect and however they arrive.

One conversation on a topic whose next offset is 42, so that the offsets are those of the documents. Times
are the server's own; they are compared with the clock. The address in CLUSTER_METADATA is the server's too.
"""

import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.flymq.peer import (
    SDK,
    SPEC,
    FlyMQPeer,
    Way,
    both,
    every_way,
    frame,
    live,
    produce,
    raw,
)
from kit.echo_server import make_certificate
from kit.live_server import LiveServer

# Requests and replies of both dialects. ? stands for the time, @ for the address with its length.
CONVERSATION = [
    ("AF 01 03 01 00000007  0001 74  00000003", "AF 01 03 01 00000005  01 0002 4F4B"),
    (
        "AF 01 04 01 00000003  0001 74",
        "AF 01 04 01 0000001F  0001 74  00000001  00000000 00000000 0000000000000000 000000000000002A",
    ),
    (
        "AF 01 01 01 00000011  0001 74  00000001 6B  00000001 76  FFFFFFFF",
        "AF 01 01 01 0000001F  0001 74  00000000  000000000000002A  ?  00000001  00000001",
    ),
    (
        "AF 01 02 01 0000000F  0001 74  00000000  000000000000002A",
        "AF 01 02 01 0000000A  00000001 6B  00000001 76",
    ),
    (
        "AF 01 0A 01 0000000F  0001 74  00000000  000000000000002A",
        "AF 01 0A 01 0000000A  00000001 6B  00000001 76",
    ),
    (
        "AF 01 0B 01 00000013  0001 74  00000000  000000000000002A  0000000A",
        "AF 01 0B 01 0000001E  00000001 000000000000002B  000000000000002A 00000001 6B 00000001 76",
    ),
]
BY_DIALECT = {
    SPEC: [
        (
            "AF 01 07 01 00000013  0001 74  00000000  000000000000002A  0000000A",
            "AF 01 07 01 0000001E  00000001  00000001 6B 00000001 76 000000000000002A  000000000000002B",
        ),
        (
            "AF 01 05 01 00000012  0001 74  0001 67  00000000  0006 6C6174657374",
            "AF 01 05 01 00000008  000000000000002B",
        ),
        ("AF 01 09 01 00000003  0001 75", "AF 01 09 01 00000005  01 0002 4F4B"),
        (
            "AF 01 02 01 0000000F  0001 75  00000000  000000000000002A",
            'AF 01 FF 01 00000015  00 0012 "topic not found: u"',
        ),
        ("AF 01 71 01 00000000", 'AF 01 FF 01 00000016  00 0013 "unknown opcode: 113"'),
    ],
    SDK: [
        (
            "AF 01 07 01 00000015  0001 74  00000000  000000000000002A  0000000A  0000",
            "AF 01 07 01 0000001E  00000001 000000000000002B  000000000000002A 00000001 6B 00000001 76",
        ),
        (
            "AF 01 05 01 00000011  0001 74  0001 67  00000000  06 6C6174657374",
            "AF 01 05 01 00000008  000000000000002B",
        ),
        (
            "AF 01 53 01 00000003  0001 74",
            'AF 01 53 01 00000050  000A "standalone"  00000001  0001 74  00000001  00000000 0002 6E31 @'
            " 0000000000000001 0006 6F6E6C696E65 00000001 0002 6E31 00000001 0002 6E31",
        ),
        (
            "AF 01 02 01 0000000F  0001 75  00000000  000000000000002A",
            'AF 01 FF 01 00000018  00 0015 01  0012 "topic not found: u"',
        ),
        ("AF 01 FF 01 00000000", 'AF 01 FF 01 00000019  00 0016 13  0013 "unknown opcode: 255"'),
    ],
}
BEHIND = [
    (
        "AF 01 06 01 00000012  0001 74  0001 67  00000000  000000000000002B",
        "AF 01 06 01 00000005  01 0002 4F4B",
    ),
    (
        "AF 01 60 01 0000000A  0001 74  0001 67  00000000",
        "AF 01 60 01 00000008 000000000000002B",
    ),
    (
        "AF 01 62 01 00000000",
        "AF 01 62 01 0000001E  00000001  0001 74  0001 67  00000001 00000001  00000000 000000000000002B",
    ),
    (
        "AF 01 63 01 00000006  0001 74  0001 67",
        "AF 01 63 01 0000001A  0001 74  0001 67  00000001 00000001  00000000 000000000000002B",
    ),
    (
        "AF 01 61 01 00000019  0001 74  0001 67  00000000  06 6F6666736574  0000000000000028",
        "AF 01 61 01 00000005  01 0002 4F4B",
    ),
    (
        "AF 01 64 01 0000000A  0001 74  0001 67  00000000",
        "AF 01 64 01 00000020  0000000000000028 0000000000000028 000000000000002B 0000000000000003",
    ),
    (
        "AF 01 66 01 00000012  0001 74  0001 67  00000000  0000000000000000",
        "AF 01 66 01 00000008  0000000000000000",
    ),
    ("AF 01 65 01 00000006  0001 74  0001 67", "AF 01 65 01 00000005  01 0002 4F4B"),
    ("AF 01 08 01 00000000", "AF 01 08 01 00000007  00000001  0001 74"),
    ("AF 01 09 01 00000003  0001 74", "AF 01 09 01 00000005  01 0002 4F4B"),
]


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[LiveServer, ssl.SSLContext]]:
    directory = tmp_path_factory.mktemp("golden")
    pem = make_certificate(directory)
    settings = {"tls__certificate": pem.certificate, "tls__key": pem.key}
    with live(directory / "data", **settings) as running:
        yield running, ssl.create_default_context(cafile=pem.certificate)


@pytest.fixture(params=["shared port", "own port", "TLS"])
def connected(
    request: pytest.FixtureRequest, secured: tuple[LiveServer, ssl.SSLContext]
) -> Iterator[FlyMQPeer]:
    server, tls = secured
    with FlyMQPeer(server.port("flymq" if request.param == "own port" else "tcp")) as peer:
        if request.param == "TLS":
            peer.socket = tls.wrap_socket(peer.socket, server_hostname="localhost")
        yield peer


def as_written(reply: bytes, expected: str, peer: FlyMQPeer) -> bytes:
    """What the document writes, with the time and the address of this reply, which have to be right."""
    if "@" in expected:
        host, port = peer.socket.getpeername()
        address = f"{host}:{port}"
        expected = expected.replace("@", f'{len(address):04X} "{address}"')
        expected = expected.replace("00000050", f"{len(reply) - 8:08X}")
    if "?" in expected:
        time_ms = int.from_bytes(reply[23:31], "big")
        assert abs(time_ms - time.time() * 1000) < 3_600_000
        expected = expected.replace("?", reply[23:31].hex())
    return raw(expected)


@pytest.mark.row("flymq-0x01", "flymq-0x02", "flymq-0x03", "flymq-0x04", "flymq-0x05", "flymq-0x06")
@pytest.mark.row("flymq-0x07", "flymq-0x08", "flymq-0x09", "flymq-0x0A", "flymq-0x0B", "flymq-0x53")
@pytest.mark.row("flymq-0x60", "flymq-0x61", "flymq-0x62", "flymq-0x63", "flymq-0x64", "flymq-0x65")
@pytest.mark.row(
    "flymq-0x66", "flymq-0x71", "flymq-0xFF", "flymq-D1", "flymq-D2", "flymq-D3", "flymq-D4"
)
@both
@every_way
def test_the_frames_of_the_documents(connected: FlyMQPeer, way: Way, dialect: str) -> None:
    start = b"".join(frame(0x01, produce("t", b"x")) for _ in range(42))
    connected.send(start)
    for _ in range(42):
        connected.hear()
    steps = [*CONVERSATION, *BY_DIALECT[dialect], *BEHIND]
    replies = way(connected, [raw(request) for request, _ in steps])
    for reply, (request, expected) in zip(replies, steps, strict=True):
        assert reply == as_written(reply, expected, connected), request


@pytest.mark.row("flymq-0x01")
def test_the_example_of_the_document_has_a_header_that_is_too_short(tmp_path: Path) -> None:
    """Its length leaves out the partition, which is then -1; the four bytes behind it are no frame."""
    example = raw('AF 01 01 01 00000013  0004 "test"  00000000  00000005 "hello"  FFFFFFFF')
    with live(tmp_path) as server, FlyMQPeer(server.port()) as peer:
        peer.send(example)
        reply = peer.hear()
        assert reply.opcode == 0x01
        assert reply.payload[:18] == raw('0004 "test"  00000000  0000000000000000')
        assert reply.payload[26:] == raw("FFFFFFFF 00000005")
        assert peer.at_end()
