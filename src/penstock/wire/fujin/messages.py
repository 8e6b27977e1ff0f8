"""Fujin's messages that do not come from the log: opaque ids of any length, values one by one.

The layouts are those of reading.py, whose MessageWriter encodes stored batches and is compiled for it.
"""

from penstock.wire.fujin.commands import MSG

_PUSHED = bytes((MSG,))


def encode_messages(push: bool, ids: list[bytes] | None, values: list[bytes]) -> bytes:
    """`ids`: None with auto commit. Values are not empty: clients take that for an error."""
    parts: list[bytes] = []
    for number, value in enumerate(values):
        if push:
            parts.append(_PUSHED)
        if ids is not None:
            parts += [len(ids[number]).to_bytes(4, "big"), ids[number]]
        parts += [len(value).to_bytes(4, "big"), value]
    return b"".join(parts)
