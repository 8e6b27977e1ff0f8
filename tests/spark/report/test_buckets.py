"""Widths of bars: each divides the next, and the finest that fits is taken."""

from itertools import pairwise

import pytest

from penstock.spark.report.buckets import (
    MOST_AUTO_BARS,
    WIDTHS_S,
    bar_count,
    chosen_s,
    fitting_s,
    name_of,
    wider_s,
)
from penstock.spark.report.errors import TooManyBars


def test_each_width_divides_the_next() -> None:
    widths = list(WIDTHS_S.values())
    assert all(wide % narrow == 0 and wider_s(narrow) == wide for narrow, wide in pairwise(widths))
    widest = wider_s(widths[-1])
    assert widest % widths[-1] == 0
    assert wider_s(widest) == widest


@pytest.mark.parametrize(
    ("span_s", "width"),
    [(0, "1s"), (149, "1s"), (150, "5s"), (3600, "30s"), (86_400, "10m"), (30 * 86_400, "6h")],
)
def test_the_finest_that_is_pleasant_to_look_at(span_s: int, width: str) -> None:
    assert name_of(chosen_s(None, 0, span_s)) == width


def test_all_times_that_there_are_fit() -> None:
    last_s = (1 << 63) // 1_000_000
    width_s = fitting_s(0, last_s)
    assert name_of(width_s) == "auto"
    assert bar_count(0, 250 * 365 * 86_400, width_s) < 2 * MOST_AUTO_BARS


def test_a_chosen_width_with_too_many_bars_is_refused() -> None:
    assert chosen_s("1s", 0, 599) == 1
    with pytest.raises(TooManyBars, match=r"--bucket 1s gives 3601 bars, and 600 .* 10s fits$"):
        chosen_s("1s", 0, 3600)
