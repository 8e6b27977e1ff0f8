"""The row of the toy protocol, and `penstock` with it: what a line in server/protocols.py would do."""

import sys
from typing import Annotated

from server.toy import wire

from penstock.broker.port import Port
from penstock.server import protocols
from penstock.server.config.kinds import Text
from penstock.server.protocols import ProtocolSection, TcpRow, Terms
from penstock.sessions.stream import Session, Stream


class ToyConfig(ProtocolSection, frozen=True):
    principal: Annotated[Text, "The toy has no login; its connections act as this user."] = (
        "anonymous"
    )

    def acts_as(self) -> str | None:
        return self.principal


def _open(port: Port, stream: Stream, terms: Terms) -> Session:
    from server.toy.session import ToySession

    return ToySession(port, stream, terms)


ROW = TcpRow(
    name="toy",
    title="Toy",
    begins=wire.begins,
    frame_size=wire.frame_size,
    session=_open,
    listeners={"toy": "127.0.0.1:0"},
    section=ToyConfig,
)

# First: its magic byte is also the beginning of a length that RustLog has an answer for.
protocols.PROTOCOLS = (ROW, *protocols.PROTOCOLS)  # type: ignore[misc]  # before anybody has read it

if __name__ == "__main__":
    from penstock.cli.main import main

    sys.exit(main())
