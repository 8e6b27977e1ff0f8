"""The listening sockets: bound all at once at start, listening when the server is ready.

Knows which listener serves what. The event loop accepts and reads.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Final

from penstock.errors import PenstockError
from penstock.server.net.address import Address

# Connections the kernel completes before we accept them; a burst of clients after a restart.
BACKLOG: Final = 1024


class BindFailed(PenstockError):
    """A listener cannot bind its address."""

    listener: str
    address: Address
    reason: str
    hint: str

    line = "cannot listen on {address} (listeners.{listener}): {reason}; {hint}"


class Listener:
    """One listener of the configuration: bound on construction, `address` has the real port."""

    def __init__(self, name: str, wanted: Address) -> None:
        self.name = name
        self.sockets = bind_all(name, wanted)
        self.address = Address(wanted.host, self.sockets[0].getsockname()[1])
        self._servers: list[asyncio.Server] = []

    async def listen(self, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        """From now on connections are accepted."""
        loop = asyncio.get_running_loop()
        for bound in self.sockets:
            try:
                server = await loop.create_server(factory, sock=bound, backlog=BACKLOG)
            except OSError as error:  # another process was quicker between bind and listen
                raise _failure(self.name, self.address, error) from error
            self._servers.append(server)

    def close(self) -> None:
        """No new connections; open ones stay."""
        for server in self._servers:
            server.close()
        for bound in self.sockets:
            bound.close()


def bind_all(
    name: str, wanted: Address, kind: socket.SocketKind = socket.SOCK_STREAM
) -> list[socket.socket]:
    """A socket for each address that the host stands for. Raises BindFailed."""
    bound: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(wanted.host, wanted.port, type=kind, flags=socket.AI_PASSIVE)
        port = wanted.port
        # A name may stand for several addresses; all of them get the same port.
        for family, _, protocol, _, target in dict.fromkeys(found):
            one = socket.socket(family, kind, protocol)
            bound.append(one)
            one.setblocking(False)
            if kind == socket.SOCK_STREAM:  # with UDP it would let two servers share a port
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind((target[0], port, *target[2:]))
            port = one.getsockname()[1]
    except OSError as error:
        for one in bound:
            one.close()
        raise _failure(name, wanted, error) from error
    return bound


def _failure(name: str, address: Address, error: OSError) -> BindFailed:
    hint = f"choose another address with listeners.{name}"
    if isinstance(error, socket.gaierror):
        return BindFailed(name, address, f"no such host ({error.strerror})", hint)
    if isinstance(error, PermissionError):
        return BindFailed(
            name, address, "permission denied", f"ports below 1024 need rights; {hint}"
        )
    reason = os.strerror(error.errno).lower() if error.errno else str(error)
    if "in use" in reason:
        hint = f"stop the other process or {hint}"
    return BindFailed(name, address, reason, hint)
