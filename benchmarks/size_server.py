"""A server whose event loop is watched: what its longest callback cost, garbage collection included.

    python -m benchmarks.size_server serve --data ...     as `penstock serve`, on asyncio's own loop

uvloop runs callbacks in C, where nobody can look; asyncio's loop runs the same callbacks through one
Python method, which this module replaces. What the callbacks do is the same on both loops. The process
takes commands on its standard input, a line each, and answers with one line of JSON: `worst` tells the
longest callback since the last `reset`.
"""

import asyncio
import ctypes
import gc
import json
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.broker_servers import FREE_PORT, Process, listening

# No callback on the loop is longer than this, garbage collection included.
CALLBACK_MS = 5.0
START_TIME_S = 300.0
STOP_TIME_S = 300.0
LISTENS = re.compile(r"^\s+(tcp|http)\s+\S*127\.0\.0\.1:(\d+)")
# The last line of the banner.
READY = "Read it again"
ANSWER = "size-server "


@dataclass(frozen=True, slots=True)
class Worst:
    """The longest callback, what of it was collection of garbage, and the longest collection in any thread,
    in CPU milliseconds. `faults`: pages that were touched for the first time in that callback. `long`: how
    many of all `callbacks` took more than CALLBACK_MS; what has a cause in our code comes again."""

    callback_ms: float
    callback: str
    collecting_ms: float
    faults: int
    collection_ms: float
    callbacks: int = 0
    long: int = 0


NOTHING = Worst(0.0, "", 0.0, 0, 0.0)


def longest_step_ms(seconds: float) -> float:
    """The most CPU time that one step of an empty loop takes: what interrupts, and the host of a virtual
    machine, charge to a thread that has nothing to do with it. It takes so many seconds of CPU."""
    clock_ns = time.thread_time_ns
    ends_ns = clock_ns() + int(seconds * 1e9)
    longest_ns, last_ns = 0, clock_ns()
    while last_ns < ends_ns:
        now_ns = clock_ns()
        longest_ns = max(longest_ns, now_ns - last_ns)
        last_ns = now_ns
    return longest_ns / 1e6


# --- inside the server ------------------------------------------------------------------------------


class _Meter:
    """Measures every callback of every asyncio loop of this process."""

    def __init__(self) -> None:
        self.worst = NOTHING
        self._collecting: dict[int, int] = {}
        # In the callback that runs now.
        self._collected_ns = 0
        self._callbacks = 0
        self._long = 0

    def install(self) -> None:
        run = asyncio.events.Handle._run

        def measured(handle: asyncio.events.Handle) -> None:
            self._collected_ns = 0
            faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
            began_ns = time.thread_time_ns()
            run(handle)
            took_ns = time.thread_time_ns() - began_ns
            self._callbacks += 1
            self._long += took_ns > CALLBACK_MS * 1e6
            if took_ns > self.worst.callback_ms * 1e6:
                faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - faults
                self.worst = replace(
                    self.worst,
                    callback_ms=took_ns / 1e6,
                    callback=repr(handle),
                    collecting_ms=self._collected_ns / 1e6,
                    faults=faults,
                )

        # The one place that runs callbacks: to replace it is the purpose.
        asyncio.events.Handle._run = measured  # type: ignore[method-assign, assignment]
        gc.callbacks.append(self._collected)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        thread = threading.get_ident()
        if phase == "start":
            self._collecting[thread] = time.thread_time_ns()
        elif thread in self._collecting:
            took_ns = time.thread_time_ns() - self._collecting.pop(thread)
            if thread == threading.main_thread().ident:
                self._collected_ns += took_ns
            longest_ms = max(self.worst.collection_ms, took_ns / 1e6)
            self.worst = replace(self.worst, collection_ms=longest_ms)

    def answer(self) -> None:
        """Obeys the commands on standard input until it ends."""
        for line in sys.stdin:
            if line.strip() == "reset":
                self.worst = NOTHING
                self._callbacks = self._long = 0
            found = replace(self.worst, callbacks=self._callbacks, long=self._long)
            print(f"{ANSWER}{json.dumps(asdict(found))}", flush=True)


PR_SET_PDEATHSIG = 1  # from sys/prctl.h


def main() -> None:
    # Whoever ends the benchmark by force ends its servers too.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    sys.modules["uvloop"] = None  # type: ignore[assignment]  # "not installed": asyncio's own loop
    meter = _Meter()
    meter.install()
    threading.Thread(target=meter.answer, daemon=True).start()
    from penstock.cli.main import main as penstock

    penstock()


# --- in the benchmark -------------------------------------------------------------------------------


class SizedServer:
    """A running server: its ports, its CPU, its longest callback."""

    def __init__(self, data: Path, settings: tuple[str, ...]) -> None:
        command = [sys.executable, "-m", "benchmarks.size_server", "serve", "--data", str(data)]
        command += [*listening(tcp=FREE_PORT, http=FREE_PORT), "--log-level", "warning"]
        for setting in settings:
            command += ["--set", setting]
        began = time.perf_counter()
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._said: list[str] = []
        self._ready = threading.Event()
        self._answers: list[str] = []
        self._answered = threading.Semaphore(0)
        threading.Thread(target=self._listen, daemon=True).start()
        if not self._ready.wait(START_TIME_S) or self._child.poll() is not None:
            self._child.kill()
            sys.exit(f"benchmarks: the server did not start: {''.join(self._said).strip()}")
        self.start_s = time.perf_counter() - began
        found = [match.groups() for match in map(LISTENS.search, self._said) if match]
        self.process = Process(self._child.pid, {name: int(port) for name, port in found})
        self.stop_s = 0.0

    def _listen(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.startswith(ANSWER):
                self._answers.append(line.removeprefix(ANSWER))
                self._answered.release()
            else:
                self._said.append(line)
            if READY in line:
                self._ready.set()
        self._ready.set()

    def _ask(self, command: str) -> Worst:
        assert self._child.stdin is not None
        self._child.stdin.write(command + "\n")
        self._child.stdin.flush()
        if not self._answered.acquire(timeout=STOP_TIME_S):
            sys.exit(f"benchmarks: the server does not answer {command}")
        fields: dict[str, Any] = json.loads(self._answers.pop(0))
        return Worst(**fields)

    def reset(self) -> None:
        self._ask("reset")

    def worst(self) -> Worst:
        return self._ask("worst")

    def cpu_ms_per_s(self, seconds: float) -> float:
        """CPU of the whole process while nobody asks for anything."""
        before, _ = self.process.schedule()
        time.sleep(seconds)
        return (self.process.schedule()[0] - before) * 1000 / seconds

    def stop(self) -> None:
        """A clean stop; the second call does nothing."""
        if self._child.poll() is not None:
            return
        began = time.perf_counter()
        self._child.send_signal(signal.SIGTERM)
        try:
            self._child.wait(STOP_TIME_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self.stop_s = time.perf_counter() - began


@contextmanager
def sized_server(data: Path, *settings: str) -> Iterator[SizedServer]:
    server = SizedServer(data, settings)
    try:
        yield server
    finally:
        server.stop()


if __name__ == "__main__":
    main()
