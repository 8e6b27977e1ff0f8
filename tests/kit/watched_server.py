"""A server process, watched from outside: what it prints, and what it and its Flight process hold."""

import threading
from collections.abc import Mapping
from pathlib import Path

from kit.live_server import WAIT_S, ServerProcess


def pids_of(server: ServerProcess) -> list[int]:
    """The server and its Flight process."""
    own = server.process.pid
    tasks = Path(f"/proc/{own}/task").iterdir()
    return [own, *(int(pid) for task in tasks for pid in (task / "children").read_text().split())]


class Watched:
    """A server process, and what it prints after its banner."""

    def __init__(self, data: Path, settings: Mapping[str, str]) -> None:
        self.server = ServerProcess(data, settings)
        self.printed = ""
        self._reader = threading.Thread(target=self._read)

    def _read(self) -> None:
        assert self.server.process.stdout is not None
        for line in self.server.process.stdout:
            if " INFO " not in line:  # start, stop, topics
                self.printed += line

    def __enter__(self) -> "Watched":
        self.server.__enter__()
        self._reader.start()
        return self

    def __exit__(self, *error: object) -> None:
        status = self.server.stop()
        self._reader.join(WAIT_S)
        self.server.__exit__(None, None, None)
        assert (status, self.printed) == (0, "")

    @property
    def port(self) -> int:
        return self.server.ports["flight"]

    def pids(self) -> list[int]:
        return pids_of(self.server)

    def descriptors(self) -> int:
        return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in self.pids())

    def threads(self) -> int:
        return sum(len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in self.pids())
