"""Tables of a file that there may be several of, such as [[keys]] and [[users]]: read, checked, named once.

What the values of one table mean to each other is up to who calls.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeVar

import msgspec

from penstock.names import flaw
from penstock.server.config.errors import BadValue, UnknownKey
from penstock.server.config.kinds import Key

MASK: Final = "********"

Locate = Callable[[str], str]  # the source text of a key such as "keys[0].role"
Nearest = Callable[[str, tuple[str, ...]], str]


class Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)


class Table:
    """One of them. `secret_fields` are not shown in errors."""

    def __init__(
        self,
        content: Mapping[str, object],
        place: str,
        locate: Locate,
        fields: Mapping[str, Key],
        secret_fields: tuple[str, ...],
    ) -> None:
        self.content = content
        self._place = place
        self._locate = locate
        self._fields = fields
        self._secret_fields = secret_fields

    def bad(self, field: str, value: object, expected: str) -> BadValue:
        key = f"{self._place}.{field}".rstrip(".")
        return BadValue(key, value, self._locate(key), expected)

    def values(self) -> dict[str, Any]:
        """By attribute; those that are not given and have a default are left out. Raises BadValue."""
        values: dict[str, Any] = {}
        for name, key in self._fields.items():
            if name not in self.content and key.default is not msgspec.NODEFAULT:
                continue
            try:
                values[key.attribute] = key.read(self.content.get(name))
            except ValueError as error:
                shown = MASK if name in self._secret_fields else self.content.get(name, "missing")
                raise self.bad(name, shown, str(error)) from None
        reason = flaw(values["name"])
        if reason is not None:
            raise self.bad("name", values["name"], f"another name: {reason}")
        return values

    def one_of(self, names: tuple[str, ...], none: str) -> str:
        """The one field of these that is given. Raises BadValue."""
        given = [field for field in names if field in self.content]
        if len(given) != 1:
            raise self.bad("", " and ".join(given) or none, f"one of {', '.join(names)}")
        return given[0]


def parse_tables(
    tables: object,
    what: str,
    locate: Locate,
    nearest: Nearest,
    fields: Mapping[str, Key],
    secret_fields: tuple[str, ...],
    parse: Callable[[Table], T],
) -> tuple[T, ...]:
    """All [[what]] of a file. Raises BadValue or UnknownKey; no secret is part of their text."""
    word = what.rstrip("s")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise BadValue(what, MASK, locate(what), f"[[{what}]] tables, one for each {word}")
    found: dict[str, T] = {}
    for number, content in enumerate(tables):
        place = f"{what}[{number}]"
        for field in content:
            if field not in fields:
                source = locate(f"{place}.{field}")
                raise UnknownKey(f"{place}.{field}", source, nearest(field, tuple(fields)))
        table = Table(content, place, locate, fields, secret_fields)
        one = parse(table)
        if one.name in found:
            raise table.bad("name", one.name, f"a name that no other {word} has")
        found[one.name] = one
    return tuple(found.values())
