"""Builds the QUIC peers that are not ours, once: quinn (Rust) and quic-go.

    python tests/peers/build.py quinn      prints where the program is, or on stderr why there is none
    python tests/peers/build.py quic_go

The sources stand beside this file and the programs go to build/peers. cargo or go must be on the machine;
nothing is installed. For tests and benchmarks.
"""

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "tests/peers"
BUILT = ROOT / "build/peers"
# A release build of quinn takes two minutes of one core, and the machine may be busy. For a hang.
BUILD_S = 1800

Peer = Literal["quinn", "quic_go"]
COMMANDS: dict[Peer, list[str]] = {
    "quinn": ["cargo", "build", "--release", "--target-dir", "{built}/quinn"],
    "quic_go": ["go", "build", "-mod=readonly", "-o", "{built}/quic-go-peer", "."],
}
PROGRAMS: dict[Peer, str] = {"quinn": "quinn-peer", "quic_go": "quic-go-peer"}


class CannotBuild(Exception):
    """With the reason in a few words."""


def build(name: Peer) -> Path:
    """The program, built anew where its sources have changed. Raises CannotBuild."""
    tool = COMMANDS[name][0]
    if shutil.which(tool) is None:
        raise CannotBuild(f"{tool} is not on this machine: no {PROGRAMS[name]}")
    BUILT.mkdir(parents=True, exist_ok=True)
    program, mark = BUILT / PROGRAMS[name], BUILT / f"{name}.sources"
    wanted = _digest(SOURCES / name)
    with (BUILT / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists() or not mark.exists() or mark.read_text() != wanted:
            _run(name, program)
            mark.write_text(wanted)
    return program


def _digest(directory: Path) -> str:
    found = hashlib.sha256()
    # Not the lock file, which cargo writes: it names a registry's host, so it is not kept in the project.
    sources = (
        path for path in directory.rglob("*") if path.is_file() and path.name != "Cargo.lock"
    )
    for path in sorted(sources):
        found.update(path.read_bytes())
    return found.hexdigest()


def _run(name: Peer, program: Path) -> None:
    command = [word.format(built=BUILT) for word in COMMANDS[name]]
    done = subprocess.run(
        command,
        cwd=SOURCES / name,
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise CannotBuild(f"{PROGRAMS[name]} cannot be built here: {last}")
    if name == "quinn":
        shutil.copy2(BUILT / "quinn/release/quinn-peer", program)


def main(words: list[str]) -> int:
    if len(words) != 1 or words[0] not in PROGRAMS:
        print(f"build.py: name one of {', '.join(PROGRAMS)}", file=sys.stderr)
        return 2
    try:
        print(build(words[0]))
    except CannotBuild as error:
        print(f"build.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
