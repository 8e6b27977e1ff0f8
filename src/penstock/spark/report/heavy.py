"""The most frequent of very many texts, in bounded memory: the counters of Misra and Gries.

While there are few different ones, counts are exact. With more, the smallest are given up and every
count is too low by `slack` at most. Summaries of several tasks may be added: counts and slacks add up.
"""

from collections.abc import Iterable
from typing import Final, Generic, TypeVar

# Of one range of a partition. At 50 bytes a key and with the dictionary this is half a megabyte, and a key
# that has 0.05 % of the records is never missed.
CAPACITY: Final = 2048

T = TypeVar("T")


class HeavyHitters(Generic[T]):
    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._counts: dict[T, int] = {}
        self.slack = 0

    def add(self, counted: Iterable[tuple[T, int]]) -> None:
        counts = self._counts
        for what, number in counted:
            counts[what] = counts.get(what, 0) + number
            # Given up by halves: sorting for every new one would cost more than the counting.
            if len(counts) >= 2 * self._capacity:
                counts = self._cut()

    def counts(self) -> dict[T, int]:
        """At most `capacity` of them."""
        return dict(self._counts if len(self._counts) <= self._capacity else self._cut())

    def _cut(self) -> dict[T, int]:
        numbers = sorted(self._counts.values(), reverse=True)
        given_up = numbers[self._capacity]
        self.slack += given_up
        self._counts = {
            what: number - given_up for what, number in self._counts.items() if number > given_up
        }
        return self._counts
