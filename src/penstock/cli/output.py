"""What commands write to stdout: records in a format, as JSON lines, and tables.

Data only. Messages for people go to stderr, by typer.echo(..., err=True). No colour anywhere.

The format of a record, as kcat has it:
  %t topic   %p partition   %o offset   %T time in microseconds   %k key   %v value   %S size of the
  value   %h headers as name=value,...   %% a percent sign   \\n \\t \\r \\0 \\\\ and \\xHH
A field that the protocol does not tell is refused; one that a record does not have (a key) is empty.
"""

import base64
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import msgspec
import typer

# Of a value, in a table.
SHOWN_BYTES: Final = 60

_TOKEN: Final = re.compile(rb"%(.?)|\\(x[0-9A-Fa-f]{2}|.?)", re.DOTALL)
_ESCAPES: Final = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"0": b"\0", b"\\": b"\\"}


class Record(msgspec.Struct, frozen=True):
    """One record from anywhere. None: unknown; for the value: null. `decoded`: what the value says, as
    JSON, where a schema has told."""

    topic: str
    value: bytes | None
    partition: int | None = None
    offset: int | None = None
    timestamp_us: int | None = None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()
    decoded: msgspec.Raw | None = None


Formatter = Callable[[Record], bytes]

_FIELDS: Final[dict[bytes, Formatter]] = {
    b"t": lambda record: record.topic.encode(),
    b"p": lambda record: _number(record.partition),
    b"o": lambda record: _number(record.offset),
    b"T": lambda record: _number(record.timestamp_us),
    b"k": lambda record: record.key or b"",
    b"v": lambda record: record.value or b"",
    b"S": lambda record: _number(-1 if record.value is None else len(record.value)),
    b"h": lambda record: b",".join(n.encode() + b"=" + value for n, value in record.headers),
    b"%": lambda record: b"%",
}


@dataclass(frozen=True, slots=True)
class Told:
    """The fields of a record that a protocol delivers."""

    protocol: str
    fields: frozenset[bytes]


TOLD_BY_HTTP: Final = Told("HTTP", frozenset(_FIELDS))
TOLD_BY_RUSTLOG: Final = Told("RustLog", frozenset({b"t", b"p", b"o", b"v", b"S", b"%"}))
TOLD_BY_FLYMQ: Final = Told("FlyMQ", frozenset({b"t", b"p", b"o", b"k", b"v", b"S", b"%"}))
TOLD_BY_BLIPMQ: Final = Told("BlipMQ", frozenset({b"t", b"v", b"S", b"%"}))
TOLD_BY_FELIX: Final = Told("Felix", TOLD_BY_BLIPMQ.fields)
TOLD_BY_FUJIN: Final = Told("Fujin", TOLD_BY_BLIPMQ.fields)


def formatter(
    as_json: bool,
    template: str | None,
    told: Told = TOLD_BY_HTTP,
    decode: Callable[[Record], Record] | None = None,
) -> Formatter:
    """How records are written; without a wish, the value and a line end. `decode` comes first."""
    write_as = _formatter(as_json, template, told)
    if decode is None:
        return write_as
    return lambda record: write_as(decode(record))


def _formatter(as_json: bool, template: str | None, told: Told) -> Formatter:
    if as_json and template is not None:
        raise typer.BadParameter("give one of --json and --format, not both")
    if as_json:
        return _json_line
    if template is None:
        return lambda record: (record.value or b"") + b"\n"
    parts = _parse(template.encode("utf-8", "surrogateescape"), told)
    return lambda record: b"".join(
        part if isinstance(part, bytes) else part(record) for part in parts
    )


def _parse(template: bytes, told: Told) -> list[bytes | Formatter]:
    parts: list[bytes | Formatter] = []
    end = 0
    for match in _TOKEN.finditer(template):
        parts.append(template[end : match.start()])
        end = match.end()
        name, escape = match.groups()
        if name is not None and name in _FIELDS:
            if name not in told.fields:
                field = f"%{name.decode()}"
                raise typer.BadParameter(
                    f"--format: {told.protocol} does not tell {field}, --protocol http does"
                )
            parts.append(_FIELDS[name])
        elif escape is not None and escape in _ESCAPES:
            parts.append(_ESCAPES[escape])
        elif escape is not None and len(escape) == 3:
            parts.append(bytes.fromhex(escape[1:].decode()))
        else:
            token = match.group().decode("utf-8", "replace")
            raise typer.BadParameter(
                f"--format: {token!r} is unknown, use %t %p %o %T %k %v %S %h %% \\n \\t \\xHH"
            )
    parts.append(template[end:])
    return [part for part in parts if part != b""]


def _json_line(record: Record) -> bytes:
    """Bytes that are UTF-8 as text, others as <name>_base64."""
    fields: dict[str, Any] = {"topic": record.topic}
    for name in ("partition", "offset", "timestamp_us"):
        if getattr(record, name) is not None:
            fields[name] = getattr(record, name)
    if record.key is not None:
        fields.update(_text("key", record.key))
    if record.decoded is not None:
        fields["value"] = record.decoded
    else:
        fields.update({"value": None} if record.value is None else _text("value", record.value))
    if record.headers:
        fields["headers"] = [{"name": n, **_text("value", value)} for n, value in record.headers]
    return msgspec.json.encode(fields) + b"\n"


def _text(name: str, raw: bytes) -> dict[str, str]:
    try:
        return {name: raw.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(raw).decode()}


def _number(number: int | None) -> bytes:
    return b"" if number is None else b"%d" % number


def standard_output() -> BinaryIO:
    sys.stdout.flush()
    return sys.stdout.buffer


def add_listing(group: typer.Typer, command: Callable[..., None]) -> None:
    """`ls` in every group of commands; `list`, which other tools have, does the same."""
    group.command("ls")(command)
    group.command("list", hidden=True)(command)


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], as_json: bool) -> None:
    """Rows below their column names, or one JSON list. No rows: nothing but the names."""
    if as_json:
        print_json(list(rows))
        return
    lines = [[name.upper().replace("_", " ") for name in columns]]
    lines += [[_cell(row.get(name)) for name in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (text.ljust(width) for text, width in zip(line, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())


def preview(encoded: str | None) -> str:
    """The beginning of a value that the HTTP API gave, for a table."""
    if encoded is None:
        return "(null)"
    text = base64.b64decode(encoded)[:SHOWN_BYTES].decode("utf-8", "replace")
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)


def moment(time_us: int) -> str:
    """A time as a table shows it: local, to the second."""
    from datetime import datetime

    return datetime.fromtimestamp(time_us // 1_000_000).isoformat(sep=" ")


def print_json(value: Any) -> None:
    typer.echo(msgspec.json.encode(value).decode())


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
