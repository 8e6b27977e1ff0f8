"""Every opcode of the table over a real socket, in both dialects: its golden reply at every door, and what
becomes of a peer without rights and of payloads that are cut off or spoilt.

The cases are made of the wire's table, so that an opcode without a golden frame fails here.
"""

import re
import ssl
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from conformance.flymq.goldens import ANY, GOLDENS, OPTIONAL, Golden
from conformance.flymq.peer import SDK, FlyMQPeer, Reply, both, frame, live, raw, text
from kit.echo_server import make_certificate
from kit.live_server import LiveServer

from penstock.sessions.flymq.operations import OPERATIONS
from penstock.wire.flymq.opcodes import OPCODES

HEADER_BYTES = 8
DOORS = ("shared port", "own port", "shared port, TLS", "own port, TLS")
HOUR_MS = 3_600_000
TOKENS = re.compile(r'(<\w+>|\{\w+\}|\?|@|####|"[^"]*")')
every_opcode = pytest.mark.parametrize(
    "number", sorted(OPERATIONS), ids=lambda number: OPCODES[number].name
)

# What golden steps leave behind: topic t and its dead letters, schema u, user al, the rule of t.
FORGET = [
    frame(0x65, text("t") + text("g")),
    frame(0x09, text("t")),
    frame(0x09, text("t.dlq")),
    frame(0x15, text("u") + bytes(4)),
    frame(0x74, text("al")),
    frame(0x7A, text("t")),
]


def test_every_opcode_has_a_golden_frame_and_is_served() -> None:
    assert set(GOLDENS) == set(OPERATIONS)
    assert set(OPERATIONS) <= set(OPCODES)


# --- connections ----------------------------------------------------------------------------------


class Connections:
    """One for each door, dialect and user, logged in when it is first needed: a login is slow."""

    def __init__(self, server: LiveServer, tls: ssl.SSLContext) -> None:
        self.server = server
        self._tls = tls
        self._open: dict[tuple[str, str, str], FlyMQPeer] = {}

    def get(self, door: str, dialect: str, user: str = "admin") -> FlyMQPeer:
        found = self._open.get((door, dialect, user))
        if found is None:
            found = self._open[door, dialect, user] = self.connect(door, dialect, user)
        return found

    def connect(self, door: str, dialect: str, user: str = "admin") -> FlyMQPeer:
        peer = FlyMQPeer(self.server.port("flymq" if door.startswith("own") else "tcp"))
        if door.endswith("TLS"):
            peer.socket = self._tls.wrap_socket(peer.socket, server_hostname="localhost")
        if dialect == SDK:
            peer.want(0x53)
        assert peer.ask(0x70, text(user) + text("pw")).payload[0] == 1
        return peer

    def close(self) -> None:
        for peer in self._open.values():
            peer.socket.close()


@pytest.fixture(scope="module")
def connections(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connections]:
    directory = tmp_path_factory.mktemp("opcodes")
    pem = make_certificate(directory)
    settings = {"tls__certificate": pem.certificate, "tls__key": pem.key}
    with live(directory / "data", **settings) as server:
        broker = server.server.broker
        broker.accounts.create_user(broker.access.anonymous, "admin", "pw", ["admin"])
        broker.accounts.create_user(broker.access.anonymous, "no", "pw", [])
        opened = Connections(server, ssl.create_default_context(cafile=pem.certificate))
        yield opened
        opened.close()


def forget(peer: FlyMQPeer) -> None:
    peer.send(b"".join(FORGET))
    for _ in FORGET:
        peer.hear_frame()


# --- golden frames --------------------------------------------------------------------------------


@dataclass(slots=True)
class Names:
    """What the server called things."""

    texts: dict[str, bytes] = field(default_factory=dict)
    numbers: dict[str, bytes] = field(default_factory=dict)

    def request(self, written: str) -> bytes:
        made = b"".join(self._written(part) for part in TOKENS.split(written))
        return made[:4] + (len(made) - HEADER_BYTES).to_bytes(4, "big") + made[8:]

    def _written(self, part: str) -> bytes:
        if part.startswith("<"):
            found = self.texts.get(part, b"none")
            return struct.pack(">H", len(found)) + found
        if part.startswith("{"):
            return self.numbers.get(part, bytes(8))
        return bytes(4) if part == "####" else raw(part)

    def check(self, reply: bytes, written: str, address: str) -> None:
        """Byte by byte; times are compared with the clock, and new names are kept."""
        at = 0
        for part in TOKENS.split(written):
            at += len(self._expected(part, reply, at, address))
        assert at == len(reply), f"{reply[at:]!r} is more than {written}"

    def _expected(self, part: str, reply: bytes, at: int, address: str) -> bytes:
        expected = raw(part) if part[:1] not in ("<", "{", "?", "@", "#") else b""
        if part == "?":
            expected = reply[at : at + 8]
            time_ms = int.from_bytes(expected, "big")
            now_ms = time.time() * 1000
            assert min(abs(time_ms - now_ms), abs(time_ms * 1000 - now_ms)) < HOUR_MS
        elif part == "@":
            expected = text(address)
        elif part == "####":
            expected = (len(reply) - HEADER_BYTES).to_bytes(4, "big")
        elif part.startswith("{"):
            expected = self.numbers.setdefault(part, reply[at : at + 8])
        elif part.startswith("<"):
            size = int.from_bytes(reply[at : at + 2], "big")
            known = self.texts.setdefault(part, reply[at + 2 : at + 2 + size])
            assert 0 < len(known) <= 64
            expected = struct.pack(">H", len(known)) + known
        assert reply[at : at + len(expected)] == expected, (part, reply[at:])
        return expected


def prepared(peer: FlyMQPeer, golden: Golden, dialect: str) -> tuple[Names, bytes, str]:
    """Makes what the request needs; the request, and the reply as it is written."""
    found = Names()
    host, port = peer.socket.getpeername()
    for request, reply in golden.before:
        heard = exchanged(peer, found.request(request))
        assert heard[2] != 0xFF, heard
        if reply != ANY:
            found.check(heard, reply, f"{host}:{port}")
    sdk = dialect == SDK
    request = golden.sdk_request if sdk and golden.sdk_request is not None else golden.request
    reply = golden.sdk_reply if sdk and golden.sdk_reply is not None else golden.reply
    return found, found.request(request), reply


def exchanged(peer: FlyMQPeer, request: bytes) -> bytes:
    peer.send(request)
    return peer.hear_frame()


@pytest.mark.row(*(f"flymq-0x{number:02X}" for number in sorted(OPERATIONS)))
@pytest.mark.parametrize("door", DOORS)
@both
@every_opcode
def test_golden_replies(connections: Connections, number: int, dialect: str, door: str) -> None:
    peer = connections.get(door, dialect)
    forget(peer)
    if number == 0x53:  # it changes the dialect
        peer = connections.connect(door, dialect)
    host, port = peer.socket.getpeername()
    found, request, reply = prepared(peer, GOLDENS[number], dialect)
    found.check(exchanged(peer, request), reply, f"{host}:{port}")
    if number == 0x53:
        peer.socket.close()


@both
@every_opcode
def test_bytes_behind_the_last_field_are_ignored(
    connections: Connections, number: int, dialect: str
) -> None:
    """But where the end of the payload tells two forms apart, or an optional field is missing."""
    golden = GOLDENS[number]
    if OPCODES[number].read is not None or number == 0x53:
        return
    peer = connections.get(DOORS[0], dialect)
    forget(peer)
    found, request, reply = prepared(peer, golden, dialect)
    behind = b"" if dialect != SDK and number == 0x07 else b"\xff\x00\xff"
    longer = request + behind
    longer = longer[:4] + (len(longer) - HEADER_BYTES).to_bytes(4, "big") + longer[8:]
    found.check(exchanged(peer, longer), reply, "{}:{}".format(*peer.socket.getpeername()))


# --- refusals -------------------------------------------------------------------------------------


def words(reply: Reply, dialect: str) -> str:
    return reply.sdk_error[1].rstrip() if dialect == SDK else reply.error


@both
@every_opcode
def test_without_the_right(connections: Connections, number: int, dialect: str) -> None:
    """One line, the same for what is there and what is not; the connection goes on."""
    peer = connections.get(DOORS[0], dialect)
    forget(peer)
    if number == 0x53:
        dialect = SDK
    golden = GOLDENS[number]
    _, request, _ = prepared(peer, golden, dialect)
    guest = connections.get(DOORS[0], dialect, "no")
    if number == 0x70:
        request = frame(0x70, text("no") + text("pw"))
    guest.send(request)
    reply = guest.hear()
    if golden.refused:
        assert words(reply, dialect) == f"no may not {golden.refused}"
    else:
        assert reply.opcode == (0x71 if number == 0x70 else number)
    assert (OPERATIONS[number].operation.right in ("none", "login")) is (not golden.refused)
    assert guest.want(0x72)[:5] == b"\x01" + text("no")


@both
@every_opcode
def test_cut_off_at_every_byte(connections: Connections, number: int, dialect: str) -> None:
    """Refused as long as a field is missing; the connection goes on."""
    golden = GOLDENS[number]
    admin = connections.get(DOORS[0], dialect)
    forget(admin)
    least = golden.whole_from
    if dialect == SDK and golden.sdk_whole_from is not None:
        least = golden.sdk_whole_from
    with connections.connect(DOORS[0], dialect) as peer:
        payload = prepared(peer, golden, dialect)[1][HEADER_BYTES:]
        least = len(payload) if least is None else least
        cut = [frame(number, payload[:size]) for size in range(len(payload))]
        peer.send(b"".join(cut) + frame(0x72))
        for size, _ in enumerate(cut):
            reply = peer.hear()
            short = "invalid binary format: " in said(reply)
            switches = dialect != SDK and size == golden.sdk_at
            missing = size >= 2 if least == OPTIONAL else size < least and not switches
            assert short is missing, (size, reply)
        assert peer.hear().opcode == 0x72


def said(reply: Reply) -> str:
    """Of an ERROR in either dialect."""
    return reply.payload.decode(errors="replace") if reply.opcode == 0xFF else ""


@both
@every_opcode
def test_texts_that_are_no_utf8(connections: Connections, number: int, dialect: str) -> None:
    peer = connections.get(DOORS[0], dialect)
    forget(peer)
    if number == 0x53:
        peer, dialect = connections.get(DOORS[0], SDK), SDK
    _, request, _ = prepared(peer, GOLDENS[number], dialect)
    payload = request[HEADER_BYTES:]
    spoilt = bytes(0xFF if 0x61 <= byte <= 0x7A else byte for byte in payload)
    if spoilt == payload:
        return
    reply = peer.ask(number, spoilt)
    assert words(reply, dialect).startswith("invalid binary format: ")
    assert peer.want(0x72)[:1] == b"\x01"


@both
@every_opcode
def test_which_refusal_comes_first(connections: Connections, number: int, dialect: str) -> None:
    """Of a payload that cannot be read, from a peer without rights: for users, rules and the audit trail
    the right, for all others the payload."""
    payload = b"\xff"
    if number == 0x53 or not raw_fields(number):
        return
    guest = connections.get(DOORS[0], dialect, "no")
    right_first = 0x73 <= number <= 0x7B or number in (0x80, 0x81)
    reply = guest.ask(number, payload)
    if GOLDENS[number].whole_from != OPTIONAL:
        said = words(reply, dialect)
        assert said.startswith("no may not " if right_first else "invalid binary format: ")


def raw_fields(number: int) -> bool:
    return len(raw(TOKENS.sub("", GOLDENS[number].request))) > HEADER_BYTES


def test_unknown_opcodes(connections: Connections) -> None:
    """0x71 and 0xFF are replies alone."""
    for dialect in ("spec", SDK):
        peer = connections.get(DOORS[0], dialect)
        for number in sorted(set(range(256)) - set(OPCODES)):
            assert words(peer.ask(number), dialect) == f"unknown opcode: {number}"
