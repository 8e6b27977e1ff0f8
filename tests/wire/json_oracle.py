"""What a request of RustLog's dialect J means, by the standard library: slow, plain, on its own.

Agreement with it is how the hand-written reader is judged. Strict where the standard parser is not.
"""

import json
from typing import Any, Never

from penstock.wire.rustlog.frames import (
    CreateTopic,
    Fetch,
    ListTopics,
    Metrics,
    OffsetCommit,
    OffsetFetch,
    Ping,
    Produce,
    Request,
)

UNITS: dict[str, Request] = {"Ping": Ping(), "ListTopics": ListTopics(), "Metrics": Metrics()}


class Whole(str):
    """The digits of a whole number."""


class Members(list[tuple[str, Any]]):
    """An object with its keys in order, also those that come twice."""


class Unsound(Exception):
    """Not a request."""


def refuse(_: str) -> Never:
    raise Unsound


def not_whole(_: str) -> float:
    return 0.5


def expected(payload: bytes) -> Request | None:
    """The request, or None where an Error is due."""
    try:
        value = json.loads(
            payload.decode("utf-8"),
            object_pairs_hook=Members,
            parse_int=Whole,
            parse_float=not_whole,
            parse_constant=refuse,
        )
        check_text(value)
        return request(value)
    except (ValueError, Unsound):
        return None


def check_text(value: Any) -> None:
    """No lone surrogates, anywhere."""
    if isinstance(value, str):
        value.encode("utf-8")
    elif isinstance(value, Members):
        for name, member in value:
            check_text(name)
            check_text(member)
    elif isinstance(value, list):
        for item in value:
            check_text(item)


def request(value: Any) -> Request:
    if text_of(value) is not None and value in UNITS:
        return UNITS[value]
    if not isinstance(value, Members) or len(value) != 1:
        raise Unsound
    ((kind, inner),) = value
    if kind in UNITS and inner is None:
        return UNITS[kind]
    if not isinstance(inner, Members):
        raise Unsound
    if kind == "Produce":
        fields = known(inner, ["topic", "partition", "records"])
        return Produce(string(fields["topic"]), number(fields["partition"], 32), records(fields))
    if kind == "Fetch":
        fields = known(inner, ["topic", "partition", "offset", "max_bytes"], ["group_id"])
        group = fields.get("group_id")
        return Fetch(
            string(fields["topic"]),
            number(fields["partition"], 32),
            number(fields["offset"], 64),
            number(fields["max_bytes"], 64),
            None if group is None else string(group),
        )
    if kind == "OffsetCommit":
        fields = known(inner, ["topic", "partition", "group_id", "offset"])
        return OffsetCommit(
            string(fields["topic"]),
            number(fields["partition"], 32),
            string(fields["group_id"]),
            number(fields["offset"], 64),
        )
    if kind == "OffsetFetch":
        fields = known(inner, ["topic", "partition", "group_id"])
        group = string(fields["group_id"])
        return OffsetFetch(string(fields["topic"]), number(fields["partition"], 32), group)
    if kind == "CreateTopic":
        fields = known(inner, ["topic", "partition_count"])
        return CreateTopic(string(fields["topic"]), number(fields["partition_count"], 32))
    raise Unsound


def known(members: Members, required: list[str], optional: list[str] | None = None) -> Any:
    fields: dict[str, Any] = {}
    for name, value in members:
        if name not in required and name not in (optional or []):
            continue
        if name in fields:
            raise Unsound
        fields[name] = value
    if any(name not in fields for name in required):
        raise Unsound
    return fields


def text_of(value: Any) -> str | None:
    return value if isinstance(value, str) and not isinstance(value, Whole) else None


def string(value: Any) -> str:
    text = text_of(value)
    if text is None:
        raise Unsound
    return text


def number(value: Any, bits: int) -> int:
    if not isinstance(value, Whole) or value.startswith("-") or len(value) > 30:
        raise Unsound
    if int(value) >= 2**bits:
        raise Unsound
    return int(value)


def records(fields: dict[str, Any]) -> list[bytes]:
    value = fields["records"]
    if type(value) is not list or any(type(record) is not list for record in value):
        raise Unsound
    return [bytes(number(item, 8) for item in record) for record in value]
