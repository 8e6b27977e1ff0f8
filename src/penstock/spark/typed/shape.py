"""Shapes: what a schema says of its values, and values of that shape as Arrow columns.

A shape is made by one of the kinds of schemas, which also says how to reach a member of a value. Knows no
kind of schema, and nothing of Spark but the names that it gives to the inner fields of lists and maps.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", "UTC")

# A row that could not be made of its value, and why.
Errors = dict[int, str]


class NotFitting(ValueError):
    """A value that the schema does not describe; the text has path and reason."""


class OtherColumns(NotFitting):
    """It fits the version that wrote it, but not the columns of the one that reads."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value that Arrow knows."""

    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Text:
    """Whatever has no type of its own: shown as JSON. `write` gives the text, None for a null."""

    write: Callable[[Any], str | None]
    type: pa.DataType = pa.string()


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    get: Callable[[Any], Any]
    shape: "Shape"


class Object:
    __slots__ = ("members", "type")

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = tuple(members)
        self.type: pa.DataType = pa.struct([pa.field(one.name, one.shape.type) for one in members])


class ListOf:
    __slots__ = ("item", "type")

    def __init__(self, item: "Shape") -> None:
        self.item = item
        self.type: pa.DataType = pa.list_(pa.field("element", item.type))


class MapOf:
    """With text for keys. Its values are mappings."""

    __slots__ = ("item", "type")

    def __init__(self, item: "Shape", key: pa.DataType | None = None) -> None:
        self.item = item
        self.type: pa.DataType = pa.map_(
            pa.field("key", key or pa.string(), nullable=False), pa.field("value", item.type)
        )


Shape = Scalar | Text | Object | ListOf | MapOf


def columns(shape: Object, rows: Sequence[Any], *, complete: bool = False) -> list[pa.Array]:
    """A column for each member. A row that is None has nulls everywhere; `complete` says that there is
    none. Raises what Arrow raises."""
    if complete:
        return [column(one.shape, list(map(one.get, rows))) for one in shape.members]
    return [
        column(one.shape, [None if row is None else get(row) for row in rows])
        for one in shape.members
        for get in (one.get,)
    ]


def column(shape: Shape, values: Sequence[Any]) -> pa.Array:
    if isinstance(shape, Scalar):
        return pa.array(values, shape.type)
    if isinstance(shape, Text):
        write = shape.write
        return pa.array([None if value is None else write(value) for value in values], pa.string())
    if isinstance(shape, Object):
        absent = [value is None for value in values]
        inner = columns(shape, values, complete=True not in absent)
        mask = pa.array(absent, pa.bool_())
        return pa.StructArray.from_arrays(inner, fields=list(shape.type), mask=mask)
    if isinstance(shape, MapOf):
        return _map(shape, values)
    if isinstance(shape.item, Scalar):
        return pa.array(values, shape.type)
    items = column(shape.item, list(chain.from_iterable(one or () for one in values)))
    return pa.ListArray.from_arrays(_edges(values), items, shape.type)


def _map(shape: MapOf, values: Sequence[Mapping[Any, Any] | None]) -> pa.Array:
    keys = list(chain.from_iterable(one or () for one in values))
    items = chain.from_iterable(() if one is None else one.values() for one in values)
    return pa.MapArray.from_arrays(
        _edges(values),
        pa.array(keys, shape.type.key_type),
        column(shape.item, list(items)),
        shape.type,
    )


def _edges(values: Sequence[Any]) -> pa.Array:
    """The offsets of lists, where a null one says that its list is null."""
    ends = list(accumulate((0 if one is None else len(one) for one in values), initial=0))
    starts = [None if one is None else start for one, start in zip(values, ends, strict=False)]
    return pa.array([*starts, ends[-1]], pa.int32())
