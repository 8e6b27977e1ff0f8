"""The row of the toy protocol, and `penstock` with it: what a line in server/protocols.py would do."""

import sys
from dataclasses import dataclass

from server.toy import wire

from penstock.broker.port import Port
from penstock.server import protocols
from penstock.server.config.kinds import text
from penstock.server.protocols import ProtocolRow, Terms
from penstock.sessions.stream import Session, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyConfig:
    principal: str = text("anonymous", "The toy has no login; its connections act as this user.")


def _open(port: Port, stream: Stream, terms: Terms) -> Session:
    from server.toy.session import ToySession

    return ToySession(port, stream, terms)


ROW = ProtocolRow(
    name="toy",
    title="Toy",
    begins=wire.begins,
    frame_size=wire.frame_size,
    session=_open,
    listeners={"toy": "127.0.0.1:0"},
    section=ToyConfig,
    principal=lambda section: str(section.principal),
)

# First: its magic byte is also the beginning of a length that RustLog has an answer for.
protocols.PROTOCOLS = (ROW, *protocols.PROTOCOLS)  # type: ignore[misc]  # before anybody has read it

if __name__ == "__main__":
    from penstock.cli.main import main

    sys.exit(main())
