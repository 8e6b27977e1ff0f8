"""The one rule for names that people give: of topics, groups and API keys.

A name stands in lists, log lines and errors, on terminals and in browsers: it must be seen there, and
nothing in it may act on the text around it. The rule is for new names. Stored ones are used as they are.
"""

import re
import unicodedata
from typing import Final

# The bound that Kafka uses for topics, so that they can move between the two engines.
MAX_NAME_BYTES: Final = 249

CONTROL_CHARACTER: Final = re.compile("[\x00-\x1f\x7f-\x9f]")
# They end a line, or change the direction of all that follows: a name could show as another one.
_ACTS_ON_TEXT: Final = re.compile("[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
# Blanks, and format characters, which have no width.
_UNSEEN: Final = frozenset({"Zs", "Zl", "Zp", "Cf"})


def flaw_in_bytes(name: str) -> str | None:
    """Why no store can hold the name; None when it can."""
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError as error:
        return f"character {error.start} is half a surrogate pair, which UTF-8 cannot hold"
    if size == 0:
        return "it is empty"
    if size > MAX_NAME_BYTES:
        return f"it has {size} bytes in UTF-8, at most {MAX_NAME_BYTES} are allowed"
    if found := CONTROL_CHARACTER.search(name):
        return f"character {found.start()} is the control character U+{ord(found[0]):04X}"
    return None


def flaw(name: str) -> str | None:
    """Why nobody may give the name; None when it is allowed."""
    reason = flaw_in_bytes(name)
    if reason is not None:
        return reason
    if found := _ACTS_ON_TEXT.search(name):
        return (
            f"character {found.start()} is U+{ord(found[0]):04X}, which changes the text around it"
        )
    if all(unicodedata.category(character) in _UNSEEN for character in name):
        return "it has no character that can be seen"
    return None
