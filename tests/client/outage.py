"""A server that goes away for a while and comes back, for consumers that have to outlive it."""

import asyncio

from client.peer import Peer, Script

# What a client waits for an answer, and how long the server is away: longer than any request lasts.
TIMEOUT_S = 1.0
AWAY_S = 1.2 * TIMEOUT_S


class LeavingPeer(Peer):
    """With `leave` all connections end and nobody listens, until AWAY_S have passed."""

    def __init__(self, *scripts: Script) -> None:
        super().__init__(*scripts)
        self._return: asyncio.Task[None] | None = None

    def leave(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        loop = asyncio.get_running_loop()
        loop.call_later(AWAY_S, self._come_back)

    def _come_back(self) -> None:
        self._return = asyncio.ensure_future(self._listen())

    async def _listen(self) -> None:
        host, _, port = self.address.partition(":")
        self._server = await asyncio.start_server(self._serve, host, int(port))
