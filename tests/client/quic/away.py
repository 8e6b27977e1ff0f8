"""A server that is lost for a client and does not come back."""

import asyncio
import socket

from penstock.client.quic.connection import QuicConnection
from penstock.client.settings import ServerAddress


async def move_away(connection: QuicConnection) -> None:
    """The connection ends, and nothing listens where it looks for the server."""
    line = connection.live
    assert line is not None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        connection.server = ServerAddress("127.0.0.1", free.getsockname()[1])
    await asyncio.sleep(0)
    line.abort("of the test")
