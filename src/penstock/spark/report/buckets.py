"""Widths of the bars of a plot over time, in seconds. Pure.

Each width divides the next, so that what was counted in narrow bars can be added up to wide ones
exactly. A task begins with seconds and goes over to wider bars while it reads: nobody has to know
beforehand how much time the records cover.
"""

from typing import Final

from penstock.spark.report.errors import TooManyBars

# By the names that --bucket takes.
WIDTHS_S: Final = {
    "1s": 1, "5s": 5, "10s": 10, "30s": 30, "1m": 60, "5m": 300, "10m": 600, "30m": 1800, "1h": 3600,
    "2h": 7200, "6h": 21_600, "12h": 43_200, "1d": 86_400, "7d": 604_800, "28d": 2_419_200,
}  # fmt: skip
_LADDER_S: Final = (*WIDTHS_S.values(), 12 * WIDTHS_S["28d"])
# A bar is two pixels wide on a phone then.
MOST_AUTO_BARS: Final = 150
# Of a chosen width: a pixel for a bar on a desktop.
MOST_BARS: Final = 600


def wider_s(width_s: int) -> int:
    """The next width; the widest of all stays."""
    return next((one for one in _LADDER_S if one > width_s), width_s)


def bar_count(first_s: int, last_s: int, width_s: int) -> int:
    """Bars from the one with the first record to the one with the last."""
    return last_s // width_s - first_s // width_s + 1


def fitting_s(first_s: int, last_s: int, most: int = MOST_AUTO_BARS) -> int:
    """The finest width with at most so many bars."""
    for width_s in _LADDER_S:
        if bar_count(first_s, last_s, width_s) <= most:
            return width_s
    return _LADDER_S[-1]


def chosen_s(bucket: str | None, first_s: int, last_s: int) -> int:
    """What the user wants, or the finest that is pleasant to look at. Raises TooManyBars."""
    if bucket is None:
        return fitting_s(first_s, last_s)
    width_s = WIDTHS_S[bucket]
    bars = bar_count(first_s, last_s, width_s)
    if bars > MOST_BARS:
        fitting = name_of(fitting_s(first_s, last_s, MOST_BARS))
        raise TooManyBars(bucket, bars, MOST_BARS, fitting)
    return width_s


def name_of(width_s: int) -> str:
    """As --bucket takes it; the widest, which nobody can ask for, is auto."""
    return next((name for name, one in WIDTHS_S.items() if one == width_s), "auto")
