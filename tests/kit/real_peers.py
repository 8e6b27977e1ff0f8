"""QUIC clients that are not ours, built from their registries: quinn (Rust) and quic-go.

Sources stand in tests/peers. They are built once, into build/peers, where cargo or go is on the
machine; elsewhere the tests that need them are skipped, and the reason names what is missing.
"""

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path
from typing import Literal

import pytest

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


def real_peer(name: Peer) -> Path:
    """The program; skips the test where it cannot be built."""
    tool = COMMANDS[name][0]
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not on this machine: no {PROGRAMS[name]}")
    BUILT.mkdir(parents=True, exist_ok=True)
    program, mark = BUILT / PROGRAMS[name], BUILT / f"{name}.sources"
    wanted = _digest(SOURCES / name)
    with (BUILT / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists() or not mark.exists() or mark.read_text() != wanted:
            _build(name, program)
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


def _build(name: Peer, program: Path) -> None:
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
        pytest.skip(f"{PROGRAMS[name]} cannot be built here: {last}")
    if name == "quinn":
        shutil.copy2(BUILT / "quinn/release/quinn-peer", program)
