"""The UDP listeners: bound at the start, an engine for each socket. The event loop drives them in drive.py.
Knows no protocol: the rows come from the assembly.
"""

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from penstock.server.net.address import Address
from penstock.server.net.hub import Hub
from penstock.server.net.listeners import bind_all
from penstock.server.net.quic.applications import chooser, row_for
from penstock.server.net.quic.connection import MakeConnectionSession
from penstock.server.net.quic.drive import QuicSocket
from penstock.server.net.quic.port import Certificate, Engine, EngineSettings
from penstock.server.protocols import QuicRow

MakeEngine = Callable[[socket.socket, EngineSettings], Engine]


class QuicListener:
    """One listener of the configuration. Bound on construction; `address` has the real port."""

    def __init__(self, name: str, wanted: Address, rows: Sequence[QuicRow]) -> None:
        self.name = name
        self.rows = list(rows)
        self.sockets = bind_all(name, wanted, socket.SOCK_DGRAM)
        self.address = Address(wanted.host, self.sockets[0].getsockname()[1])
        self.served: list[QuicSocket] = []

    def listen(
        self,
        hub: Hub,
        make_engine: MakeEngine,
        settings: EngineSettings,
        make_sessions: Mapping[str, MakeConnectionSession],
    ) -> None:
        """From now on connections are accepted."""
        settings = replace(settings, choose=chooser(self.rows))

        def find(application: str | None) -> tuple[str, MakeConnectionSession]:
            name = row_for(self.rows, application).name
            return name, make_sessions[name]

        for bound in self.sockets:
            engine = make_engine(bound, settings)
            one = QuicSocket(hub, engine, str(self.address), find)
            self.served.append(one)
            one.start()

    def use_certificate(self, certificate: Certificate) -> None:
        for one in self.served:
            one.engine.use_certificate(certificate)

    def close(self) -> None:
        """No new connections; open ones stay."""
        for one in self.served:
            one.engine.refuse_new()
        if not self.served:
            for bound in self.sockets:
                bound.close()

    def shut(self) -> None:
        """The end of the sockets."""
        for one in self.served:
            one.stop()
        for bound in self.sockets:
            bound.close()
