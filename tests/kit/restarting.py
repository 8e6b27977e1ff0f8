"""A Penstock process for tests that kill it: always on the same port and the same data."""

import os
import select
import signal
import socket
from pathlib import Path
from types import TracebackType
from typing import Self

from kit.live_server import WAIT_S, ServerProcess


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class RestartingServer:
    """With a port for Flight. `kill` and `start` as often as wanted; `freeze` stops all its processes."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self.address = f"127.0.0.1:{free_port()}"
        self.restarts = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        self.process = ServerProcess(self._data, {"listeners.flight": self.address}).__enter__()

    def kill(self) -> None:
        """SIGKILL; its Flight process sees the end of it and follows."""
        flight = self._flight()
        self.process.kill()
        self.process.__exit__(None, None, None)
        _wait_for_end(flight)

    def restart(self) -> None:
        self.restarts += 1
        self.kill()
        self.start()

    def freeze(self) -> None:
        """From now on it takes connections, and answers nothing."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def staged_bytes(self) -> int:
        """What open transactions have in their files."""
        return sum(path.stat().st_size for path in self._data.glob("transactions/*/*.stage"))

    def _flight(self) -> int:
        threads = Path(f"/proc/{self.process.process.pid}/task").iterdir()
        (child,) = [pid for one in threads for pid in (one / "children").read_text().split()]
        return int(child)

    def _signal(self, number: int) -> None:
        for pid in (self._flight(), self.process.process.pid):
            os.kill(pid, number)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.process.poll() is None:
            self.thaw()
            self.kill()


def _wait_for_end(pid: int) -> None:
    """The port is free only then."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ready, _, _ = select.select([handle], [], [], WAIT_S)
        assert ready, "the Flight process outlives its server"
    finally:
        os.close(handle)
