"""Whether data that fits one JSON Schema fits another, as far as it can be shown keyword by keyword.

What cannot be shown counts as a problem, with one exception: a new optional property is fine, although old
data may hold anything under that name where additional properties are allowed. Everybody adds fields.
"""

from collections.abc import Iterator
from typing import Any, Final

# The reader's bound may not be tighter than the writer's: +1 where a larger number is tighter.
_BOUNDS: Final = {
    "minimum": 1,
    "exclusiveMinimum": 1,
    "minLength": 1,
    "minItems": 1,
    "minProperties": 1,
    "maximum": -1,
    "exclusiveMaximum": -1,
    "maxLength": -1,
    "maxItems": -1,
    "maxProperties": -1,
}
# At 0 they ask for nothing.
_COUNTS: Final = frozenset({"minLength", "minItems", "minProperties"})
# Rules that may be dropped and otherwise stay as they are.
_FIXED: Final = (
    "pattern",
    "format",
    "multipleOf",
    "uniqueItems",
    "contains",
    "propertyNames",
    "patternProperties",
    "prefixItems",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedProperties",
    "unevaluatedItems",
    "allOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "$dynamicRef",
    "$recursiveRef",
)
# Pairs of subschemas that are compared for one answer: schemas that refer to themselves end here.
MAX_STEPS: Final = 10_000


def problems(reader: Any, writer: Any) -> list[str]:
    """Why data of `writer` does not fit `reader`: path and rule."""
    return list(_Comparison(reader, writer).compare(reader, writer, ""))


class _Comparison:
    def __init__(self, reader: Any, writer: Any) -> None:
        self._roots = reader, writer
        self._seen: set[tuple[int, int]] = set()

    def compare(self, reader: Any, writer: Any, path: str) -> Iterator[str]:
        reader = _resolved(reader, self._roots[0])
        writer = _resolved(writer, self._roots[1])
        pair = id(reader), id(writer)
        same = reader == writer or reader is True or reader == {} or writer is False
        # Equal texts may refer to definitions that differ.
        if pair in self._seen or (same and not _refers(reader)):
            return
        self._seen.add(pair)
        place = path or "."
        if len(self._seen) > MAX_STEPS:
            yield f"{place}: too large to compare"
            return
        if not isinstance(reader, dict):
            yield f"{place}: allows nothing any more"
            return
        writer = writer if isinstance(writer, dict) else {}
        yield from _types(reader, writer, place)
        yield from _values(reader, writer, place)
        yield from _bounds(reader, writer, place)
        for rule in _FIXED:
            if rule in reader and reader[rule] != writer.get(rule):
                yield f"{place}: {rule} is new or has changed"
        yield from self._any_of(reader, writer, place)
        yield from self._properties(reader, writer, path)
        if "items" in reader:
            yield from self.compare(reader["items"], writer.get("items", True), f"{path}[]")

    def _any_of(self, reader: dict[str, Any], writer: dict[str, Any], place: str) -> Iterator[str]:
        if "anyOf" not in reader:
            return
        for branch in writer.get("anyOf", [writer]):
            fits = any(
                not any(_Comparison(*self._roots).compare(one, branch, place))
                for one in reader["anyOf"]
            )
            if not fits:
                yield f"{place}: anyOf takes less than before"
                return

    def _properties(
        self, reader: dict[str, Any], writer: dict[str, Any], path: str
    ) -> Iterator[str]:
        start = f"{path}." if path else ""
        for name in reader.get("required", ()):
            if name not in writer.get("required", ()):
                known = name in writer.get("properties", {})
                words = "is optional in" if known else "not in"
                yield f"new required field '{start}{name}' {words} old schema"
        mine, theirs = reader.get("properties", {}), writer.get("properties", {})
        others = reader.get("additionalProperties", True)
        for name, schema in theirs.items():
            if name in mine:
                yield from self.compare(mine[name], schema, start + name)
            elif others is False:
                yield f"field '{start}{name}' is not allowed any more"
            else:
                yield from self.compare(others, schema, start + name)
        old_others = writer.get("additionalProperties", True)
        if others is False and old_others is not False:
            yield f"{path or '.'}: additional fields are not allowed any more"
        elif isinstance(others, dict):
            yield from self.compare(others, old_others, start + "*")


def _types(reader: dict[str, Any], writer: dict[str, Any], place: str) -> Iterator[str]:
    if "type" not in reader:
        return
    mine, theirs = _listed(reader["type"]), _listed(writer.get("type", ["anything"]))
    for kind in theirs:
        if kind not in mine and not (kind == "integer" and "number" in mine):
            yield f"{place}: type {kind} is not allowed any more"


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _values(reader: dict[str, Any], writer: dict[str, Any], place: str) -> Iterator[str]:
    for rule in ("enum", "const"):
        if rule not in reader:
            continue
        mine = reader["enum"] if rule == "enum" else [reader["const"]]
        theirs = writer.get("enum", [writer["const"]] if "const" in writer else None)
        if theirs is None or any(value not in mine for value in theirs):
            yield f"{place}: {rule} takes less than before"


def _bounds(reader: dict[str, Any], writer: dict[str, Any], place: str) -> Iterator[str]:
    for rule, sign in _BOUNDS.items():
        mine, theirs = reader.get(rule), writer.get(rule)
        if mine is None or mine == theirs or (rule in _COUNTS and not mine):
            continue
        both = isinstance(mine, int | float) and isinstance(theirs, int | float)
        if not both or (mine - theirs) * sign > 0:
            yield f"{place}: {rule} is tighter than before"


def _refers(schema: Any) -> bool:
    """Whether any part of it is a reference."""
    rest = [schema]
    while rest:
        one = rest.pop()
        if isinstance(one, dict):
            if "$ref" in one:
                return True
            rest += one.values()
        elif isinstance(one, list):
            rest += one
    return False


def _resolved(schema: Any, root: Any) -> Any:
    """Follows references into the definition itself; another one is compared as it is written."""
    for _ in range(100):  # a chain that never ends allows everything
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#"):
            return schema
        found: Any = root
        for part in filter(None, reference[1:].split("/")):
            key = part.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, dict) else None
        if found is None:
            return schema
        schema = found
    return True
