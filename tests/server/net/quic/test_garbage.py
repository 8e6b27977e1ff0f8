"""What comes and goes over QUIC leaves no cycles behind: the server freezes what has lived for long."""

import asyncio
import gc
from functools import partial

import pytest
from server.net.quic.driving import serving
from server.net.quic.echo.session import EchoConnection


@pytest.mark.parametrize("empty_id", [False, True])
def test_connections_and_streams_leave_no_cycles(empty_id: bool) -> None:
    async def test() -> dict[str, int]:
        async with serving() as served:

            async def one() -> None:
                peer = await served.connect(library="aioquic", empty_id=empty_id)
                for command in (b"hello", b"ping\n", b"push 10\n"):
                    stream = await served.ask(peer, command, fin=True)
                    await served.driver.until(partial(peer.finished.__contains__, stream))
                served.driver.remove(peer)
                peer.close()
                engine = served.listener.served[0].engine
                await served.driver.until(lambda: engine.statistics().connections == 0)
                # The protocol of the test keeps its streams.
                EchoConnection.latest.ended.clear()
                del EchoConnection.latest

            await one()
            gc.collect()
            gc.disable()
            gc.set_debug(gc.DEBUG_SAVEALL)
            try:
                await one()
                gc.collect()
                return _ours(gc.garbage)
            finally:
                gc.set_debug(0)
                gc.garbage.clear()
                gc.enable()

    assert asyncio.run(test()) == {}


def _ours(garbage: list[object]) -> dict[str, int]:
    """By type; the peer of the test is a client of a library too, and leaves its own."""
    found: dict[str, int] = {}
    for one in garbage:
        kind = type(one)
        if kind.__module__.startswith("penstock.") or kind.__module__.startswith("qh3."):
            found[kind.__qualname__] = found.get(kind.__qualname__, 0) + 1
    return found
