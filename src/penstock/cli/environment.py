"""Variables of the environment that the command line knows, and those that look like typing errors.

PENSTOCK__SECTION__KEY, with two underscores, is a setting of the server: its configuration checks those.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Final

_PREFIX: Final = "PENSTOCK_"
_SETTINGS_PREFIX: Final = "PENSTOCK__"

SERVER_VARIABLE: Final = "PENSTOCK_SERVER"
QUIC_VARIABLE: Final = "PENSTOCK_QUIC"
HTTP_VARIABLE: Final = "PENSTOCK_HTTP"
KEY_VARIABLE: Final = "PENSTOCK_KEY"
USER_VARIABLE: Final = "PENSTOCK_USER"
CONTEXT_VARIABLE: Final = "PENSTOCK_CONTEXT"
CONFIG_VARIABLE: Final = "PENSTOCK_CONFIG"
# The last three are read when the hot modules are loaded, tested and compiled.
KNOWN: Final = (
    SERVER_VARIABLE,
    QUIC_VARIABLE,
    HTTP_VARIABLE,
    KEY_VARIABLE,
    USER_VARIABLE,
    CONTEXT_VARIABLE,
    CONFIG_VARIABLE,
    "PENSTOCK_PURE",
    "PENSTOCK_EXPECT",
    "PENSTOCK_COMPILE",
)


def complaints(environment: Mapping[str, str]) -> Iterator[str]:
    """One line for each variable of ours that nothing reads."""
    for name in sorted(environment):
        if name in KNOWN or not name.startswith(_PREFIX) or name.startswith(_SETTINGS_PREFIX):
            continue
        words = [known.removeprefix(_PREFIX) for known in KNOWN]
        near = get_close_matches(name.removeprefix(_PREFIX), words, 1)
        hint = f"did you mean {_PREFIX}{near[0]}?" if near else f"known are {', '.join(KNOWN[:7])}"
        yield f"environment variable {name} is unknown and has no effect; {hint}"
