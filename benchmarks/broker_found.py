"""What the calls of the broker suite gave, round by round, and which rounds can be trusted.

Ratios are taken within a round. Where a server with several threads is compared with a control that has
one, other work on the machine falsifies even that: the scheduler gives more to who has more threads.
So a verdict comes from quiet rounds alone, and stays open when there are too few of them.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import quantiles

from benchmarks.broker_servers import Work
from benchmarks.table import Row, median

Call = Callable[[], float]

UNIT = "msg/s"
# The control has one thread and the generator one: on two cores neither waits, unless for strangers.
QUIET_SHARE = 0.05
# The median of fewer is a matter of luck.
ENOUGH_ROUNDS = 5
LEAST_ROUNDS = 2


class Found:
    """Calls every call once a round; no round begins after the time limit, but a few always do."""

    def __init__(self, calls: dict[str, Call], rounds: int, time_limit_s: float) -> None:
        self._values: dict[str, list[float]] = {name: [] for name in calls}
        begin = time.monotonic()
        for done in range(rounds):
            if done >= LEAST_ROUNDS and time.monotonic() - begin > time_limit_s:
                break
            for name, call in calls.items():
                self._values[name].append(call())

    def __getitem__(self, name: str) -> float:
        return median(self._values[name])

    def _ratios(self, name: str, control: str) -> list[float]:
        pairs = zip(self._values[name], self._values[control], strict=True)
        return [value / bare for value, bare in pairs]

    def row(self, what: str, name: str, control: str, least_ratio: float = 0) -> Row:
        ratio = median(self._ratios(name, control))
        if not least_ratio:
            return Row(what, self[name], UNIT, ratio)
        target = f">= {least_ratio:.2f} of control"
        return Row(what, self[name], UNIT, ratio, target, ratio >= least_ratio)

    def row_at_least(self, what: str, name: str, control: str, least: float) -> Row:
        shown = self.row(what, name, control)
        return replace(shown, target=f">= {least:,.0f}", reached=shown.value >= least)

    def quiet_rows(
        self, what: str, name: str, control: str, least_ratio: float, quiet: Sequence[int]
    ) -> list[Row]:
        """The ratio of the quiet rounds with its verdict, and below it that of all rounds."""
        ratios = self._ratios(name, control)
        low, middle, high = quantiles(ratios, n=4)
        text = f"  the same, all {len(ratios)} rounds, half of them {low:.2f} to {high:.2f}"
        everything = Row(text, self[name], UNIT, middle)
        target = f">= {least_ratio:.2f} of control"
        if len(quiet) < ENOUGH_ROUNDS:
            unclear = f"{target}; OPEN: {len(quiet)} quiet rounds of {len(ratios)}, machine busy"
            return [Row(what, self[name], UNIT, None, unclear), everything]
        value = median([self._values[name][at] for at in quiet])
        ratio = median([ratios[at] for at in quiet])
        text = f"{what} ({len(quiet)} quiet rounds)"
        return [Row(text, value, UNIT, ratio, target, ratio >= least_ratio), everything]


def quiet_rounds(control: Sequence[Work]) -> list[int]:
    """Rounds with a control run before and after them that hardly waited for a CPU."""
    calm = [one.waited_s <= QUIET_SHARE * one.took_s for one in control]
    return [at for at in range(len(calm) - 1) if calm[at] and calm[at + 1]]
