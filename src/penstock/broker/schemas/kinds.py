"""The kinds of schemas, and how a definition becomes a validator.

A kind is a module here with a function `compile_definition`. The libraries behind the kinds are the extra
`schemas`: they are imported when the first schema of their kind is used, and a server without them says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Protocol

from penstock.broker.errors import BrokerError, Code

# What the kind is called on the wire and at the command line, with its module here.
_MODULES: Final = {"json": "json_schema", "avro": "avro", "protobuf": "protobuf"}
_OTHER_NAMES: Final = {"proto": "protobuf"}

# Errors that are told of one message: enough to repair it, and never a long answer to a short request.
MAX_ERRORS: Final = 8
# Of one error: messages may hold anything, and the error quotes them.
MAX_ERROR_CHARACTERS: Final = 200


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a definition. `depth`: of nested types or objects."""

    max_bytes: int
    max_depth: int


class Validator(Protocol):
    """A compiled definition. Used on the event loop and in threads."""

    def invalid(self, values: Sequence[bytes | None]) -> dict[int, str]:
        """The numbers of values that do not fit, each with path and rule. None fits: it deletes a key."""
        ...

    def errors(self, value: bytes) -> list[str]:
        """Up to MAX_ERRORS; empty when it fits."""
        ...

    def problems(self, older: Any) -> list[str]:
        """Why data that fits `older` (of the same kind) does not fit this one; empty: all of it does."""
        ...

    def decoded(self, value: bytes) -> object:
        """As JSON can show it. Raises ValueError."""
        ...


def kind_of(name: str) -> str:
    kind = _OTHER_NAMES.get(name, name)
    if kind not in _MODULES:
        raise BrokerError(Code.INVALID_SCHEMA, f"unsupported schema type: {shortened(name)}")
    return kind


def compile_definition(kind: str, definition: bytes, limits: Limits) -> Validator:
    """Raises BrokerError INVALID_SCHEMA or SCHEMAS_NOT_INSTALLED. May take long: for a thread."""
    if len(definition) > limits.max_bytes:
        raise BrokerError(
            Code.INVALID_SCHEMA,
            f"a definition of {len(definition)} bytes, limits.schema_bytes = {limits.max_bytes}",
        )
    try:
        module = import_module(f"penstock.broker.schemas.{_MODULES[kind]}")
        validator: Validator = module.compile_definition(definition, limits)
    except ModuleNotFoundError as error:
        raise BrokerError(
            Code.SCHEMAS_NOT_INSTALLED,
            f"{kind} schemas need the module {error.name}: pip install 'penstock[schemas]'",
        ) from None
    return validator


def invalid_definition(reason: str) -> BrokerError:
    return BrokerError(Code.INVALID_SCHEMA, f"invalid schema definition: {shortened(reason)}")


def shortened(text: str) -> str:
    """One line of bounded length."""
    line = " ".join(text.split())
    cut = len(line) > MAX_ERROR_CHARACTERS
    return line[: MAX_ERROR_CHARACTERS - 3] + "..." if cut else line


def check_depth(value: object, most: int) -> None:
    """Raises INVALID_SCHEMA for lists and objects that are nested deeper. Without recursion."""
    level = [value]
    for _ in range(most + 1):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return
    raise invalid_definition(f"nested deeper than limits.schema_depth = {most}")
