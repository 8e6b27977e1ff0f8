"""FlyMQ over a socket: users, passwords, topic rules and roles, 0x73 to 0x7D, in each dialect."""

import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conformance.flymq.peer import (
    SDK,
    SPEC,
    FlyMQPeer,
    Reply,
    Way,
    both,
    every_way,
    fetch,
    frame,
    live,
    names,
    produce,
    raw,
    text,
)
from kit.live_server import LiveServer

PASSWORD = "root-pw"
# ? stands for a time of this minute, in seconds.
CONVERSATION = [
    (
        "AF 01 73 01 00000019  0002 616C  0002 7077  0000  00000001 0008 636F6E73756D6572  01",
        "AF 01 73 01 00000027  0002 616C  00000001 0008 636F6E73756D6572  00000000  01"
        " 0000000000000000 0000000000000000",
    ),
    (
        "AF 01 77 01 00000004  0002 616C",
        "AF 01 77 01 0000002D  0002 616C  00000001 0008 636F6E73756D6572  00000001 0004 72656164"
        " 01 ? ?",
    ),
    (
        "AF 01 75 01 00000014  0002 616C  0000  0000  00000001 0005 61646D696E  01",
        "AF 01 75 01 00000005  01 0002 616C",
    ),
    (
        "AF 01 77 01 00000004  0002 616C",
        "AF 01 77 01 00000038  0002 616C  00000001 0005 61646D696E"
        " 00000003 0004 72656164 0005 7772697465 0005 61646D696E  01 ? ?",
    ),
    (
        "AF 01 7C 01 00000013  0002 616C  0003 6E6577  0003 6F6C64  00000000  00",
        "AF 01 7C 01 00000005  01 0002 616C",
    ),
    (
        "AF 01 76 01 00000000",
        "AF 01 76 01 0000004E  00000002"
        " 0002 616C  00000001 0005 61646D696E  00000000  01 ? ?"
        " 0004 726F6F74  00000001 0005 61646D696E  00000000  01 ? ?",
    ),
    ("AF 01 74 01 00000004  0002 616C", "AF 01 74 01 00000005  01 0002 616C"),
    (
        "AF 01 78 01 00000010  0001 74  00  00000001 0002 616C  00000000",
        "AF 01 78 01 00000004  01 0001 74",
    ),
    (
        "AF 01 79 01 00000003  0001 74",
        "AF 01 79 01 00000012  0001 74  01 00 00  00000001 0002 616C  00000000",
    ),
    # `default_public` is false here.
    (
        "AF 01 7B 01 00000000",
        "AF 01 7B 01 00000016  00000001  0001 74  01 00  00000001 0002 616C  00000000  00",
    ),
    ("AF 01 7A 01 00000003  0001 74", "AF 01 7A 01 00000004  01 0001 74"),
    ("AF 01 7A 01 00000003  0001 74", "AF 01 7A 01 00000004  01 0001 74"),
    (
        "AF 01 79 01 00000003  0001 74",
        "AF 01 79 01 0000000E  0001 74  00 00 00  00000000  00000000",
    ),
    ("AF 01 7B 01 00000000", "AF 01 7B 01 00000005  00000000  00"),
    (
        "AF 01 7D 01 00000000",
        "AF 01 7D 01 000000DF  00000004"
        " 0005 61646D696E  00000003 0004 72656164 0005 7772697465 0005 61646D696E"
        ' 001D "Full access to all operations"'
        " 0008 70726F6475636572  00000001 0005 7772697465"
        ' 0024 "Write-only access (produce messages)"'
        " 0008 636F6E73756D6572  00000001 0004 72656164"
        ' 0023 "Read-only access (consume messages)"'
        ' 0005 6775657374  00000000  001C "Access to public topics only"',
    ),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with an administrator, and so without dev-key."""
    data = tmp_path_factory.mktemp("users")
    with live(data) as server:
        make(server, "root", PASSWORD, "admin")
    return data


def make(server: LiveServer, name: str, password: str, *roles: str) -> None:
    by = server.server.broker.access.anonymous
    server.server.broker.accounts.create_user(by, name, password, roles)


@contextmanager
def logged_in(
    server: LiveServer, user: str = "root", password: str = PASSWORD
) -> Iterator[FlyMQPeer]:
    with FlyMQPeer(server.port()) as peer:
        assert welcome(peer, user, password)
        yield peer


def welcome(peer: FlyMQPeer, user: str, password: str) -> bool:
    reply = peer.ask(0x70, text(user) + text(password))
    assert reply.opcode == 0x71
    return reply.payload[:1] == b"\x01"


def user(name: str, password: str = "", old: str = "", *roles: str, enabled: bool = True) -> bytes:
    return text(name) + text(password) + text(old) + names(*roles) + bytes((enabled,))


def rule(topic: str, *users: str, public: bool = False, roles: tuple[str, ...] = ()) -> bytes:
    return text(topic) + bytes((public,)) + names(*users) + names(*roles)


def error(reply: Reply, dialect: str) -> str:
    return reply.error if dialect == SPEC else reply.sdk_error[1].rstrip()


# --- the frames of the documents ------------------------------------------------------------------


def matches(reply: bytes, expected: str, now_s: float) -> None:
    """Times are compared with the clock, all else byte by byte."""
    parts = [raw(part) for part in expected.split("?")]
    at = 0
    for number, part in enumerate(parts):
        if number:
            (found_s,) = struct.unpack_from(">q", reply, at)
            assert abs(found_s - now_s) < 3600
            at += 8
        assert reply[at : at + len(part)] == part, (reply[at:], part)
        at += len(part)
    assert at == len(reply)


@pytest.mark.row(
    "flymq-0x73",
    "flymq-0x74",
    "flymq-0x75",
    "flymq-0x76",
    "flymq-0x77",
    "flymq-0x78",
    "flymq-0x79",
    "flymq-0x7A",
    "flymq-0x7B",
    "flymq-0x7C",
    "flymq-0x7D",
)
@every_way
@both
def test_the_frames_of_the_documents(data: Path, dialect: str, way: Way) -> None:
    with live(data, flymq__dialect=dialect) as server, logged_in(server) as peer:
        replies = way(peer, [raw(request) for request, _ in CONVERSATION])
        for reply, (_, expected) in zip(replies, CONVERSATION, strict=True):
            matches(reply, expected, time.time())


@pytest.mark.row("flymq-0x73", "flymq-0x78")
@both
def test_bytes_behind_a_request_are_ignored(data: Path, dialect: str) -> None:
    with live(data, flymq__dialect=dialect) as server, logged_in(server) as peer:
        assert peer.want(0x73, user("tail", "pw") + b"more")[:6] == text("tail")
        assert peer.want(0x78, rule("tail", "al") + b"more") == b"\x01" + text("tail")
        assert peer.want(0x74, text("tail") + b"more") == b"\x01" + text("tail")
        assert peer.want(0x7A, text("tail") + b"more") == b"\x01" + text("tail")


@pytest.mark.row("flymq-0x73", "flymq-0x75")
def test_a_missing_last_byte_disables_in_an_update_alone(data: Path) -> None:
    with live(data) as server, logged_in(server) as peer:
        peer.want(0x73, user("last", "pw")[:-1])
        users = server.server.broker.access.users
        assert users.get("last").enabled
        assert peer.want(0x75, user("last")[:-1]) == b"\x01" + text("last")
        assert not users.get("last").enabled and users.get("last").roles == ()
        peer.want(0x74, text("last"))


# --- refusals -------------------------------------------------------------------------------------

REFUSED = [
    (0x73, user("", "pw"), "username and password are required"),
    (0x73, user("bo", ""), "username and password are required"),
    (0x73, user("root", "pw"), 'user "root" already exists'),
    (
        0x73,
        user("bo", "pw", "", "king"),
        "role 'king' is unknown; use admin, writer, reader, guest",
    ),
    (0x74, text("root"), "cannot delete your own account"),
    (0x74, text("nobody"), 'user "nobody" not found'),
    (0x75, user("nobody"), 'user "nobody" not found'),
    (0x77, text("nobody"), 'user "nobody" not found'),
    (0x7C, user("nobody", "new"), 'user "nobody" not found'),
    (0x7C, user("root", "new", "no"), "invalid current password"),
    (0x7C, user("root", "", PASSWORD), "username and password are required"),
    (0x78, rule("_audit"), "no rule is for '_audit': names that begin with _ belong to the server"),
]


@pytest.mark.row("flymq-0x73", "flymq-0x74", "flymq-0x75", "flymq-0x77", "flymq-0x7C", "flymq-D1")
@both
def test_what_is_refused(data: Path, dialect: str) -> None:
    with live(data, flymq__dialect=dialect) as server, logged_in(server) as peer:
        for opcode, payload, words in REFUSED:
            assert error(peer.ask(opcode, payload), dialect) == words
        assert peer.want(0x7B) == bytes(5)


@both
def test_who_lacks_the_right_is_told_so_before_the_payload_is_read(
    data: Path, dialect: str
) -> None:
    with live(data, flymq__dialect=dialect) as server, FlyMQPeer(server.port()) as peer:
        for opcode in (0x73, 0x74, 0x75, 0x77, 0x78, 0x79, 0x7A):
            for payload in (b"", b"\xff\xff"):
                assert " may not " in error(peer.ask(opcode, payload), dialect)
        assert welcome(peer, "root", PASSWORD)
        for opcode in (0x73, 0x74, 0x75, 0x77, 0x78, 0x79, 0x7A, 0x7C):
            for payload in (b"", b"\xff\xff"):
                found = error(peer.ask(opcode, payload), dialect)
                assert found.startswith("invalid binary format: ")
        for opcode in (0x73, 0x75, 0x7C):
            for cut in range(10):  # the smallest request
                assert peer.ask(opcode, user("x", "y")[:cut]).opcode == 0xFF


# --- logins ---------------------------------------------------------------------------------------


@pytest.mark.row("flymq-0x70", "flymq-0x72")
@both
def test_a_user_logs_in(data: Path, dialect: str) -> None:
    with live(data, flymq__dialect=dialect) as server:
        make(server, f"both-{dialect}", "pw", "writer", "reader")
        with FlyMQPeer(server.port()) as peer:
            name = f"both-{dialect}"
            assert not welcome(peer, name, "no")
            assert welcome(peer, name, "pw")
            roles = names("producer", "consumer")
            assert peer.want(0x72) == b"\x01" + text(name) + roles + names("read", "write")
            with logged_in(server) as admin:
                admin.want(0x75, user(name, "", "", "guest"))
            assert peer.want(0x72) == b"\x01" + text(name) + names("guest") + names()


@pytest.mark.row("flymq-0x70")
def test_from_the_first_user_on_a_wrong_login_is_refused(tmp_path: Path) -> None:
    with live(tmp_path) as server, FlyMQPeer(server.port()) as peer:
        assert welcome(peer, "al", "pw")
        assert peer.want(0x73, user("root", PASSWORD, "", "admin"))
        assert not welcome(peer, "al", "pw")
        assert welcome(peer, "root", PASSWORD)
    with live(tmp_path) as server, FlyMQPeer(server.port()) as peer:
        assert not welcome(peer, "dev-key", "dev-key")
        assert peer.ask(0x01, produce("t", b"v")).error.startswith("anonymous may not publish")
        assert welcome(peer, "root", PASSWORD)
        peer.produce("t", b"v")


# --- changes on open connections ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("opcode", "payload", "words"),
    [
        (0x74, text("al"), "the user 'al' is deleted"),
        (0x75, user("al", "", "", "producer", enabled=False), "the user account 'al' is disabled"),
        (0x7C, user("al", "new"), "the user 'al' has another password now; log in again"),
    ],
    ids=["delete", "disable", "password"],
)
def test_a_change_ends_what_open_connections_may_do(
    tmp_path: Path, opcode: int, payload: bytes, words: str
) -> None:
    with live(tmp_path) as server:
        make(server, "root", PASSWORD, "admin")
        make(server, "al", "pw", "writer")
        with logged_in(server) as admin, logged_in(server, "al", "pw") as peer:
            peer.produce("t", b"v")
            assert admin.want(opcode, payload)[:1] == b"\x01"
            for number, body in ((0x01, produce("t", b"v")), (0x08, b""), (0x72, b"")):
                assert peer.ask(number, body).error == words
            assert not welcome(peer, "al", "pw")


@pytest.mark.row("flymq-0x7C")
def test_a_user_changes_the_own_password(tmp_path: Path) -> None:
    """This connection goes on, others of the user do not."""
    with live(tmp_path) as server:
        make(server, "root", PASSWORD, "admin")
        make(server, "al", "pw", "writer")
        with logged_in(server, "al", "pw") as peer, logged_in(server, "al", "pw") as other:
            assert peer.ask(0x7C, user("root", "new")).error.startswith(
                "al may not change the pass"
            )
            assert peer.ask(0x7C, user("al", "new", "no")).error == "invalid current password"
            assert peer.want(0x7C, user("al", "new", "pw")) == b"\x01" + text("al")
            peer.produce("t", b"v")
            assert "another password" in other.ask(0x01, produce("t", b"v")).error
            assert welcome(other, "al", "new")


def test_guesses_of_the_own_password_are_counted(tmp_path: Path) -> None:
    with live(tmp_path, limits__failed_logins="3") as server:
        make(server, "al", "pw", "admin")
        with logged_in(server, "al", "pw") as peer:
            for _ in range(3):
                assert peer.ask(0x7C, user("al", "new", "no")).opcode == 0xFF
            assert peer.at_end()


@pytest.mark.row("flymq-0x78", "flymq-0x7A")
@both
def test_a_guest_sees_public_topics_only(data: Path, dialect: str) -> None:
    open_topic, closed = f"open-{dialect}", f"closed-{dialect}"
    with live(data, flymq__dialect=dialect) as server:
        make(server, f"visitor-{dialect}", "pw", "guest")
        with logged_in(server) as admin, logged_in(server, f"visitor-{dialect}", "pw") as guest:
            admin.produce(open_topic, b"v")
            admin.produce(closed, b"v")
            assert guest.want(0x08) == names()
            assert guest.ask(0x0B, fetch(open_topic, 0, 9)).opcode == 0xFF
            admin.want(0x78, rule(open_topic, public=True))
            assert guest.want(0x08) == names(open_topic)
            assert guest.fetch(open_topic)[0] == [(0, b"", b"v")]
            guest.produce(open_topic, b"more")
            assert guest.ask(0x0B, fetch(closed, 0, 9)).opcode == 0xFF
            assert guest.ask(0x09, text(open_topic)).opcode == 0xFF
            with FlyMQPeer(server.port()) as stranger:
                assert stranger.ask(0x0B, fetch(open_topic, 0, 9)).opcode == 0xFF
            admin.want(0x7A, text(open_topic))
            assert guest.ask(0x0B, fetch(open_topic, 0, 9)).opcode == 0xFF


def test_requests_behind_a_change_see_it(data: Path) -> None:
    """In one write: the change of the rights, and what needs them."""
    with live(data, flymq__dialect=SDK) as server, logged_in(server) as peer:
        make(server, "eager", "pw")
        peer.send(
            frame(0x75, user("eager", "", "", "producer"))
            + frame(0x70, text("eager") + text("pw"))
            + frame(0x01, produce("eager", b"v"))
        )
        assert [peer.hear().opcode for _ in range(3)] == [0x75, 0x71, 0x01]
