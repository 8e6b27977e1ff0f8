"""By which door the records of a batch came in: a number in the flags of the batch, and its name.

Hot: compiled by mypyc, runs uncompiled too. Knows no protocol but its name.
"""

from typing import Final

from penstock.log.batch.format import ORIGIN_MASK, ORIGIN_SHIFT

# The place of a name is its number on disk, which never changes. A name that is not here has number 0: not
# known. Fifteen at the most.
DOORS: Final = ("", "blipmq", "rustlog", "flymq", "felix", "fujin", "flight", "http")

_FLAGS: Final[dict[str, int]] = {name: number << ORIGIN_SHIFT for number, name in enumerate(DOORS)}


def origin_flags(door: str) -> int:
    """The flags of batches that come in by this door."""
    return _FLAGS.get(door, 0)


def door_of(flags: int) -> str:
    """Empty where it is not known: by an older version, by the broker itself, or by several doors."""
    number = (flags & ORIGIN_MASK) >> ORIGIN_SHIFT
    return DOORS[number] if number < len(DOORS) else ""
