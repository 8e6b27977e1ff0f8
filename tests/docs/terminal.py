"""Runs what a document shows, as a reader would: in a terminal of its own, against a running server.

Commands run under a pseudo-terminal, so that they say what they say to a person. The default addresses
of the documents become those of the server. Exported variables last from one command to the next.
"""

import os
import pty
import re
import select
import shlex
import subprocess
import sys
import time
from pathlib import Path

from docs.markdown import Block, Command, commands, matches
from e2e.conftest import RunningServer, start_server
from kit.limits import HANG_S
from kit.listeners import FREE_PORT, OFF, all_listeners, as_flags, as_variables

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Program:
    """One process at a pseudo-terminal."""

    def __init__(self, arguments: list[str], directory: Path, environment: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        self._read = b""
        self.process = subprocess.Popen(
            arguments,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=directory,
            env=environment,
            start_new_session=True,
        )
        os.close(slave)

    @property
    def output(self) -> str:
        text = self._read.decode("utf-8", "replace").replace("\r\n", "\n")
        return _ANSI.sub("", text)

    def wait_for(self, line: str) -> None:
        """Until a line like this was written."""
        deadline_s = time.monotonic() + HANG_S
        while not any(matches((line,), f"{seen}\n") for seen in self.output.splitlines()):
            assert self._more(deadline_s), f"never said {line!r}:\n{self.output}"

    def write(self, keys: bytes) -> None:
        """As if somebody had typed it."""
        os.write(self._master, keys)

    def finish(self) -> int:
        """Until it ends; its exit code."""
        deadline_s = time.monotonic() + HANG_S
        while self._more(deadline_s):
            continue
        os.close(self._master)
        return self.process.wait(HANG_S)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(HANG_S)

    def _more(self, deadline_s: float) -> bool:
        """Reads some output; False at its end."""
        left_s = deadline_s - time.monotonic()
        readable, _, _ = select.select([self._master], [], [], max(left_s, 0.0))
        if not readable:
            self.kill()
            raise AssertionError(f"did not end within {HANG_S:g} s:\n{self.output}")
        try:
            data = os.read(self._master, 65_536)
        except OSError:  # Linux says EIO when the last writer is gone
            return False
        self._read += data
        return bool(data)


class Terminal:
    """The reader of one document: a directory, a server that runs in it, a shell."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "work"
        self._home = directory / "home"
        self._exports = directory / "exports"
        self._server: RunningServer | None = None
        self._last_status = 0
        self._open: list[tuple[Block, Command, Program]] = []
        self.directory.mkdir()
        self._home.mkdir()
        self._install(directory / "bin")

    def _install(self, path: Path) -> None:
        """`penstock` and `python3` of this interpreter, on the path and where README has them."""
        local = self.directory / ".venv" / "bin"
        for place in (path, local):
            place.mkdir(parents=True)
            for name, words in (("penstock", " -m penstock.cli.main"), ("python", "")):
                wrapper = place / name
                wrapper.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{words} "$@"\n')
                wrapper.chmod(0o755)
        self._path = f"{path}:{os.environ.get('PATH', os.defpath)}"

    # ---- the server ----

    def start_server(self, config: str | None = None) -> None:
        """`config`: a file that the document has written; its server has a data directory of its own."""
        if self._server is None:
            data = "penstock" if config is None else config.partition(".")[0]
            self._server = start_server(
                self.directory / f"{data}-data",
                self._home,
                *as_flags({"listeners.flight": FREE_PORT}),
                # A file of a document may ask for certificates of clients, which QUIC cannot do.
                *(
                    as_flags({"listeners.udp": FREE_PORT})
                    if config is None
                    else ("--config", config)
                ),
            )
            with self._exports.open("a") as file:
                for name in ("PENSTOCK_SERVER", "PENSTOCK_HTTP", "PENSTOCK_QUIC"):
                    if name in self._server.environment:
                        file.write(f"export {name}={self._server.environment[name]}\n")

    def stop_server(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            assert server.stop() == 0

    def close(self) -> None:
        for _, _, program in self._open:
            program.kill()
        if self._server is not None:
            self._server.kill()

    @property
    def server(self) -> RunningServer:
        assert self._server is not None, "the document has stopped the server"
        return self._server

    def with_addresses(self, text: str) -> str:
        """The text with the server's addresses instead of the default ones."""
        if self._server is None:
            return text
        text = text.replace("http://127.0.0.1:8080", self._server.http)
        text = text.replace("127.0.0.1:8815", self._server.flight)
        text = text.replace("127.0.0.1:4848", self._server.udp or "127.0.0.1:4848")
        return text.replace("127.0.0.1:9092", self._server.tcp)

    # ---- blocks ----

    def console(self, block: Block) -> None:
        listed = commands(block)
        if "stays open" in block.directives:
            (command,) = listed
            program = self._start(command.line)
            program.wait_for(command.expected[0])
            self._open.append((block, command, program))
            return
        for number, command in enumerate(listed):
            program = self._start(command.line)
            self._last_status = program.finish()
            self._compare(block, command, program)
            asked = [one.line for one in listed[number + 1 : number + 2]] == ["echo $?"]
            if self._last_status != 0:
                assert asked, f"{block.place}: exit code {self._last_status}:\n{program.output}"

    def finish_open(self) -> None:
        """What stayed open has to end by itself now, with all its output."""
        opened, self._open = self._open, []
        for block, command, program in opened:
            try:
                assert program.finish() == 0, block.place
                self._compare(block, command, program)
            finally:
                program.kill()

    def python(self, block: Block, expected: Block | None) -> None:
        script = self.directory / "snippet.py"
        script.write_text(self.with_addresses(block.text))
        program = Program(
            [sys.executable, "-W", "error", script.name], self.directory, self._environment()
        )
        status = program.finish()
        assert status == 0, f"{block.place}: exit code {status}:\n{program.output}"
        wanted = () if expected is None else tuple(expected.text.splitlines())
        assert matches(wanted, program.output), f"{block.place} printed:\n{program.output}"

    def _start(self, line: str) -> Program:
        exports = shlex.quote(str(self._exports))
        script = (
            f"[ -e {exports} ] && . {exports}\n(exit {self._last_status})\n"
            f"{self.with_addresses(line)}\n"
            f"status=$?\nexport -p >{exports}\nexit $status\n"
        )
        return Program(["bash", "-c", script], self.directory, self._environment())

    def _compare(self, block: Block, command: Command, program: Program) -> None:
        expected = tuple(self.with_addresses(line) for line in command.expected)
        assert matches(expected, program.output), (
            f"{block.place}: $ {command.line}\n{program.output}"
        )

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if "PENSTOCK_" not in name}
        pure = {name: os.environ[name] for name in ("PENSTOCK_PURE",) if name in os.environ}
        source = str(Path(__file__).resolve().parents[2] / "src")
        own = {"PYTHONPATH": source, "HOME": str(self._home), "PATH": self._path, "TERM": "dumb"}
        address = {} if self._server is None else self._server.environment
        servers = {name: address[name] for name in address if name.startswith("PENSTOCK_")}
        # A server that a document starts must not meet others on the default ports.
        ports = as_variables(all_listeners(OFF, blipmq=FREE_PORT, http=FREE_PORT))
        del ports["PENSTOCK__LISTENERS__TCP"]
        return {**kept, **pure, **own, "XDG_CONFIG_HOME": str(self._home), **servers, **ports}
