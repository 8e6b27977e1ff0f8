"""An engine on a socket of its own, and what its port has reported. Engines to come stand in ENGINES
too."""

import socket
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from penstock.server.net.quic import port
from penstock.server.net.quic.certificates import self_signed
from penstock.server.net.quic.port import Engine, EngineSettings, Event
from penstock.server.net.quic.python_engine import PythonEngine


class OneAtATime(socket.socket):
    """Gives one datagram to a poll, as a network may: nothing may count on those that come together."""

    _gave = False

    def recvfrom(self, *arguments: Any) -> Any:
        self._gave = not self._gave
        if not self._gave:
            raise BlockingIOError
        return super().recvfrom(*arguments)


def one_at_a_time(bound: socket.socket, settings: EngineSettings) -> Engine:
    return PythonEngine(OneAtATime(fileno=bound.detach()), replace(settings, offload=False))


ENGINES: dict[str, Callable[[socket.socket, EngineSettings], Engine]] = {
    "python": PythonEngine,
    "python, one datagram to a poll": one_at_a_time,
}

CERTIFICATE = self_signed(now_s=1_800_000_000)


class Bench:
    """The user of a port. `echo`: sends back what comes."""

    def __init__(self, make: Callable[..., Engine], **settings: Any) -> None:
        bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        bound.bind(("127.0.0.1", 0))
        bound.setblocking(False)
        self.port = bound.getsockname()[1]
        chosen = EngineSettings(
            choose=lambda offered: offered[0] if offered else None, certificate=CERTIFICATE
        )
        self.engine = make(bound, replace(chosen, **settings))
        self.echo = False
        self.events: list[Event] = []
        self.opened: dict[int, str] = {}
        self.received: defaultdict[tuple[int, int], bytearray] = defaultdict(bytearray)
        self.finished: set[tuple[int, int]] = set()
        self.resets: dict[tuple[int, int], int] = {}
        self.stops: dict[tuple[int, int], int] = {}
        self.closed: dict[int, tuple[int, bytes]] = {}
        self.streams_told = 0

    def fileno(self) -> int:
        return self.engine.fileno()

    def step(self) -> float | None:
        for event in self.engine.poll():
            self.events.append(event)
            self._take(event)
        return self.engine.flush()

    def _take(self, event: Event) -> None:
        kind, connection, stream, data, number = event
        where = connection, stream
        if kind == port.OPENED:
            self.opened[connection] = data.decode()
        elif kind == port.DATA:
            self.received[where] += data
            if number:
                self.finished.add(where)
            if self.echo and not stream & 2:
                self.engine.send_many([(connection, stream, data, bool(number))])
        elif kind == port.RESET:
            self.resets[where] = number
        elif kind == port.STOPPED:
            self.stops[where] = number
        elif kind == port.CLOSED:
            self.closed[connection] = number, data
        elif kind == port.STREAMS:
            self.streams_told += 1

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.shut()
