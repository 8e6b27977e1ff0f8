"""Two rows on QUIC, told apart by ALPN, and `penstock` with them: what lines in server/protocols.py
would do."""

import sys

from server.net.quic.echo.session import EchoConnection

from penstock.server import protocols
from penstock.server.protocols import ProtocolSection, QuicRow


class EchoConfig(ProtocolSection, frozen=True):
    pass


class PlainConfig(ProtocolSection, frozen=True):
    pass


NAMED = QuicRow(
    name="echo",
    title="Echo",
    frame_size=lambda buffer, start, end: 0,
    application="echo",
    connection=EchoConnection,
    listeners={"echo": "127.0.0.1:0"},
    section=EchoConfig,
)
PLAIN = QuicRow(
    name="plain",
    title="Plain",
    frame_size=lambda buffer, start, end: 0,
    application=None,
    connection=EchoConnection,
    listeners={"plain": None},
    section=PlainConfig,
)

if __name__ == "__main__":
    # Before anybody has read it.
    tcp = tuple(row for row in protocols.PROTOCOLS if not isinstance(row, QuicRow))
    protocols.PROTOCOLS = (*tcp, NAMED, PLAIN)  # type: ignore[misc]
    from penstock.cli.main import main

    sys.exit(main())
