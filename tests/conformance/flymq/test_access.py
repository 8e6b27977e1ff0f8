"""FlyMQ over a socket: AUTH and WHOAMI with API keys, in each dialect, and on a server that has none."""

import logging
import struct
from pathlib import Path

import pytest
from conformance.flymq.peer import SDK, SPEC, FlyMQPeer, both, live, names, produce, raw, text

WRONG = "invalid username or password"


def auth(user: str, password: str) -> bytes:
    return text(user) + text(password)


def bstrs(*values: str) -> bytes:
    return struct.pack(">I", len(values)) + b"".join(
        bytes((len(value),)) + value.encode() for value in values
    )


def welcome(dialect: str, user: str, *roles: str) -> bytes:
    if dialect == SPEC:
        return b"\x01" + text("") + text(user) + names(*roles)
    behind = b"" if roles else text("")
    return b"\x01" + text(user) + bstrs(*roles) + text("") + behind


def refusal(words: str) -> bytes:
    return b"\x00" + text(words) + text("") + names()


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A data directory with a key for each role."""
    data = tmp_path_factory.mktemp("keys")
    with live(data) as server:
        create = server.server.broker.access.create_key
        keys = {role: create(role, role) for role in ("admin", "user", "writer", "reader")}
    return data, keys


@pytest.mark.row("flymq-0x70", "flymq-0x71", "flymq-0x72", "flymq-D5", "flymq-D6")
@both
def test_a_key_logs_in_with_its_name(keyed: tuple[Path, dict[str, str]], dialect: str) -> None:
    data, keys = keyed
    with live(data, flymq__dialect=dialect) as server:
        for role, roles, permissions in (
            ("admin", ["admin"], ["read", "write", "admin"]),
            ("user", ["producer", "consumer"], ["read", "write"]),
            ("writer", ["producer"], ["write"]),
            ("reader", ["consumer"], ["read"]),
        ):
            with FlyMQPeer(server.port()) as peer:
                assert peer.want(0x72) == raw("00 0000 00000000 00000000")
                reply = peer.ask(0x70, auth(role, keys[role]))
                assert reply == (0x71, welcome(dialect, role, *roles))
                expected = b"\x01" + text(role) + names(*roles) + names(*permissions)
                assert peer.want(0x72) == expected
                allowed = peer.ask(0x01, produce("t", b"v")).opcode == 0x01
                assert allowed == ("write" in permissions)


@pytest.mark.row("flymq-0x70", "flymq-0x71", "flymq-D5")
@both
def test_wrong_logins_are_refused(keyed: tuple[Path, dict[str, str]], dialect: str) -> None:
    """The layout of a refusal is the document's in both dialects."""
    data, keys = keyed
    with live(data, flymq__dialect=dialect) as server, FlyMQPeer(server.port()) as peer:
        for user, password in (("reader", "no"), ("admin", keys["reader"]), ("", ""), ("x", "y")):
            assert peer.ask(0x70, auth(user, password)) == (0x71, refusal(WRONG))
        assert peer.want(0x72)[:1] == b"\x00"
        assert peer.ask(0x01, produce("t", b"v")).opcode == 0xFF
        assert peer.ask(0x70, auth("user", keys["user"])).payload[:1] == b"\x01"


def test_a_refusal_says_how_sdks_log_in(keyed: tuple[Path, dict[str, str]]) -> None:
    """Where nothing tells which of them asks."""
    data, _ = keyed
    with live(data) as server, FlyMQPeer(server.port()) as peer:
        reply = peer.ask(0x70, auth("reader", "no"))
        words = f'{WRONG}; clients of the FlyMQ SDKs need flymq.dialect = "sdk" here'
        assert reply == (0x71, refusal(words))


def test_too_many_wrong_logins_end_the_connection(keyed: tuple[Path, dict[str, str]]) -> None:
    data, _ = keyed
    with live(data, limits__failed_logins="3") as server, FlyMQPeer(server.port()) as peer:
        for _ in range(3):
            assert peer.ask(0x70, auth("reader", "no")).payload[:1] == b"\x00"
        assert peer.at_end()


def test_who_does_not_log_in_is_disconnected(keyed: tuple[Path, dict[str, str]]) -> None:
    """Where such a peer may do nothing."""
    data, _ = keyed
    with live(data, limits__login_time="100 ms") as server, FlyMQPeer(server.port()) as peer:
        assert peer.at_end()


@pytest.mark.row("flymq-0x70", "flymq-D5")
@pytest.mark.parametrize("dialect", [SPEC, SDK])
def test_without_keys_every_login_is_welcome(
    tmp_path: Path, dialect: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It changes nothing, and is logged once. The key of development is a key all the same."""
    with (
        caplog.at_level(logging.WARNING),
        live(tmp_path, flymq__dialect=dialect) as server,
        FlyMQPeer(server.port()) as peer,
    ):
        for name in ("al", "admin"):
            assert peer.ask(0x70, auth(name, "pw")) == (0x71, welcome(dialect, name))
            assert peer.want(0x72)[:1] == b"\x00"
        assert peer.ask(0x01, produce("t", b"v")).opcode == 0x01
        reply = peer.ask(0x70, auth("dev-key", "dev-key"))
        assert reply == (0x71, welcome(dialect, "dev-key", "admin"))
        # From the first key on a wrong login is refused.
        server.server.broker.access.create_key("ops", "admin")
        assert peer.ask(0x70, auth("al", "pw")) == (0x71, refusal(WRONG))
    assert [record.message for record in caplog.records].count(
        "a client logged in with a name and password that nobody checks:"
        " there are no users and no API keys"
    ) == 1


def test_a_revoked_key_may_do_nothing_on_an_open_connection(tmp_path: Path) -> None:
    with live(tmp_path) as server:
        access = server.server.broker.access
        other = access.create_key("ops", "admin")
        key = access.create_key("app", "user")
        with FlyMQPeer(server.port()) as peer:
            assert peer.ask(0x70, auth("app", key)).payload[:1] == b"\x01"
            peer.produce("t", b"v")
            access.revoke_key("app")
            for opcode, payload in ((0x01, produce("t", b"v")), (0x08, b""), (0x72, b"")):
                assert peer.ask(opcode, payload).error == "the key 'app' is revoked"
            assert peer.ask(0x70, auth("app", key)).payload[:1] == b"\x00"
            assert peer.ask(0x70, auth("ops", other)).payload[:1] == b"\x01"
            peer.produce("t", b"v")


def test_peers_act_as_the_user_of_the_configuration(keyed: tuple[Path, dict[str, str]]) -> None:
    data, keys = keyed
    with live(data, flymq__principal="reader") as server, FlyMQPeer(server.port()) as peer:
        assert peer.ask(0x08).opcode == 0x08
        refused = peer.ask(0x01, produce("t", b"v")).error
        assert refused.startswith("reader may not publish to topic 't': that needs the right write")
        assert peer.ask(0x70, auth("writer", keys["writer"])).payload[:1] == b"\x01"
        assert peer.ask(0x01, produce("t", b"v")).opcode == 0x01
