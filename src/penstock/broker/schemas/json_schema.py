"""JSON Schema: validation by jsonschema-rs, and what data of one version means to another.

Nothing is fetched: a definition refers to itself and to the drafts alone. Patterns run in linear time, so
those with lookaround or back references are refused at registration.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import jsonschema_rs
import msgspec

from penstock.broker.schemas.json_accepting import accepting
from penstock.broker.schemas.json_compatibility import problems
from penstock.broker.schemas.kinds import (
    MAX_ERRORS,
    Limits,
    check_depth,
    invalid_definition,
    shortened,
)

_decode: Final[Callable[[Any], Any]] = msgspec.json.Decoder().decode
# What a message can do to the decoder: not JSON, not UTF-8, or nested deeper than Python's stack.
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
# Where the quick look (json_accepting.py) does not decide MISSES publishes in a row, the next LEFT_OUT go
# without it: messages with fields that the schema does not name would pay for it in vain.
MISSES: Final = 8
LEFT_OUT: Final = 64 * MISSES


def compile_definition(definition: bytes, limits: Limits) -> "JsonValidator":
    try:
        schema = _decode(definition)
    except _UNREADABLE as error:
        raise invalid_definition(f"no JSON: {error}") from None
    if not isinstance(schema, dict | bool):
        raise invalid_definition("a JSON Schema is an object, true or false")
    check_depth(schema, limits.max_depth)
    try:
        validator = jsonschema_rs.validator_for(
            schema,
            validate_formats=True,
            pattern_options=jsonschema_rs.RegexOptions(),
            retriever=_fetch_nothing,
        )
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise invalid_definition(_first_line(error)) from None
    return JsonValidator(schema, validator)


def _fetch_nothing(address: str) -> Any:
    raise ValueError("a definition refers to itself alone")


def _first_line(error: Exception) -> str:
    path = getattr(error, "instance_path", None)
    text = str(error).partition("\n")[0]
    return f"{text} at {_dotted(path)}" if path else text


class JsonValidator:
    def __init__(self, schema: Any, validator: Any) -> None:
        self.schema = schema
        self._is_valid: Callable[[object], bool] = validator.is_valid
        self._iter_errors = validator.iter_errors
        self._accepts = accepting(schema)
        # Publishes that the quick look did not decide; below 0: to be left out.
        self._misses = 0

    def invalid(self, values: Sequence[bytes | None]) -> dict[int, str]:
        if self._accepts is not None:
            if self._misses < 0:
                self._misses += 1
            elif self._accepts(values):
                self._misses = 0
                return {}
            else:
                self._misses = self._misses + 1 if self._misses < MISSES else -LEFT_OUT
        return self._judged(values)

    def _judged(self, values: Sequence[bytes | None]) -> dict[int, str]:
        """By jsonschema-rs alone."""
        try:
            if all(map(self._is_valid, map(_decode, values))):
                return {}
        except (*_UNREADABLE, TypeError, ValueError):
            pass  # the loop below finds which; None is no JSON and fits
        found: dict[int, str] = {}
        for number, value in enumerate(values):
            errors = self.errors(value) if value is not None else ()
            if errors:
                found[number] = "; ".join(errors)
        return found

    def errors(self, value: bytes) -> list[str]:
        if not value:
            return ["empty message"]
        try:
            message = _decode(value)
            if self._is_valid(message):
                return []
            found: list[str] = []
            for error in self._iter_errors(message):
                found += _wording(error)
                if len(found) >= MAX_ERRORS:
                    break
            return found[:MAX_ERRORS]
        except (*_UNREADABLE, ValueError) as error:
            return [shortened(f"invalid JSON message: {error}")]

    def problems(self, older: "JsonValidator") -> list[str]:
        return problems(self.schema, older.schema)

    def decoded(self, value: bytes) -> object:
        try:
            return _decode(value)
        except _UNREADABLE as error:
            raise ValueError(str(error)) from None


def _wording(error: Any) -> list[str]:
    """Path and rule; for the commonest rules in the words that FlyMQ's clients know."""
    path, kind = _dotted(error.instance_path), error.kind
    before = f"{path}." if path else ""
    if kind.name == "required":
        return [shortened(f"missing required field: {before}{kind.property}")]
    if kind.name == "additionalProperties":
        return [shortened(f"unexpected field: {before}{field}") for field in kind.unexpected]
    if kind.name == "type":
        expected = " or ".join(kind.types)
        got = _type_of(error.instance)
        return [shortened(f"type mismatch at {path or '.'}: expected {expected}, got {got}")]
    return [shortened(f"{path or '.'}: {error.message} ({kind.name})")]


def _dotted(path: Sequence[str | int] | None) -> str:
    return ".".join(map(str, path or ()))


def _type_of(value: object) -> str:
    names = ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"))
    for kind, name in (*names, (list, "array"), (dict, "object")):
        if isinstance(value, kind):
            return name
    return "null"
