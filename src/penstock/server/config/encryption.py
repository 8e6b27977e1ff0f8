"""The keys of encryption at rest: read from files and environment variables, never from a command line.

    [encryption]
    keys = ["1=/etc/penstock/2025.key", "2=env:PENSTOCK_KEY_2"]
    current = 2

A key is 32 random bytes, written as 64 hexadecimal digits or as base64. No error and no log line shows one.
"""

import base64
import os
import stat
from collections.abc import Mapping
from typing import Final

from penstock.errors import PenstockError
from penstock.log.engine import Keys
from penstock.server.config.kinds import BASE64_KEY, ENVIRONMENT_SOURCE, HEX_KEY, KeySource
from penstock.server.config.schema import EncryptionConfig

# Longer by far than a key in any form.
MAX_FILE_BYTES: Final = 4096
# Nobody but the owner may write the file, and nobody but the owner and its group may read it.
FORBIDDEN_MODE: Final = stat.S_IWGRP | stat.S_IRWXO

EXPECTED: Final = (
    "32 random bytes as 64 hexadecimal digits or as base64 (openssl rand -hex 32 makes them)"
)


class KeyUnreadable(PenstockError):
    """`source` is a path or a variable."""

    exit_code = 2

    key_id: int
    source: str
    reason: str

    line = "encryption.keys: key {key_id} ({source}): {reason}"


def read_keys(config: EncryptionConfig, environment: Mapping[str, str]) -> Keys:
    """Waits for the disk. Raises KeyUnreadable."""
    by_id = {source.key_id: _read(source, environment) for source in config.keys}
    return Keys(by_id, config.current_id)


def _read(source: KeySource, environment: Mapping[str, str]) -> bytes:
    kind, _, name = source.source.partition(":")
    if kind == ENVIRONMENT_SOURCE:
        if name not in environment:
            raise KeyUnreadable(source.key_id, source.source, "there is no such variable")
        text = environment[name]
    else:
        text = _content(source)
    key = _parsed(text.strip())
    if key is None:
        raise KeyUnreadable(source.key_id, source.source, f"it holds no key: expected {EXPECTED}")
    return key


def _content(source: KeySource) -> str:
    try:
        descriptor = os.open(source.source, os.O_RDONLY | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
            if mode & FORBIDDEN_MODE:
                text = f"others may read or change the file (mode {mode:o}); chmod 600 it"
                raise KeyUnreadable(source.key_id, source.source, text)
            return file.read(MAX_FILE_BYTES).decode("ascii", "replace")
    except OSError as error:
        reason = f"cannot read the file: {error.strerror}"
        raise KeyUnreadable(source.key_id, source.source, reason) from None


def _parsed(text: str) -> bytes | None:
    if HEX_KEY.fullmatch(text):
        return bytes.fromhex(text)
    return base64.b64decode(text) if BASE64_KEY.fullmatch(text) else None
