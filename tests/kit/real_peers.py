"""QUIC clients that are not ours (tests/peers), for tests: skipped where they cannot be built, and the
reason names what is missing."""

from pathlib import Path

import pytest
from peers.build import CannotBuild, Peer, build

__all__ = ["Peer", "real_peer"]


def real_peer(name: Peer) -> Path:
    """The program; skips the test where it cannot be built."""
    try:
        return build(name)
    except CannotBuild as error:
        pytest.skip(str(error))
