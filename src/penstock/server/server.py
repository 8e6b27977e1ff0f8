"""The server as a whole: start, readiness, drain, stop.

    server = Server(loaded)
    await server.start()        # everything listens, or one clear error
    await server.stop()         # drains, flushes, closes; `run` does all three around a signal

Order of a stop: readiness off, no new connections, open work finishes within the drain time, HTTP
ends, the log is flushed and closed.
"""

import asyncio
import logging
import os
import signal
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Final

from penstock import __version__
from penstock.broker.access.access import Access, Principal
from penstock.broker.access.accounts import Accounts
from penstock.broker.audit import events
from penstock.broker.audit.offline import record_notes
from penstock.broker.broker import Broker
from penstock.errors import PenstockError
from penstock.log.engine import Engine, Keys, Pending
from penstock.server.assembly import (
    build_access,
    build_broker,
    build_hub,
    certificate_users,
    engine_settings,
    flight_settings,
    open_engine,
    outside_routes,
    quic_sessions,
    topic_defaults,
)
from penstock.server.audit_file import AuditFile
from penstock.server.banner import (
    Facts,
    command_here,
    key_state,
    reachable,
    render,
    why_there,
    writing_without_login,
)
from penstock.server.config.checks import check_exposure, listening, quic_listeners
from penstock.server.config.encryption import read_keys
from penstock.server.config.loading import LoadedConfig
from penstock.server.config.schema import SECOND_US, UDP
from penstock.server.config.users import UserConfig
from penstock.server.configured_users import CONFIGURATION, make_users
from penstock.server.flight.calls import FlightCalls
from penstock.server.flight.host import FlightHost
from penstock.server.flight.link import FlightKeys
from penstock.server.http.api import Api
from penstock.server.http.app import HttpApp
from penstock.server.http.listener import HttpListener
from penstock.server.memory import settle_allocator, settle_collector
from penstock.server.metrics import LoopLag, Metrics, Observations
from penstock.server.net.accepting import AcceptedConnection
from penstock.server.net.address import Address
from penstock.server.net.client_certificates import identity_of
from penstock.server.net.connection import Connection
from penstock.server.net.hub import Hub
from penstock.server.net.listeners import Listener
from penstock.server.net.outbox import Outbox
from penstock.server.net.peer_log import PeerLog
from penstock.server.net.quic.host import QuicHost
from penstock.server.net.quic.listener import QuicListener
from penstock.server.notify import notify
from penstock.server.pipeline_host import PipelineChild, PipelineHost
from penstock.server.protocols import quic_rows, tcp_rows
from penstock.server.reload import Certificates, reload
from penstock.server.signals import watch_stop_signals

# How often a draining server checks whether open work is done.
DRAIN_POLL_S: Final = 0.02
# Of the drain time, for the update of the pipeline that is running.
PIPELINE_SHARE: Final = 0.7
# Peers see the server's close and close their side; those that do not are cut off.
GOODBYE_TIME_S: Final = 0.3
# Listeners whose connections speak one protocol, and which; all others look at the first bytes.
ONE_PROTOCOL: Final = {name: row.name for row in tcp_rows() for name in row.listeners}
# Listeners that other modules serve. Flight's sockets only reserve its port while its process is away.
NOT_OURS: Final = frozenset({"http", "flight"})

logger = logging.getLogger(__name__)


class Exposed(PenstockError):
    """The server could be reached from outside without keys and TLS."""

    reason: str

    line = "refusing to start: {reason}"


class NothingStored(PenstockError):
    """The server could not store everything before its end: this sets the exit code."""

    directory: str
    reason: str

    line = "{directory}: {reason} while the server ran; what it held is lost"


class Server:
    """Lives on one event loop. `hub`, `broker` and `engine` are there after `start`."""

    hub: Hub
    broker: Broker
    engine: Engine
    # Of encryption, as they were read last.
    keys: Keys

    def __init__(
        self,
        loaded: LoadedConfig,
        *,
        environment: Mapping[str, str] = os.environ,
        say: Callable[[str], None] = lambda text: None,
        load_again: Callable[[], LoadedConfig] | None = None,
        pipeline: PipelineChild | None = None,
    ) -> None:
        self.loaded = loaded
        self.config = loaded.config
        self.listeners: dict[str, Listener | QuicListener] = {}
        self.observations = Observations()
        self.metrics = Metrics(self.observations)
        self.peer_log = PeerLog(time.monotonic)
        self.http = HttpApp(
            self.metrics,
            names=self.http_names(),
            peer_log=self.peer_log,
            on_failed_login=self._login_failed,
        )
        self._closing: list[Callable[[], Awaitable[None] | None]] = [self.http.pages.close]
        self.environment = environment
        self._say = say
        self.flight: FlightHost | None = None
        self.pipeline: PipelineHost | None = None
        self._pipeline_child = pipeline
        self.quic = QuicHost(self.quic_certificate(), self.config.server.data_directory)
        self.audit_file: AuditFile | None = None
        self._http_listener: HttpListener | None = None
        self._lag: LoopLag | None = None
        self._load_again = load_again
        self._reloading = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def _hang_up(self) -> None:
        if self.http.state != "ready":
            logger.warning("SIGHUP: the server is %s, nothing is changed", self.http.state)
            return
        self._start_task(self.reload())

    def _start_task(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def reload(self) -> None:
        """Configuration and certificates once more; see reload.py."""
        async with self._reloading:
            if self._load_again is not None:
                await reload(self, self._load_again)

    def _login_failed(self, address: str, peer: str) -> None:
        self.hub.note_failed_login(address, peer)

    async def run(self) -> None:
        """Until SIGTERM or SIGINT. A later one ends the process at once (signals.py). SIGHUP reads the
        configuration again."""
        stop = asyncio.Event()
        watch_stop_signals(stop)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._hang_up)
        try:
            settle_collector()
            await self.start()
            await stop.wait()
            logger.info("stopping")
        finally:
            await self.stop()
        logger.info("stopped")
        if self.engine.lost is not None:
            raise NothingStored(self.config.server.data_directory, self.engine.lost)

    # --- start -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Raises PenstockError or OSError; what was opened by then is closed by `stop`."""
        settle_allocator()
        loop = asyncio.get_running_loop()
        self._lag = LoopLag(loop, self.observations.loop_lag_seconds)
        self.certificates = Certificates(self.config.tls)
        self.certificate_users = certificate_users(self.config)
        self.routes = outside_routes(self.config, self.environment)
        self._closing.append(self.routes.close)
        self.metrics.routes = self.routes
        self._bind()
        # Probes are answered while the log is recovered, unless keys in it decide who may listen.
        if check_exposure(self.config) is None:
            await self._start_http()
        outbox = Outbox(loop)
        self.keys = await asyncio.to_thread(read_keys, self.config.encryption, self.environment)
        self.engine = await asyncio.to_thread(
            open_engine, self.config, loop, outbox, self.observations.flush, self.keys
        )
        # In a thread: those that the engine waits for may wait for a completion on this loop.
        self._closing.append(lambda: asyncio.to_thread(self.engine.close))
        made = await asyncio.to_thread(self._make_users)
        self._assemble(loop, outbox)
        await self.use_audit_file()
        record_notes(self.engine.metadata, self.broker.audit)
        for user in made:
            details = {"roles": ", ".join(user.roles), "by": "configuration"}
            self.broker.audit.changed(CONFIGURATION, events.USER_CREATED, user.name, details)
        await asyncio.to_thread(self.broker.schemas.prepare)
        if self._http_listener is None:
            await self._start_http()
        await self._start_flight()
        for name, listener in self.listeners.items():
            if name not in NOT_OURS and isinstance(listener, Listener):
                await listener.listen(self._factory(name))
        if self.quic.listeners:
            sessions = quic_sessions(self.config, self.broker, self.routes.by_name)
            await self.quic.start(self.hub, engine_settings(self.config), sessions)
            self.metrics.quic = self.quic
        await asyncio.to_thread(self.engine.announce, self._advertised(), self._flight_address())
        self.http.state = "ready"
        notify(self.environment, "READY=1")
        self._start_pipeline()
        if not sys.stderr.isatty():  # on a terminal the banner says it
            where = ", ".join(f"{name} {one.address}" for name, one in self.listeners.items())
            data = os.path.abspath(self.config.server.data_directory)
            logger.info("started: Penstock %s, %s, data in %s", __version__, where, data)
        self._say(self._banner())

    def _bind(self) -> None:
        on_udp = quic_listeners()
        for name, address in listening(self.config).items():
            if name in on_udp:
                rows = [row for row in quic_rows() if name == UDP or name in row.listeners]
                listener = QuicListener(name, address, rows)
                self.quic.listeners.append(listener)
                self.listeners[name] = listener
            else:
                self.listeners[name] = Listener(name, address)
        if self.config.tls.requires_clients and on_udp:
            logger.warning(
                "listeners.%s off: tls.client_ca asks for client certificates, and QUIC cannot yet",
                ", listeners.".join(on_udp),
            )

    def quic_certificate(self) -> tuple[str, str] | None:
        """The files of the configured certificate, which QUIC uses too."""
        tls = self.config.tls
        return None if tls.certificate is None or tls.key is None else (tls.certificate, tls.key)

    def _make_users(self) -> list[UserConfig]:
        """Before anybody is asked whether there are users: with the first one dev-key goes."""
        if not self.config.users:
            return []
        nobody = Principal("anonymous", "nobody")
        access = Access(
            self.engine.metadata, self.config.keys, development_key=False, anonymous=nobody
        )
        limits = self.config.limits
        accounts = Accounts(access, lambda: limits.users, lambda: limits.topic_rules)
        return make_users(self.config, accounts, self.environment)

    async def use_audit_file(self) -> None:
        """Opens the file of the audit trail that is configured; the same one is opened anew, because
        something may have renamed it. Raises OSError."""
        chosen, before = self.config.audit, self.audit_file
        path = chosen.file if chosen.enabled else None
        opened = None
        if path is not None:
            settings = path, chosen.file_bytes, chosen.file_count
            if before is not None and before.settings == settings:
                before.reopen()
                return
            opened = await asyncio.to_thread(AuditFile, *settings)
        self.audit_file = self.metrics.audit_file = opened
        self.broker.audit.copy = None if opened is None else opened.write
        if before is not None:
            await asyncio.to_thread(before.close)

    async def _close_audit_file(self) -> None:
        if self.audit_file is not None:
            await asyncio.to_thread(self.audit_file.close)

    def _assemble(self, loop: asyncio.AbstractEventLoop, outbox: Outbox) -> None:
        access = build_access(self.config, self.engine, loop)
        self._closing.append(access.close)
        reason = check_exposure(self.config, stored_keys=access.has_stored_logins)
        if reason is not None:
            raise Exposed(reason)
        self.broker = build_broker(self.config, self.engine, access, loop)
        self._closing.append(self._close_audit_file)
        self._closing.append(self.broker.close)
        context = self.certificates.context
        self.hub = build_hub(self.config, self.broker, loop, context, outbox, self.certified)
        self.metrics.engine = self.engine
        self.metrics.broker = self.broker
        self.broker.render_metrics = self._render_metrics
        self.metrics.hub = self.hub
        self.http.broken = lambda: self.engine.lost or self.engine.cluster().trouble or None
        self.http.certified = self.certified
        self.http.api = Api(self.broker, topic_defaults(self.config), self._advertised())

    def _advertised(self) -> str:
        """Where clients reach the wire protocols; empty where that depends on who asks."""
        if self.config.server.advertise is not None:
            return str(self.config.server.advertise)
        listener = self.listeners.get("tcp")
        if listener is None or listener.address.host in ("0.0.0.0", "::"):
            return ""
        return str(listener.address)

    def _flight_address(self) -> str:
        """Where clients reach Flight, told to those of other gateways: on the host of server.advertise,
        else where it listens. Empty where that is every interface: no client could use it."""
        listener = self.listeners.get("flight")
        if listener is None:
            return ""
        if self.config.server.advertise is not None:
            return str(Address(self.config.server.advertise.host, listener.address.port))
        return "" if listener.address.host in ("0.0.0.0", "::") else str(listener.address)

    def _render_metrics(self) -> Pending[str]:
        token: Pending[str] = Pending()

        async def render() -> None:
            try:
                token.settle((await self.metrics.summary()).decode(), None)
            except Exception as error:  # the token must complete for its callbacks
                token.settle(None, error)

        self._start_task(render())
        return token

    def certified(self, certificate: bytes, peer: str) -> Principal | None:
        """The principal that a peer's certificate stands for; None: nobody, which is logged."""
        users = self.certificate_users
        found = users.principal(self.broker.access, certificate)
        if found is None and users.is_on:
            identity = identity_of(certificate)
            shown = (
                "cannot be read" if identity is None else f"({identity.shown}) stands for no user"
            )
            self.hub.peer_log.note(peer.rpartition(":")[0], peer, f"its certificate {shown}")
        return found

    def _factory(self, listener: str) -> Callable[[], AcceptedConnection]:
        protocol = ONE_PROTOCOL.get(listener)
        tls_only = self._tls_only(self.listeners[listener].address)
        return lambda: AcceptedConnection(Connection(self.hub, protocol, tls_only=tls_only))

    def _tls_only(self, address: Address) -> bool:
        """With TLS configured, no peer outside this machine sends keys in clear; with a client CA
        configured, no peer connects without a certificate."""
        if self.certificates.context is None:
            return False
        insecure = self.config.server.insecure
        return self.config.tls.requires_clients or not (address.is_loopback or insecure)

    async def _start_http(self) -> None:
        listener = self.listeners.get("http")
        if listener is not None:
            self._http_listener = HttpListener(self.http, listener.sockets, self._http_tls())
            await self._http_listener.start()

    async def _start_flight(self) -> None:
        listener = self.listeners.get("flight")
        if listener is None:
            return
        calls = FlightCalls(self.broker, self.engine, self.hub.note_failed_login)
        self._closing.append(calls.close)
        settings = flight_settings(self.config, listener.address, self.engine.run_base_us)
        self.flight = FlightHost(calls, settings, FlightKeys.of(self.keys))
        self.metrics.flight = self.flight
        await self.flight.start()

    def _start_pipeline(self) -> None:
        listener = self.listeners.get("flight")
        if self._pipeline_child is None:
            return
        if listener is None:
            logger.error("no pipeline: it reads over Flight, and listeners.flight is off")
            return
        address = reachable(listener.address)
        self.pipeline = PipelineHost(self._pipeline_child.command(address))
        self.pipeline.start()

    def http_names(self) -> tuple[str, ...]:
        """Allowed values of `Host` besides loopback names and the local address of the connection."""
        hosts, address = self.config.http.hosts, self.config.listeners.http
        return hosts if address is None else (*hosts, address.host)

    def _http_tls(self) -> ssl.SSLContext | None:
        """Keys go over HTTP: in clear only within this machine, where probes and scrapers are."""
        address = self.config.listeners.http
        return None if address is None or address.is_loopback else self.certificates.front

    def _banner(self) -> str:
        source = self.loaded.sources["server.data_directory"]
        encrypted = {name for name, one in self.listeners.items() if self._tls_only(one.address)}
        # HTTP keeps to the address alone, and Flight speaks one or the other.
        encrypted -= NOT_OURS
        encrypted |= {"http"} if self._http_tls() is not None else set()
        encrypted |= {"flight"} if self.certificates.context is not None else set()
        return render(
            Facts(
                listening=[(name, one.address) for name, one in self.listeners.items()],
                data_directory=self.config.server.data_directory,
                data_source=why_there(source.kind, str(source)),
                keys=key_state(self.broker.access),
                without_login=writing_without_login(self.broker, self.config.protocols),
                tls=self.certificates.context is not None,
                tls_only=encrypted,
                client_certificates=self.config.tls.requires_clients,
                insecure=self.config.server.insecure,
                command=command_here(),
                quic_engine=self.quic.engine_name,
                quic_trust=self.quic.trusted_by(),
                tables=None if self.pipeline is None else self._tables(),
            )
        )

    def _tables(self) -> str:
        assert self._pipeline_child is not None
        return self._pipeline_child.tables

    # --- stop ------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stops the server from any state. A second call does nothing."""
        notify(self.environment, "STOPPING=1")
        self.http.state = "draining"
        drain_s = self.config.server.drain_time_us / SECOND_US
        deadline = asyncio.get_running_loop().time() + drain_s
        if self.pipeline is not None:
            # Before anything else: its update ends with the broker still there.
            await self.pipeline.stop(drain_s * PIPELINE_SHARE)
            self.pipeline = None
        for name, listener in self.listeners.items():
            if name != "http":
                listener.close()
        if hasattr(self, "hub"):
            await asyncio.gather(self._drain(deadline), self._stop_flight(deadline))
        self.quic.stop()
        if self._http_listener is not None:
            await self._http_listener.stop()
            self._http_listener = None
        if "http" in self.listeners:
            self.listeners["http"].close()
        if self._lag is not None:
            self._lag.stop()
        while self._closing:
            closing = self._closing.pop()()
            if closing is not None:
                await closing

    async def _stop_flight(self, deadline: float) -> None:
        if self.flight is not None:
            await self.flight.stop(max(0.0, deadline - asyncio.get_running_loop().time()))

    async def _drain(self, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        self.broker.stopping = True
        for connection in list(self.hub.connections):
            connection.drain()
        while loop.time() < deadline:
            for connection in list(self.hub.connections):
                if not connection.busy():
                    connection.close()
            if all(connection.finished() for connection in self.hub.connections):
                break
            await asyncio.sleep(DRAIN_POLL_S)
        late = sum(not connection.finished() for connection in self.hub.connections)
        if late:
            self.hub.counters.closed["drain_time"] += late
            logger.warning("%d connections not done within server.drain_time, cut off", late)
        await self._wait_until_gone(min(loop.time() + GOODBYE_TIME_S, deadline))
        for connection in list(self.hub.connections):
            connection.abort()
        await self._wait_until_gone(loop.time() + GOODBYE_TIME_S)

    async def _wait_until_gone(self, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        while self.hub.connections and loop.time() < deadline:
            await asyncio.sleep(DRAIN_POLL_S)
