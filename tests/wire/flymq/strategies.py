"""Random payloads of FlyMQ, from the layouts of the table: whole ones, and ones that somebody spoilt."""

from collections.abc import Mapping
from typing import Final

from hypothesis import strategies as st

from penstock.wire.flymq import administration as a
from penstock.wire.flymq import messages as m
from penstock.wire.flymq.layout import Kind, Message, layout_of, write_message

Pools = Mapping[str, st.SearchStrategy[object]]

_TEXT: Final = st.text(st.characters(codec="utf-8"), max_size=8)
# By the name of a kind: any value that it can have.
ANYTHING: Final[Pools] = {
    "u8": st.integers(0, 255),
    "u16": st.integers(0, 0xFFFF),
    "u32": st.integers(0, 0xFFFF_FFFF),
    "i32": st.integers(-(1 << 31), (1 << 31) - 1),
    "u64": st.integers(0, (1 << 64) - 1),
    "i64": st.integers(-(1 << 63), (1 << 63) - 1),
    "bool": st.booleans(),
    "str": _TEXT,
    "bstr": _TEXT,
    "mode": _TEXT,
    "filter": _TEXT,
    "blob": st.binary(max_size=8),
}
_MESSAGES: Final = {
    one.__name__: one for one in (*vars(a).values(), *vars(m).values()) if isinstance(one, type)
}


def values_of(kind: Kind, pools: Pools) -> st.SearchStrategy[object]:
    name = kind.name.removeprefix("optional ")
    if name in pools:
        return pools[name]
    if name.startswith("headed list of "):
        inner = messages(_MESSAGES[name.removeprefix("headed list of ")], pools)
        return st.tuples(messages(m.FetchedAt, pools), st.lists(inner, max_size=3))
    if name.startswith("list of "):
        inner_name = name.removeprefix("list of ")
        elements = values_of(Kind(inner_name, 0, kind.read, kind.write), pools)
        return st.lists(elements, max_size=3)
    return messages(_MESSAGES[name.removeprefix("sized ")], pools)


def messages(message: type[Message], pools: Pools) -> st.SearchStrategy[Message]:
    return st.builds(message, *[values_of(kind, pools) for _, kind in layout_of(message)])


def payloads(message: type[Message], pools: Pools = ANYTHING) -> st.SearchStrategy[bytes]:
    """Of a message, the same with bytes changed, cut off or put in, or any bytes."""
    whole = messages(message, pools).map(write_message)
    return st.one_of(whole, st.builds(_spoilt, whole, _CHANGES), st.binary(max_size=64))


# Where, what is removed, what is put there: lengths and counts that do not fit, among others.
_PIECES: Final = st.one_of(
    st.binary(max_size=4),
    st.sampled_from([b"\x00", b"\xff" * 2, b"\xff" * 4, b"\x7f" + b"\xff" * 7]),
)
_CHANGES: Final = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 8), _PIECES), min_size=1, max_size=3
)


def _spoilt(payload: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    for at, removed, piece in changes:
        payload = payload[:at] + piece + payload[at + removed :]
    return payload
