"""`--decode`: values shown by the schemas of the registry, as JSON.

The schema is the one that the topic is bound to, or the one that --schema names. Messages do not say which
version they were written with: the newest that fits one is used, where no version is named. What fits none
is shown as it is, with one line on stderr that says why.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
import typer

from penstock.cli.output import Record
from penstock.errors import ExitCode, PenstockError

if TYPE_CHECKING:  # at run time only the commands import these: `penstock --help` stays quick
    from penstock.broker.schemas.kinds import Validator
    from penstock.cli.http import Api

# The server has checked what is registered, by its own limits.
MAX_DEFINITION_BYTES: Final = 16 * 1024 * 1024
MAX_DEPTH: Final = 1_000


class NotBound(PenstockError):
    exit_code: ClassVar[int] = ExitCode.NOT_FOUND

    topic: str

    line = "topic {topic!r} is bound to no schema; --schema NAME says which, penstock schema ls shows all"


class _Schema:
    """All versions of a name, or one; each is asked for when it is needed."""

    def __init__(self, api: "Api", name: str, version: int) -> None:
        self._api = api
        self.name = name
        self._versions = [version] if version else self._all_versions()
        self._known: dict[int, Validator] = {}
        self._validator(self._versions[0])

    def _all_versions(self) -> list[int]:
        latest = self._get(0)["version"]
        listed = self._api.get("/schemas", name=self.name)["schemas"]
        found = {latest, *(number for one in listed for number in one["versions"])}
        return sorted(found, reverse=True)

    def _get(self, version: int) -> Any:
        from penstock.cli.http import segment

        return self._api.get(f"/schemas/{segment(self.name)}", version=version)

    def _validator(self, version: int) -> "Validator":
        from penstock.broker.schemas.kinds import Limits, compile_definition

        if version not in self._known:
            found = self._get(version)
            limits = Limits(MAX_DEFINITION_BYTES, MAX_DEPTH)
            self._known[version] = compile_definition(
                found["type"], found["definition"].encode(), limits
            )
        return self._known[version]

    def decode(self, value: bytes) -> Any:
        """Raises ValueError with the reason of the newest version."""
        reason = ""
        for version in self._versions:
            validator = self._validator(version)
            errors = validator.errors(value)
            if not errors:
                return validator.decoded(value)
            reason = reason or errors[0]
        raise ValueError(reason)


class Decoder:
    """Called with a record; gives it with what its value says, or with the reason why not."""

    def __init__(
        self, api: "Api", wanted: str | None, complain: Callable[[str], None] | None = None
    ) -> None:
        """`wanted`: NAME or NAME:VERSION; None: by the topic."""
        self._api = api
        self._complain = complain or _to_stderr
        self._named = None if wanted is None else _Schema(api, *parse_schema(wanted))
        self._by_topic: dict[str, _Schema] = {}

    def prepare(self, topic: str) -> None:
        """Before anything is read: raises where there is no schema."""
        self._schema_of(topic)

    def _schema_of(self, topic: str) -> _Schema:
        if self._named is not None:
            return self._named
        if topic not in self._by_topic:
            from penstock.cli.topic import find_topic

            settings = find_topic(self._api, topic)["settings"]
            if not settings.get("schema"):
                raise NotBound(topic)
            name, version = settings["schema"], settings.get("schema_version", 0)
            self._by_topic[topic] = _Schema(self._api, name, version)
        return self._by_topic[topic]

    def __call__(self, record: Record) -> Record:
        if record.value is None:
            return record
        schema = self._schema_of(record.topic)
        try:
            found = schema.decode(record.value)
            text = msgspec.json.encode(found)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            place = record.topic
            if record.partition is not None:
                place += f"/{record.partition} offset {record.offset}"
            reason = " ".join(str(error).split()) or type(error).__name__
            self._complain(f"{place}: not decoded by schema {schema.name}: {reason}")
            return record
        return msgspec.structs.replace(record, value=text, decoded=msgspec.Raw(text))


def parse_schema(text: str) -> tuple[str, int]:
    """NAME, or NAME:VERSION; 0 is any version."""
    name, colon, version = text.rpartition(":")
    if not colon:
        return text, 0
    if not (name and version.isascii() and version.isdigit() and 0 < len(version) < 10):
        raise typer.BadParameter(f"--schema {text}: write NAME or NAME:VERSION, such as orders:3")
    return name, int(version)


def _to_stderr(line: str) -> None:
    typer.echo(f"penstock: {line}", err=True)
