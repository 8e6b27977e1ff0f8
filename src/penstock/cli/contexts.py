"""Named servers with their credentials, in $XDG_CONFIG_HOME/penstock/contexts.toml (~/.config).

    current = "prod"
    [contexts.prod]
    server = "broker.example:9092"
    http = "https://broker.example:8080"
    key = "..."
    tls = true
    ca = "/etc/penstock/ca.pem"
    cert = "/etc/penstock/me.pem"
    cert_key = "/etc/penstock/me.key"

The file holds API keys: it is written with mode 0600, whole or not at all. The commands on it are in
`context`.
"""

import os
import re
import tomllib
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from typing import ClassVar, Final

import msgspec

from penstock.errors import ExitCode, PenstockError

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Context:
    """One named server. A field that is None comes from the environment or the defaults."""

    server: str | None = None
    http: str | None = None
    key: str | None = None
    tls: bool | None = None
    ca: str | None = None
    cert: str | None = None
    cert_key: str | None = None


class UnknownContext(PenstockError):
    exit_code: ClassVar[int] = ExitCode.NOT_FOUND

    name: str
    near: str | None

    def __str__(self) -> str:
        hint = f"did you mean {self.near}?" if self.near else "penstock context ls shows them"
        return f"no context named {self.name!r}; {hint}"


class BadContexts(PenstockError):
    path: str
    reason: str

    line = "{path}: {reason}"


@dataclass(frozen=True, slots=True)
class Contexts:
    by_name: dict[str, Context] = field(default_factory=dict)

    def find(self, name: str) -> Context:
        if name not in self.by_name:
            near = get_close_matches(name, self.by_name, 1)
            raise UnknownContext(name, near[0] if near else None)
        return self.by_name[name]


def default_path() -> str:
    # By the XDG rules a relative path counts as none.
    base = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "penstock", "contexts.toml")


def load(path: str | None = None) -> tuple[Contexts, str | None]:
    """All contexts, and the name of the one in use. No file: none."""
    path = path or default_path()
    try:
        with open(path, "rb") as file:
            tree = tomllib.load(file)
    except FileNotFoundError:
        return Contexts(), None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadContexts(path, str(error)) from None
    unknown = sorted(set(tree) - {"current", "contexts"})
    if unknown:
        raise BadContexts(path, f"unknown key {unknown[0]!r}; known are current and contexts")
    try:
        current = msgspec.convert(tree.get("current"), str | None)
        tables = msgspec.convert(tree.get("contexts", {}), dict[str, dict[str, str | bool]])
        by_name = {name: _context(name, table) for name, table in tables.items()}
    except (msgspec.ValidationError, ValueError) as error:
        raise BadContexts(path, str(error)) from None
    return Contexts(by_name), current


def _context(name: str, table: dict[str, str | bool]) -> Context:
    unknown = sorted(set(table) - set(Context.__dataclass_fields__))
    if unknown:
        known = ", ".join(Context.__dataclass_fields__)
        raise ValueError(f"context {name!r}: unknown key {unknown[0]!r}; known are {known}")
    return msgspec.convert(table, Context)


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"context name {name!r}: use 1 to 64 letters, digits, - and _")


def save(contexts: Contexts, current: str | None, path: str | None = None) -> str:
    """Write the file; gives its path."""
    import tempfile

    path = path or default_path()
    lines = [] if current is None else [f"current = {_quoted(current)}", ""]
    for name, context in sorted(contexts.by_name.items()):
        lines.append(f"[contexts.{name}]")
        for key, value in asdict(context).items():
            if value is not None:
                text = str(value).lower() if isinstance(value, bool) else _quoted(value)
                lines.append(f"{key} = {text}")
        lines.append("")
    directory = os.path.dirname(path)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    # mkstemp makes it 0600; the rename replaces the old file at once.
    descriptor, temporary = tempfile.mkstemp(dir=directory, prefix=".contexts-")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write("\n".join(lines))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


def _quoted(text: str) -> str:
    """A TOML basic string. Without control characters it is written as JSON writes it."""
    if _CONTROL.search(text):
        raise ValueError(f"{text!r} has control characters")
    return msgspec.json.encode(text).decode()
