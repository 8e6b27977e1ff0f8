"""Keys of encryption for tests, and a look for plaintext in a directory."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from penstock.log.embedded import EngineOptions
from penstock.log.engine import Keys

KEYS = {number: bytes([number]) * 32 for number in range(1, 5)}
# In no file of an encrypted topic.
SECRET = b"the-secret-of-this-test"


def keys(*ids: int, current: int | None = None) -> Keys:
    """These keys; the last one is the current one where none is named."""
    chosen = current if current is not None else (ids[-1] if ids else 0)
    return Keys({number: KEYS[number] for number in ids}, chosen)


def with_keys(*ids: int, current: int | None = None) -> EngineOptions:
    return EngineOptions(keys=keys(*ids, current=current))


def files_with(directory: str, content: bytes = SECRET) -> list[str]:
    """Paths of all files below that hold these bytes."""
    found = []
    for path in Path(directory).rglob("*"):
        with suppress(FileNotFoundError):  # a running server has files that come and go
            if path.is_file() and content in path.read_bytes():
                found.append(str(path))
    return found


def counting_random() -> Callable[[int], bytes]:
    """1, 2, 3 ... in as many bytes as are wanted: for golden bytes alone."""
    drawn = 0

    def draw(size: int) -> bytes:
        nonlocal drawn
        drawn += 1
        return drawn.to_bytes(size, "big")

    return draw
