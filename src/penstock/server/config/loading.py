"""Loading the configuration: defaults, then one TOML file, then environment, then flags.

    load_config("penstock.toml", os.environ, {"server.insecure": "true"}) -> LoadedConfig

A later source wins. Every value remembers where it came from. An environment variable is
`PENSTOCK__SECTION__KEY`; flags come as `section.key -> text`. The keys are in schema.py, the rules
between them in checks.py, the text for people in text.py. Nothing here listens, logs or creates a
directory.
"""

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, Literal

from penstock.server.config.checks import check_together
from penstock.server.config.errors import BadValue, ConfigFileError, UnknownKey
from penstock.server.config.keys import parse_keys
from penstock.server.config.schema import KNOWN_KEYS, SECTIONS, Config
from penstock.server.config.tables import MASK
from penstock.server.config.users import parse_users
from penstock.server.protocols import PROTOCOLS

ENVIRONMENT_PREFIX: Final = "PENSTOCK__"
# A complete file is about 10 KB. Larger by far is not a configuration, and is not read into memory.
MAX_FILE_BYTES: Final = 1024 * 1024

_TABLES: Final = {"keys": "API keys", "users": "users"}

_DATA_DIRECTORY: Final = "server.data_directory"

_KEY_LINE: Final = re.compile(r"\s*([A-Za-z0-9_.\-]+)\s*=")
_SECTION_LINE: Final = re.compile(r"\s*\[\s*([A-Za-z0-9_.\-]+)\s*\]\s*(?:#.*)?")
_TABLE_LINE: Final = re.compile(r"\s*\[\[\s*(keys|users)\s*\]\]\s*(?:#.*)?")


@dataclass(frozen=True, slots=True)
class Source:
    """Where a value came from. `detail`: path and line, variable, flag, profile, or a reason."""

    kind: Literal["default", "profile", "file", "environment", "flag"]
    detail: str = ""

    def __str__(self) -> str:
        if self.kind == "file":
            return self.detail
        return f"{self.kind} {self.detail}".rstrip()


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """The effective configuration, and the source of each "section.key", "keys[n]" and "users[n]"."""

    config: Config
    sources: Mapping[str, Source]


@dataclass(frozen=True, slots=True)
class _Raw:
    value: object
    source: Source


def load_config(
    path: str | None, environment: Mapping[str, str], flags: Mapping[str, str]
) -> LoadedConfig:
    """Read everything and check it. Raises ConfigError: one line that says what to change."""
    content, lines = _read_file(path) if path is not None else ({}, {})
    file = _FileSource(path or "", lines)
    keys = parse_keys(content.pop("keys", []), file.locate, _nearest)
    users = parse_users(content.pop("users", []), file.locate, _nearest)
    given = _from_file(content, file)
    given.update(_from_environment(environment))
    given.update(_from_flags(flags))
    _apply_automatic_directory(given, environment)
    _apply_profiles(given)

    values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for name, raw in given.items():
        values[name.partition(".")[0]][KNOWN_KEYS[name].attribute] = _parse(name, raw)
    sources = dict.fromkeys(KNOWN_KEYS, Source("default"))
    sources.update({name: raw.source for name, raw in given.items()})
    built: dict[str, Any] = {name: struct(**values[name]) for name, (struct, _) in SECTIONS.items()}
    protocols = {row.name: built.pop(row.name) for row in PROTOCOLS}
    config = Config(**built, protocols=protocols, keys=keys, users=users)
    for place in _tables(keys, users):
        sources[place] = Source("file", file.locate(place))
    check_together(config, sources)
    return LoadedConfig(config, sources)


def _tables(keys: Sequence[object], users: Sequence[object]) -> list[str]:
    named = {"keys": keys, "users": users}
    return [f"{name}[{n}]" for name, tables in named.items() for n in range(len(tables))]


def variable_name(key: str) -> str:
    """The environment variable of a key: PENSTOCK__LIMITS__CONNECTIONS of limits.connections."""
    return ENVIRONMENT_PREFIX + key.replace(".", "__").upper()


_VARIABLES: Final = {variable_name(name): name for name in KNOWN_KEYS}


def _parse(name: str, raw: _Raw) -> object:
    try:
        return KNOWN_KEYS[name].read(raw.value)
    except ValueError as error:
        raise BadValue(name, raw.value, str(raw.source), str(error)) from None


class _FileSource:
    """Names a place in the file: path:line where the line is known, else the path."""

    def __init__(self, path: str, lines: Mapping[str, int]) -> None:
        self._path = path if path.isprintable() else repr(path)
        self._lines = lines

    def locate(self, key: str) -> str:
        # A key of a [[keys]] or [[users]] table that is missing has the line of its table.
        line = self._lines.get(key) or self._lines.get(key.partition("].")[0] + "]")
        return self._path if line is None else f"{self._path}:{line}"


def _read_file(path: str) -> tuple[dict[str, Any], dict[str, int]]:
    """The tables of the file, and the lines of its keys."""
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigFileError(path, f"cannot read the file: {error.strerror}") from error
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigFileError(path, f"no configuration: larger than {MAX_FILE_BYTES} bytes")
    try:
        text = raw.decode("utf-8-sig")  # some editors put a byte order mark in front
        return tomllib.loads(text), _line_numbers(text)
    except UnicodeDecodeError as error:
        raise ConfigFileError(path, f"not UTF-8 at byte {error.start}") from error
    except RecursionError as error:
        raise ConfigFileError(path, "not valid TOML: nested too deeply") from error
    except ValueError as error:  # tomllib's own, or a number that Python will not read
        raise ConfigFileError(path, f"not valid TOML: {error}") from error


def _line_numbers(text: str) -> dict[str, int]:
    """Lines of "section.key", "keys[n]", "users[n]" and "keys[n].key", for messages only.

    tomllib tells no positions. Reading line by line finds the usual way of writing; a key inside an
    inline table has no line, and a text over several lines that looks like TOML may mislead.
    """
    lines: dict[str, int] = {}
    section = ""
    seen = {"keys": 0, "users": 0}
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _TABLE_LINE.fullmatch(line):
            section = f"{match[1]}[{seen[match[1]]}]"
            seen[match[1]] += 1
            lines.setdefault(section, number)
            lines.setdefault(match[1], number)
        elif match := _SECTION_LINE.fullmatch(line):
            section = match[1]
            lines.setdefault(section, number)
        elif match := _KEY_LINE.match(line):
            lines.setdefault(f"{section}.{match[1]}".lstrip("."), number)
    return lines


def _from_file(content: Mapping[str, Any], file: _FileSource) -> dict[str, _Raw]:
    given: dict[str, _Raw] = {}
    for section, table in content.items():
        if section not in SECTIONS:
            if isinstance(table, dict):
                nearest = _nearest(section, (*SECTIONS, "keys", "users"))
                nearest = f"[{nearest}]" if nearest else ""
                raise UnknownKey(f"[{section}]", file.locate(section), nearest)
            raise UnknownKey(section, file.locate(section), _nearest_key(section))
        if not isinstance(table, dict):
            raise BadValue(section, table, file.locate(section), f"a table: [{section}]")
        for key, value in table.items():
            name = f"{section}.{key}"
            if name not in KNOWN_KEYS:
                raise UnknownKey(name, file.locate(name), _nearest_key(name))
            given[name] = _Raw(value, Source("file", file.locate(name)))
    return given


def _from_environment(environment: Mapping[str, str]) -> dict[str, _Raw]:
    given: dict[str, _Raw] = {}
    for variable in sorted(environment):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        name = _VARIABLES.get(variable)
        if name is None:
            _refuse_keys(variable.removeprefix(ENVIRONMENT_PREFIX), f"environment {variable}")
            dotted = variable.removeprefix(ENVIRONMENT_PREFIX).replace("__", ".").lower()
            nearest = _nearest_key(dotted)
            nearest = variable_name(nearest) if nearest else ""
            raise UnknownKey(variable, "environment", nearest)
        given[name] = _Raw(environment[variable], Source("environment", variable))
        _require_utf8(name, given[name])
    return given


def _from_flags(flags: Mapping[str, str]) -> dict[str, _Raw]:
    given: dict[str, _Raw] = {}
    for name, text in flags.items():
        if name not in KNOWN_KEYS:
            _refuse_keys(name, f"flag {name}")
            raise UnknownKey(name, "flag", _nearest_key(name))
        given[name] = _Raw(text, Source("flag", name))
        _require_utf8(name, given[name])
    return given


def _refuse_keys(name: str, source: str) -> None:
    # Processes of other users may see flags, and child processes inherit the environment.
    if found := re.match(r"(keys|users)(\W|_|$)", name, re.IGNORECASE):
        what = found[1].lower()
        expected = f"{_TABLES[what]} in the file only, as [[{what}]] tables"
        raise BadValue(what, MASK, source, expected)


def _require_utf8(name: str, raw: _Raw) -> None:
    # The system's bytes that are no UTF-8 come as lone surrogates, which nothing can write again.
    try:
        str(raw.value).encode()
    except UnicodeEncodeError:
        raise BadValue(name, raw.value, str(raw.source), "valid UTF-8") from None


def _apply_automatic_directory(given: dict[str, _Raw], environment: Mapping[str, str]) -> None:
    """Say which directory an empty or missing data_directory means, and why."""
    raw = given.get(_DATA_DIRECTORY)
    if raw is not None and raw.value != "":
        return
    base = environment.get("XDG_DATA_HOME", "")
    if not os.path.isabs(base):  # the XDG rules: a relative path is to be ignored
        given.pop(_DATA_DIRECTORY, None)
        return
    source = Source("default", "(XDG_DATA_HOME is set)")
    given[_DATA_DIRECTORY] = _Raw(os.path.join(base, "penstock"), source)
    _require_utf8(_DATA_DIRECTORY, given[_DATA_DIRECTORY])


def _apply_profiles(given: dict[str, _Raw]) -> None:
    for row in PROTOCOLS:
        chosen = given.get(f"{row.name}.profile")
        if chosen is None:
            continue
        profile = str(_parse(f"{row.name}.profile", chosen))
        source = Source("profile", f"{profile} ({chosen.source})")
        for name, value in row.section.profiles[profile].items():
            given.setdefault(f"{row.name}.{name}", _Raw(value, source))


def _nearest_key(name: str) -> str:
    """The known key that was most likely meant: the right name in another section comes first. Empty
    if none is near."""
    section, _, key = name.rpartition(".")
    for known in KNOWN_KEYS:
        if known.partition(".")[2] == key:
            return known
    in_section = [known for known in KNOWN_KEYS if known.startswith(f"{section}.")]
    return _nearest(name, tuple(in_section)) or _nearest(name, tuple(KNOWN_KEYS))


def _nearest(name: str, known: tuple[str, ...]) -> str:
    close = get_close_matches(name, known, n=1)
    return close[0] if close else ""
