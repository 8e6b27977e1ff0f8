"""A real Penstock for tests: in a thread of this process, or as a process of its own.

`LiveServer` is quick to start and lets a test look inside; `ServerProcess` can be killed. Both listen on
free ports of the loopback interface and end with the test. `RawPeer` is a plain socket with a timeout.
"""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import penstock
from kit.kafka_pool import EngineFlags
from kit.limits import HANG_S
from kit.listeners import as_flags, free_listeners
from penstock.broker.access.access import Principal
from penstock.log.engine import Pending
from penstock.server.config.loading import load_config
from penstock.server.server import Server

# Anything that takes longer is a defect: the slowest wait of a healthy server is under a second.
WAIT_S = HANG_S

# A child finds the same sources as the test, installed or not.
SOURCES = str(Path(penstock.__file__).parents[1])

T = TypeVar("T")


class LiveServer:
    """The whole server on an event loop in a thread of its own."""

    def __init__(
        self, data: Path, settings: Mapping[str, str] | None = None, config: Path | None = None
    ) -> None:
        """`config`: a file, for what stands in files alone."""
        chosen = settings or {}
        self._engine = EngineFlags(data)
        flags = {
            **free_listeners(chosen),
            "server.data_directory": str(data),
            **self._engine.flags(),
            **chosen,
        }
        path = None if config is None else str(config)
        try:
            self.server = Server(load_config(path, {}, flags), environment={})
        except BaseException:
            self._engine.end()
            raise
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.run(self.server.start())
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.run(self.server.stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(WAIT_S)
            self._loop.close()
            self._engine.end()

    def run(self, coroutine: Coroutine[None, None, T]) -> T:
        """Runs a coroutine on the server's loop and waits for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(WAIT_S)

    def begin(self, coroutine: Coroutine[None, None, T]) -> "Future[T]":
        """Runs a coroutine on the server's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call(self, function: Callable[[], T]) -> T:
        """Runs a function on the server's loop: a look inside without races."""

        async def run() -> T:
            return function()

        return self.run(run())

    def settle(self, begin: Callable[[], Pending[T]]) -> None:
        """Begins a change on the server's loop, and returns when it is made."""

        async def change() -> None:
            made = asyncio.Event()
            begin().on_done(lambda _: made.set())
            await made.wait()

        self.run(change())

    def delete_topic(self, name: str) -> None:
        """Until it is gone."""
        self.settle(lambda: self.server.broker.delete_topic(Principal("test", "admin"), name))

    def port(self, listener: str = "tcp") -> int:
        return self.server.listeners[listener].address.port


MAIN = "import sys; from penstock.cli.main import main; sys.exit(main())"


class ServerProcess:
    """`penstock serve` as a process; the ports are read from its banner. `program` and `variables`: of an
    installed one, instead of these sources. `main`: what runs `penstock`, when it is not as usual, and
    `listeners`: where it listens, when it has others."""

    def __init__(
        self,
        data: Path,
        settings: Mapping[str, str] | None = None,
        *,
        program: str | None = None,
        main: str = MAIN,
        variables: Mapping[str, str] | None = None,
        listeners: Mapping[str, str] | None = None,
    ) -> None:
        chosen = settings or {}
        given = free_listeners(chosen) if listeners is None else listeners
        self._engine = EngineFlags(data)
        place = {"server.data_directory": str(data), **self._engine.flags()}
        flags = {**given, **place, **chosen}
        command = [sys.executable, "-c", main] if program is None else [program]
        self.process = subprocess.Popen(
            [*command, "serve", *as_flags(flags)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": SOURCES} if variables is None else variables,
        )
        self.banner = ""
        self.ports: dict[str, int] = {}

    def __enter__(self) -> Self:
        timer = threading.Timer(WAIT_S, self.process.kill)
        timer.start()
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.banner += line
            found = re.match(r"\s+(\w+)\s+(?:\w+(?:\+tls)?://)?127\.0\.0\.1:(\d+)", line)
            if found:
                self.ports[found[1]] = int(found[2])
            if line.startswith("Read it again"):
                break
        timer.cancel()
        assert self.ports, f"the server did not start:\n{self.banner}"
        return self

    def kill(self) -> None:
        """SIGKILL: no goodbye, no flush."""
        self.process.kill()
        self.process.wait(WAIT_S)

    def stop(self) -> int:
        """SIGTERM; gives the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._engine.end()


class RawPeer:
    """A plain blocking socket: sends bytes, reads exact numbers of bytes or the end."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self, size: int) -> bytes:
        """Exactly `size` bytes; fails at an early end."""
        data = b""
        while len(data) < size:
            chunk = self.socket.recv(size - len(data))
            assert chunk, f"the server closed after {data.hex(' ')}"
            data += chunk
        return data

    def frame(self) -> bytes:
        """One frame with its u32 length: both protocols have it."""
        head = self.receive(4)
        return head + self.receive(int.from_bytes(head, "big"))

    def rest(self) -> bytes:
        """Everything up to the end."""
        data = b""
        while piece := self.socket.recv(65_536):
            data += piece
        return data

    def at_end(self) -> bool:
        """Whether the server closes without sending anything more (a reset counts too)."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True
