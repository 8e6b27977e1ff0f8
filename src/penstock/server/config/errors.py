"""What can be wrong with a configuration, each with fields and one clear line.

ConfigError
  ConfigFileError      the file cannot be read or is no TOML
  UnknownKey           names the nearest known key
  BadValue             key, value, where it came from, what is expected
  ConfigConflict       values that are fine alone but not together
"""

import re

from penstock.errors import PenstockError

# Longer values are cut in messages: one line stays one line.
_MAX_SHOWN: int = 80
# Of an address such as nats://user:password@host.
_PASSWORD: re.Pattern[str] = re.compile(r"(://[^/@\s]*?):[^/@\s]*@")


class ConfigError(PenstockError):
    """Anything that is wrong with a configuration."""


class ConfigFileError(ConfigError):
    path: str
    reason: str

    line = "{path}: {reason}"


class UnknownKey(ConfigError):
    """`key` and `nearest` are named as its source names keys: in dots, or as a variable. `nearest` is
    empty if none is near."""

    key: str
    source: str
    nearest: str

    def __str__(self) -> str:
        near = (
            f"did you mean {self.nearest}?" if self.nearest else "penstock config init - lists all"
        )
        return f"{self.source}: unknown key {_shown(self.key)}; {near}"


class BadValue(ConfigError):
    key: str
    value: object
    source: str
    expected: str

    def __str__(self) -> str:
        return f"{self.source}: {self.key} = {_shown(self.value)}: expected {self.expected}"


class ConfigConflict(ConfigError):
    keys: tuple[str, ...]
    reason: str

    line = "configuration: {reason}"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a table"
    try:
        text = repr(value) if not isinstance(value, str) or not value.isprintable() else value
    except ValueError:  # Python refuses to print numbers of thousands of digits
        return "a huge number"
    text = _PASSWORD.sub(r"\1:********@", text)
    text = text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."
    return f'"{text}"' if isinstance(value, str) and value.isprintable() else text
