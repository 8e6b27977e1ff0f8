"""How often a password may be guessed: one bucket of tries for each user, address and known place.

A wrong try takes a token and keeps it; a right one gives it back. Tokens come back with time. So many
addresses together guess the password of one user no faster than one address alone, and one address guesses
those of many users no faster than that of one. A place, which is an address where this user has logged in
before, has a bucket of its own: whoever guesses elsewhere does not keep the rightful user out there.

Knows no queue: slow_logins.py lets those wait for whom there is no token. Not thread-safe.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple


class Rate(NamedTuple):
    """Tries at once, and tokens that come back in a second."""

    burst: int
    per_s: float


# A person who mistypes needs a handful. One in a second is 86,400 guesses in a day: a password that is not
# among the first hundred thousand of a list stands for more than a day.
USER_RATE: Final = Rate(10, 1.0)
PLACE_RATE: Final = Rate(10, 1.0)
# Many people may share an address.
ADDRESS_RATE: Final = Rate(50, 5.0)
RATES: Final = {"user": USER_RATE, "place": PLACE_RATE, "address": ADDRESS_RATE}
# Buckets that are not full: 200 bytes each. With more, the one that was used last the longest ago counts as
# full: to get that far costs as many wrong tries.
MAX_BUCKETS: Final = 20_000

# What is missing of a token by rounding.
ROUNDING: Final = 1e-9

# "user", name; "address", address; "place", name and address.
Gate = tuple[str, str, str]


class Gates:
    """Times are seconds of a clock that only goes forward."""

    def __init__(self) -> None:
        # Tokens, and when there were so many.
        self._buckets: OrderedDict[Gate, tuple[float, float]] = OrderedDict()

    def admit(self, gates: Sequence[Gate], now_s: float) -> Gate | None:
        """Takes a token of each; or of none, and gives the one that is empty."""
        for gate in gates:
            if self._tokens(gate, now_s) < 1 - ROUNDING:
                return gate
        for gate in gates:
            self._put(gate, self._tokens(gate, now_s) - 1, now_s)
        return None

    def give_back(self, gates: Sequence[Gate], now_s: float) -> None:
        for gate in gates:
            self._put(gate, self._tokens(gate, now_s) + 1, now_s)

    def open_at_s(self, gate: Gate, now_s: float) -> float:
        """When it has a token."""
        missing = 1 - self._tokens(gate, now_s)
        return now_s if missing < ROUNDING else now_s + missing / RATES[gate[0]].per_s

    def _tokens(self, gate: Gate, now_s: float) -> float:
        rate = RATES[gate[0]]
        kept = self._buckets.get(gate)
        if kept is None:
            return rate.burst
        tokens, then_s = kept
        return min(tokens + (now_s - then_s) * rate.per_s, rate.burst)

    def _put(self, gate: Gate, tokens: float, now_s: float) -> None:
        if tokens >= RATES[gate[0]].burst:
            self._buckets.pop(gate, None)
            return
        self._buckets[gate] = tokens, now_s
        self._buckets.move_to_end(gate)
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)

    def __len__(self) -> int:
        return len(self._buckets)
