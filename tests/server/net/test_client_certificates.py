"""Certificates of clients that stand for a user: names, every protocol, refusals, and reloading."""

import http.client
import logging
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conformance.blipmq.peer import until
from cryptography import x509
from kit.authority import Authority
from kit.limits import HANG_S
from kit.listeners import free_listeners
from kit.live_server import LiveServer

from penstock.broker.access.access import Principal
from penstock.cli import main as cli
from penstock.client.blipmq import connect_blipmq
from penstock.client.errors import ClientError, NotAuthorized, Refused
from penstock.client.flymq import connect_flymq
from penstock.client.rustlog import connect_rustlog
from penstock.client.settings import ClientSettings
from penstock.server.config.loading import load_config
from penstock.server.config.mapping import BadMapping, parse_mapping
from penstock.server.http.listener import HttpListener
from penstock.server.net.client_certificates import CertificateUsers, Identity, identity_of
from penstock.server.reload import reload

ROOT = Principal("root", "admin")
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


# --- names ----------------------------------------------------------------------------------------


def identity(path: str) -> Identity:
    pem = Path(path).read_text().split("-----BEGIN PRIVATE")[0]
    found = identity_of(ssl.PEM_cert_to_DER_cert(pem))
    assert found is not None
    return found


def test_the_names_of_a_certificate(tmp_path: Path) -> None:
    names = [
        x509.DNSName("app.example"),
        x509.UniformResourceIdentifier("spiffe://prod/app"),
        x509.RFC822Name("app@example.org"),
    ]
    found = identity(Authority(tmp_path).issue("app", organization="A, B", names=names))
    assert found == Identity(
        r"CN=app,O=A\, B", "app", ("app.example", "spiffe://prod/app", "app@example.org")
    )
    assert identity_of(b"no certificate") is None


@pytest.mark.parametrize(
    ("rule", "table", "expected"),
    [
        ("off", {}, ()),
        ("cn", {}, ("app",)),
        ("san", {}, ("app.example", "other")),
        ("dn", {}, ("CN=app,O=X",)),
        ("off", {"CN=app,O=X": "one"}, ("one",)),
        ("cn", {"other": "two"}, ("two",)),
        ("cn", {"app": "three"}, ("three",)),
        ("cn", {"somebody": "four"}, ("app",)),
    ],
)
def test_whom_it_stands_for(rule: str, table: dict[str, str], expected: tuple[str, ...]) -> None:
    one = Identity("CN=app,O=X", "app", ("app.example", "other"))
    assert CertificateUsers(rule, table).names(one) == expected
    assert CertificateUsers("cn", {}).names(Identity("", None, ())) == ()


def test_the_table() -> None:
    assert parse_mapping(["CN=a,O=b -> al", " x->y "]) == {"CN=a,O=b": "al", "x": "y"}
    for entry in ("a", "-> b", "a ->", ""):
        with pytest.raises(BadMapping, match="write"):
            parse_mapping([entry])
    with pytest.raises(BadMapping, match="twice"):
        parse_mapping(["a -> b", "a -> c"])


# --- a server -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("authority"))
    for name in ("al", "bo", "app", "nobody", "localhost", "dev-key", "anonymous"):
        made.server() if name == "localhost" else made.issue(name)
    return made


def path_of(authority: Authority, name: str) -> str:
    return str(authority.directory / f"{name}.pem")


def settings_of(authority: Authority, **more: str) -> dict[str, str]:
    server = path_of(authority, "localhost")
    return {
        "tls.certificate": server,
        "tls.key": server,
        "tls.client_ca": authority.ca,
        "tls.client_user": "cn",
        **{name.replace("__", "."): value for name, value in more.items()},
    }


def prepared(data: Path) -> None:
    """Stores users and a key, so that strangers may do nothing from the next start on."""
    with LiveServer(data) as server:
        broker = server.server.broker
        broker.accounts.create_user(ROOT, "al", "pw-al", ["writer", "reader"])
        broker.accounts.create_user(ROOT, "bo", "pw-bo", ["reader"])
        broker.accounts.create_user(ROOT, "root", "pw", ["admin"])
        broker.access.create_key("app", "user")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[LiveServer]:
    data = tmp_path_factory.mktemp("certificates")
    prepared(data)
    settings = settings_of(authority, tls__client_auth="optional")
    with LiveServer(data, settings) as server:
        yield server


def with_certificate(
    authority: Authority, name: str | None, version: ssl.TLSVersion | None = None
) -> ClientSettings:
    path = None if name is None else path_of(authority, name)
    return ClientSettings(HANG_S, 0, tls=authority.client(path, version))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("listener", ["tcp", "flymq"])
def test_flymq(
    server: LiveServer, authority: Authority, version: ssl.TLSVersion, listener: str
) -> None:
    """Logged in without a login; rights are those of the user, and a login takes another one."""
    address = f"localhost:{server.port(listener)}"
    with connect_flymq(address, settings=with_certificate(authority, "al", version)) as al:
        who = al.who_am_i()
        assert (who.logged_in, who.user, who.roles) == (True, "al", ["producer", "consumer"])
        al.produce("t", b"v")
        with pytest.raises(NotAuthorized, match="al may not delete topic"):
            al.delete_topic("t")
    bo = with_certificate(authority, "bo", version)
    with connect_flymq(address, settings=bo) as client:
        assert client.who_am_i().user == "bo"
        with pytest.raises(NotAuthorized, match="bo may not publish"):
            client.produce("t", b"v")
    with connect_flymq(address, user="al", key="pw-al", settings=bo) as client:
        assert client.who_am_i().user == "al"


@pytest.mark.parametrize("listener", ["tcp", "rustlog"])
def test_rustlog(server: LiveServer, authority: Authority, listener: str) -> None:
    """Which has no login at all."""
    address = f"localhost:{server.port(listener)}"
    with connect_rustlog(address, settings=with_certificate(authority, "al")) as al:
        al.create_topic(f"logs-{listener}", 1)
        al.produce(f"logs-{listener}", 0, [b"v"])
    with (
        connect_rustlog(address, settings=with_certificate(authority, "bo")) as bo,
        pytest.raises(Refused),
    ):
        bo.produce(f"logs-{listener}", 0, [b"v"])
    with (
        connect_rustlog(address, settings=with_certificate(authority, None)) as stranger,
        pytest.raises(Refused),
    ):
        stranger.produce(f"logs-{listener}", 0, [b"v"])


@pytest.mark.parametrize("listener", ["tcp", "blipmq"])
def test_blipmq(server: LiveServer, authority: Authority, listener: str) -> None:
    """Without AUTH; one that comes all the same counts."""
    address = f"localhost:{server.port(listener)}"
    al = with_certificate(authority, "al")
    with connect_blipmq(address, key=None, settings=al) as client:
        client.publish("blips", b"v")
        client.flush()
    with pytest.raises(NotAuthorized), connect_blipmq(address, key="wrong", settings=al):
        pass
    with (
        pytest.raises(ClientError),
        connect_blipmq(address, key=None, settings=with_certificate(authority, None)) as stranger,
    ):
        stranger.publish("blips", b"v")
        stranger.flush()


def test_a_key_too(server: LiveServer, authority: Authority) -> None:
    address = f"localhost:{server.port()}"
    with connect_flymq(address, settings=with_certificate(authority, "app")) as client:
        assert client.who_am_i().user == "app"
        client.produce("t", b"v")


@pytest.mark.parametrize("name", ["nobody", "dev-key", "anonymous", None])
def test_who_stands_for_nobody_has_no_rights(
    server: LiveServer, authority: Authority, name: str | None
) -> None:
    address = f"localhost:{server.port()}"
    with connect_flymq(address, settings=with_certificate(authority, name)) as client:
        assert not client.who_am_i().logged_in
        with pytest.raises(NotAuthorized):
            client.produce("t", b"v")


def test_what_a_user_may_is_looked_up_with_each_request(
    server: LiveServer, authority: Authority
) -> None:
    accounts = server.server.broker.accounts
    address = f"localhost:{server.port()}"
    settings = with_certificate(authority, "bo")
    with connect_flymq(address, settings=settings) as bo:
        assert bo.fetch("t", 0, 0).next_offset > 0
        accounts.update_user(ROOT, "bo", ["writer"], None)
        bo.produce("t", b"v")
        accounts.update_user(ROOT, "bo", ["reader"], False)
        with pytest.raises(NotAuthorized, match="disabled"):
            bo.fetch("t", 0, 0)
        with connect_flymq(address, settings=settings) as later:
            assert not later.who_am_i().logged_in
        accounts.update_user(ROOT, "bo", ["reader"], True)
        assert bo.fetch("t", 0, 0).next_offset > 0


def test_one_that_stands_for_nobody_is_logged_once(
    server: LiveServer, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    server.server.hub.peer_log._last.clear()
    address = f"localhost:{server.port()}"
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with connect_flymq(address, settings=with_certificate(authority, "nobody")) as client:
                client.who_am_i()
    lines = [one.message for one in caplog.records if "stands for no user" in one.message]
    assert len(lines) == 1 and "its certificate (CN=nobody) stands for no user" in lines[0]


@pytest.mark.parametrize(
    "options", [(), ("--protocol", "flymq"), ("--protocol", "rustlog"), ("-H", "a=b")]
)
def test_the_command_line(
    server: LiveServer,
    authority: Authority,
    https: int,
    options: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """With --cert and without a key, over every protocol and over https."""
    for name in ("PENSTOCK_KEY", "PENSTOCK_HTTP", "PENSTOCK_SERVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    where = (
        "--server",
        f"localhost:{server.port()}",
        "--http",
        f"https://localhost:{https}",
        "--ca",
        authority.ca,
    )
    own = ("--cert", path_of(authority, "al"))
    broker = server.server.broker
    server.call(lambda: broker.ensure_topic("from-the-command-line", broker.access.anonymous))
    publish = ("pub", "from-the-command-line", "hello", *options, *where)
    assert cli.main([*publish, *own]) == 0, capfd.readouterr().err
    assert cli.main(["cat", "from-the-command-line", "-n", "1", *where, *own]) == 0
    assert capfd.readouterr().out == "hello\n"
    assert cli.main([*publish, "--cert", path_of(authority, "nobody")]) != 0
    assert cli.main([*publish, "--cert", authority.ca]) == 1
    assert f"--cert {authority.ca}: " in capfd.readouterr().err


# --- HTTP -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def https(server: LiveServer) -> Iterator[int]:
    """The server's own HTTP with TLS, which it has by itself beyond loopback only."""
    bound = socket.create_server(("127.0.0.1", 0))

    async def begin() -> HttpListener:
        front = server.server.certificates.front
        listener = HttpListener(server.server.http, [bound], front)
        await listener.start()
        return listener

    listener = server.run(begin())
    yield bound.getsockname()[1]
    server.run(listener.stop())
    bound.close()


def whoami(port: int, context: ssl.SSLContext, headers: dict[str, str]) -> tuple[int, bytes]:
    connection = http.client.HTTPSConnection("localhost", port, timeout=HANG_S, context=context)
    try:
        connection.request("GET", "/api/v1/whoami", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_https(https: int, authority: Authority, version: ssl.TLSVersion) -> None:
    al = authority.client(path_of(authority, "al"), version)
    status, body = whoami(https, al, {})
    assert status == 200 and b'"name":"al","kind":"user"' in body
    # A login counts before the certificate, a wrong one too.
    assert whoami(https, al, {"Authorization": "Bearer wrong"})[0] == 401
    nobody = authority.client(path_of(authority, "nobody"), version)
    assert whoami(https, nobody, {})[0] == 401
    assert whoami(https, authority.client(version=version), {})[0] == 401


def test_a_resumed_session_brings_no_user(https: int, authority: Authority) -> None:
    """Its certificate was checked before, perhaps by another list of revoked ones."""
    context = authority.client(path_of(authority, "al"), ssl.TLSVersion.TLSv1_2)
    session: Any = None
    found = []
    for _ in range(2):
        plain = socket.create_connection(("127.0.0.1", https), timeout=HANG_S)
        with context.wrap_socket(plain, server_hostname="localhost", session=session) as peer:
            session = peer.session
            peer.sendall(b"GET /api/v1/whoami HTTP/1.1\r\nHost: localhost\r\n\r\n")
            found.append((peer.session_reused, peer.recv(12)))
    assert found[0] == (False, b"HTTP/1.1 200")
    assert found[1] in [(True, b"HTTP/1.1 401"), (False, b"HTTP/1.1 200")]


# --- refusals and reloading -----------------------------------------------------------------------


def tries(server: LiveServer, settings: ClientSettings) -> bool:
    """Whether a client gets through the handshake."""
    try:
        with connect_flymq(f"localhost:{server.port()}", settings=settings) as client:
            client.who_am_i()
    except ClientError:
        return False
    return True


def test_refused_in_the_handshake(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """No certificate, one of another authority, one that is revoked: one bounded line."""
    other = Authority(tmp_path / "other", "Other CA")
    own = Authority(tmp_path / "own")
    own.server()
    own.issue("al")
    own.issue("bo")
    revoked = own.revoke("bo")
    prepared(tmp_path / "data")
    settings = settings_of(own, tls__client_crl=revoked)
    with LiveServer(tmp_path / "data", settings) as server:
        assert tries(server, with_certificate(own, "al"))
        foreign = own.client()
        foreign.load_cert_chain(other.issue("al"))
        for version in VERSIONS:
            shown = own.client(path_of(own, "bo"), version)
            for context in (foreign, shown, own.client(version=version)):
                assert not tries(server, ClientSettings(HANG_S, 0, tls=context))
        with caplog.at_level(logging.WARNING):
            caplog.clear()
            server.server.hub.peer_log._last.clear()
            for _ in range(2):
                assert not tries(server, with_certificate(own, "bo"))
            # A client of TLS 1.3 is done before the server has refused it.
            closed = server.server.hub.counters.closed
            until(lambda: closed["tls"] >= 8, "eight connections that TLS refused")
        lines = [one.message for one in caplog.records if "TLS failed" in one.message]
        assert len(lines) == 1
        assert "the client's certificate is refused: certificate revoked" in lines[0]
        # Without TLS nobody comes in: a certificate is required.
        assert not tries(server, ClientSettings(HANG_S, 0))


def test_the_authority_is_read_again(tmp_path: Path, authority: Authority) -> None:
    """SIGHUP: who was trusted is no longer, who was not is; open connections stay, HTTP follows too."""
    old, new = Authority(tmp_path / "old", "Old"), Authority(tmp_path / "new", "New")
    for one in (old, new):
        one.server()
        one.issue("al")
    prepared(tmp_path / "data")
    files = {name: tmp_path / name for name in ("server.pem", "ca.pem")}

    def put(one: Authority) -> None:
        files["server.pem"].write_bytes(Path(path_of(one, "localhost")).read_bytes())
        files["ca.pem"].write_bytes(Path(one.ca).read_bytes())

    put(old)
    settings = {
        **settings_of(old),
        "tls.certificate": str(files["server.pem"]),
        "tls.key": str(files["server.pem"]),
        "tls.client_ca": str(files["ca.pem"]),
    }
    with LiveServer(tmp_path / "data", settings) as server:
        bound = socket.create_server(("127.0.0.1", 0))

        async def begin() -> HttpListener:
            listener = HttpListener(server.server.http, [bound], server.server.certificates.front)
            await listener.start()
            return listener

        listener = server.run(begin())
        port = bound.getsockname()[1]
        old_context = old.client(path_of(old, "al"))
        new_context = new.client(path_of(new, "al"))
        assert whoami(port, old_context, {})[0] == 200
        with connect_flymq(
            f"localhost:{server.port()}", settings=with_certificate(old, "al")
        ) as al:
            put(new)
            flags = {
                **free_listeners(settings),
                **settings,
                "server.data_directory": str(tmp_path / "data"),
            }

            async def again() -> None:
                await reload(server.server, lambda: load_config(None, {}, flags))

            server.run(again())
            assert al.who_am_i().user == "al", "open connections go on"
        assert not tries(server, with_certificate(old, "al"))
        assert tries(server, with_certificate(new, "al"))
        assert whoami(port, new_context, {})[0] == 200
        mixed = new.client()
        mixed.load_cert_chain(path_of(old, "al"))
        with pytest.raises((ssl.SSLError, OSError, http.client.HTTPException)):
            whoami(port, mixed, {})
        server.run(listener.stop())
        bound.close()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"tls.client_ca": "", "tls.client_user": "cn"}, "no client is asked for a certificate"),
        ({"tls.client_auth": "none", "tls.client_user": "cn"}, "see tls.client_auth"),
        ({"tls.client_users": "nothing"}, 'write "name in the certificate -> user"'),
        ({"tls.client_auth": "maybe"}, 'one of "none", "optional", "required"'),
        ({"tls.client_ca": "", "tls.client_crl": "x", "tls.client_user": "off"}, "tls.client_crl"),
    ],
)
def test_settings_that_do_not_fit(authority: Authority, more: dict[str, str], words: str) -> None:
    from penstock.errors import PenstockError

    with pytest.raises(PenstockError, match=words):
        load_config(None, {}, {**settings_of(authority), **more})


def test_the_table_in_the_configuration(tmp_path: Path, authority: Authority) -> None:
    prepared(tmp_path)
    more = {"tls__client_users": "CN=nobody -> al", "tls__client_user": "off"}
    with LiveServer(tmp_path, settings_of(authority, **more)) as server:
        address = f"localhost:{server.port()}"
        with connect_flymq(address, settings=with_certificate(authority, "nobody")) as client:
            assert client.who_am_i().user == "al"
        with connect_flymq(address, settings=with_certificate(authority, "al")) as client:
            assert not client.who_am_i().logged_in
