"""How the event loop reaches a connection: the protocol object that asyncio asks for.

The connection itself is compiled, and a compiled class cannot inherit from asyncio's. The loop looks its
methods up once, so that they are those of the connection and nothing is called in between.
"""

import asyncio
from typing import Final

from penstock.server.net.connection import Connection

# All that the loop calls.
CALLED: Final = (
    "get_buffer",
    "buffer_updated",
    "eof_received",
    "pause_writing",
    "resume_writing",
    "connection_made",
    "connection_lost",
)


class AcceptedConnection(asyncio.BufferedProtocol):
    """Has the connection's own methods as attributes."""

    __slots__ = CALLED

    def __init__(self, connection: Connection) -> None:
        for name in CALLED:
            setattr(self, name, getattr(connection, name))
