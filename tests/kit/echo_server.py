"""A tiny session that echoes, and real sockets around it: for tests of the connection layer."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from kit.limits import HANG_S
from penstock.server.net.accepting import AcceptedConnection
from penstock.server.net.connection import Connection
from penstock.server.net.hub import ConnectionLimits, Hub
from penstock.sessions.stream import Stream

LOOPS: dict[str, type[asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.SelectorEventLoop,
    "uvloop": uvloop.Loop,
}
# A test that waits longer than this waits for something that will not come.
PATIENCE_S = HANG_S


class EchoSession:
    """Echoes all it gets. A read that is exactly one of these words does something else:

    LOGIN, FAIL, BOOM, CLOSE, PARTS (many small writes), BIG <bytes>, BYE <bytes> (and close),
    HOLD <bytes> (claims to keep that much of an incomplete frame)
    """

    def __init__(self, protocol: str, outlet: Stream) -> None:
        self.protocol = protocol
        self.outlet = outlet
        self.received = b""
        self.failed: list[int] = []
        self.writable_calls = 0
        self.ended = False
        self.gone = False
        self.drained = False
        self.working = False
        self.held = 0

    def receive(self, data: bytes) -> None:
        self.received += data
        word, _, argument = data.partition(b" ")
        if word == b"LOGIN":
            self.outlet.logged_in()
            self.outlet.write(b"OK")
        elif word == b"FAIL":
            self.failed.append(self.outlet.login_failed())
            self.outlet.write(b"NO")
        elif word == b"BOOM":
            raise RuntimeError("a defect")
        elif word == b"CLOSE":
            self.outlet.close()
        elif word == b"PARTS":
            for number in range(100):
                self.outlet.write(b"%02d" % number)
        elif word in (b"BIG", b"BYE"):
            self.outlet.write(bytes(int(argument)))
            if word == b"BYE":
                self.outlet.close()
        elif word == b"HOLD":
            self.held = int(argument)
            self.outlet.write(b"OK")
        else:
            self.outlet.write(data)

    def held_bytes(self) -> int:
        return self.held

    def end_of_input(self) -> None:
        self.ended = True
        self.outlet.write(b"BYE")
        self.outlet.close()

    def writable(self) -> None:
        self.writable_calls += 1

    def closed(self) -> None:
        self.gone = True

    def drain(self) -> None:
        self.drained = True

    def busy(self) -> bool:
        return self.working and not self.gone


@dataclass
class Echo:
    """A running server of echo sessions."""

    hub: Hub
    port: int
    sessions: list[EchoSession] = field(default_factory=list)

    async def connect(
        self, tls: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=tls, server_hostname="localhost" if tls else None
        )

    async def until(self, condition: Callable[[], object]) -> None:
        """Turns the loop until the condition holds."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await next_turn()


async def next_turn() -> None:
    """A real turn of the loop, through its selector, without taking all of the processor."""
    done = asyncio.Event()
    asyncio.get_running_loop().call_later(0.001, done.set)
    await done.wait()


@asynccontextmanager
async def echo_server(
    limits: ConnectionLimits | None = None,
    *,
    protocol: str | None = "blipmq",
    tls: ssl.SSLContext | None = None,
    connection: type[Connection] = Connection,
) -> AsyncIterator[Echo]:
    loop = asyncio.get_running_loop()
    sessions: list[EchoSession] = []

    def make(name: str) -> Callable[[Stream], EchoSession]:
        def session(outlet: Stream) -> EchoSession:
            sessions.append(EchoSession(name, outlet))
            return sessions[-1]

        return session

    names = ("blipmq", "rustlog")
    hub = Hub(loop, limits or ConnectionLimits(), {name: make(name) for name in names}, tls)
    server = await loop.create_server(
        lambda: AcceptedConnection(connection(hub, protocol)), "127.0.0.1", 0
    )
    echo = Echo(hub, server.sockets[0].getsockname()[1], sessions)
    try:
        yield echo
    finally:
        server.close()
        for one in list(hub.connections):
            one.abort()
        await echo.until(lambda: not hub.connections)


def run(loop: str, test: Callable[[], Awaitable[None]]) -> None:
    """Runs one test on this kind of loop."""

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await test()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(bounded())


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    try:
        await writer.wait_closed()
    except OSError:
        return


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@dataclass(frozen=True)
class Certificate:
    """PEM files of a self-signed certificate for localhost, which is its own CA."""

    certificate: str
    key: str

    def client(self, own: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.certificate)
        if own:
            context.load_cert_chain(self.certificate, self.key)
        return context


def make_certificate(directory: Path) -> Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    certificate_path = directory / "certificate.pem"
    certificate_path.write_bytes(certificate.public_bytes(pem))
    key_path = directory / "key.pem"
    key_path.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return Certificate(str(certificate_path), str(key_path))
