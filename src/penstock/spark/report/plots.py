"""Plots as SVG, written by hand. Pure: numbers in, text out; no foreign text comes in unescaped.

A plot is as wide as its place and of a fixed height. What must not be stretched, the letters, stands in
the outer picture at a per cent of its width; the bars stand in an inner one, which is stretched. So one
file is sharp at every width, and letters stay readable on a phone. Colours are classes, for light and
dark; there is no style in an element, which the page forbids (style.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.spark.report.facts import Traffic
from penstock.spark.report.words import at, scaled

PLOT_PX: Final = 200
# The uppermost number needs room above its line; below the plot are two lines of letters.
TOP_PX: Final = 14
GROUND_PX: Final = TOP_PX + PLOT_PX
FIRST_LINE_PX: Final = GROUND_PX + 16
SECOND_LINE_PX: Final = FIRST_LINE_PX + 14
# Fewer bars take a part of the width: a single one would look like a wall.
FEWEST_SLOTS: Final = 12
# The inner picture: bars count across, these count up.
INNER: Final = 1000
# With so few bars there is room for gaps between them.
GAPS_BELOW: Final = 48
GAP: Final = 0.09
GRID_LINES: Final = 4
TICKS: Final = 6
DAY_S: Final = 86_400
_TICK_STEPS_S: Final = (
    1, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400,
    2 * 86_400, 7 * 86_400, 14 * 86_400, 28 * 86_400, 84 * 86_400, 364 * 86_400, 3640 * 86_400,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layer:
    """One colour: a number for each bar. `colour` is a class of the style sheet."""

    colour: str
    values: Sequence[float]


def nice_ceiling(
    highest: float, lines: int = GRID_LINES, base: float = 10.0
) -> tuple[float, float]:
    """The top of an axis and its step: 1, 2, 2.5 or 5 times a power. `base` 1024 for bytes."""
    if highest <= 0:
        return 1.0, 1.0
    wanted = highest / lines
    power = 1.0
    while power * base <= wanted:
        power *= base
    while power > wanted and base == 10.0:
        power /= base
    steps = (1, 2, 2.5, 5, 10) if base == 10.0 else tuple(2.0**n for n in range(11))
    step = next((power * one for one in steps if power * one >= wanted), power * base)
    count = int(-(-highest // step))
    return step * count, step


def stacked(
    layers: Sequence[Layer],
    traffic: Traffic,
    *,
    name: str,
    label: str,
    hints: Sequence[str],
    axis: Callable[[float], str] = scaled,
    base: float = 10.0,
) -> str:
    """Bars over time, one layer on the other. `name`: unique in the page. `hints`: what a pointer over a
    bar shows, escaped."""
    slots = max(traffic.bars, FEWEST_SLOTS)
    totals = [sum(column) for column in zip(*(one.values for one in layers), strict=True)]
    top, step = nice_ceiling(max(totals, default=0), base=base)
    below = [0.0] * traffic.bars
    paths = []
    for layer in layers:
        above = [low + value for low, value in zip(below, layer.values, strict=True)]
        if any(layer.values):
            paths.append(f'<path class="{layer.colour}" d="{_outline(below, above, top)}"/>')
        below = above
    hits = "".join(
        f'<rect class="hit" x="{number}" width="1" height="{INNER}"><title>{hint}</title></rect>'
        for number, hint in enumerate(hints)
    )
    inner = (
        f'<svg class="bars" width="100%" height="{PLOT_PX}" y="{TOP_PX}" viewBox="0 0 {slots} {INNER}"'
        f' preserveAspectRatio="none">{"".join(paths)}{hits}</svg>'
    )
    return _picture(name, label, _grid(top, step, axis) + inner + _time_ticks(traffic, slots), 2)


def _outline(below: Sequence[float], above: Sequence[float], top: float) -> str:
    """One path for all bars of a layer."""
    gap = GAP if len(above) < GAPS_BELOW else 0.0
    if not gap:
        return _closed(below, above, top)
    return "".join(
        f"M{number + gap:g},{_y(low, top)}V{_y(high, top)}H{number + 1 - gap:g}V{_y(low, top)}Z"
        for number, (low, high) in enumerate(zip(below, above, strict=True))
        if high > low
    )


def _closed(below: Sequence[float], above: Sequence[float], top: float) -> str:
    """Without gaps: along the upper edge and back along the lower one, so that no seams show."""
    there = "".join(f"V{_y(high, top)}H{number}" for number, high in enumerate(above, 1))
    lows = list(enumerate(below))
    back = "".join(f"V{_y(low, top)}H{number}" for number, low in reversed(lows))
    return f"M0,{_y(below[0], top)}{there}{back}Z"


def _y(value: float, top: float) -> str:
    return f"{INNER * (1 - value / top):.1f}".rstrip("0").rstrip(".")


def _picture(name: str, label: str, content: str, lines: int) -> str:
    """`lines` of letters below the plot."""
    height = (FIRST_LINE_PX if lines == 1 else SECOND_LINE_PX) + 4
    return (
        f'<svg class="plot" width="100%" height="{height}" role="img" aria-labelledby="{name}">'
        f'<title id="{name}">{label}</title>{content}</svg>'
    )


def _grid(top: float, step: float, axis: Callable[[float], str]) -> str:
    """Lines with their numbers on them, at the left: no room beside the plot is lost."""
    found = []
    for number in range(round(top / step) + 1):
        y = TOP_PX + PLOT_PX * (1 - number * step / top)
        kind = "grid" if number else "ground"
        found.append(f'<line class="{kind}" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>')
        if number:
            found.append(f'<text class="up" x="0" y="{y - 4:.1f}">{axis(number * step)}</text>')
    return "".join(found)


def _time_ticks(traffic: Traffic, slots: int) -> str:
    """Times below the plot, in UTC, and the day where it is another one than before."""
    start_s, length_s = traffic.start_s, slots * traffic.width_s
    step_s = next((one for one in _TICK_STEPS_S if length_s / one <= TICKS), _TICK_STEPS_S[-1])
    found = []
    day = ""
    for time_s in range(start_s + -start_s % step_s, start_s + length_s, step_s):
        moment = at(time_s * 1_000_000)
        date = f"{moment.day} {moment:%b}" if step_s < 84 * DAY_S else f"{moment:%b %Y}"
        lines = [f"{moment:%H:%M:%S}" if step_s < 60 else f"{moment:%H:%M}"]
        if step_s >= DAY_S:
            lines = [date]
        elif date != day:
            lines.append(date)
        day = date
        found.append(_tick(100 * (time_s - start_s) / length_s, lines))
    return "".join(found)


def _tick(per_cent: float, lines: Sequence[str]) -> str:
    """Letters in the middle below it, save at the edges of the plot."""
    anchor = "s" if per_cent < 6 else "e" if per_cent > 94 else "m"
    x = f"{per_cent:.2f}%"
    line = f'<line class="tick" x1="{x}" x2="{x}" y1="{GROUND_PX}" y2="{GROUND_PX + 4}"/>'
    return line + "".join(
        f'<text class="{anchor}" x="{x}" y="{y}">{text}</text>'
        for text, y in zip(lines, (FIRST_LINE_PX, SECOND_LINE_PX), strict=False)
    )


def histogram(
    values: Sequence[int], labels: Sequence[str], hints: Sequence[str], *, name: str, label: str
) -> str:
    """Columns side by side. `labels` stand at the lower edge of a column; an empty one is left out."""
    top, step = nice_ceiling(max(values, default=0))
    rects = "".join(
        f'<rect class="c0" x="{number + GAP:g}" width="{1 - 2 * GAP:g}" y="{_y(value, top)}"'
        f' height="{INNER * value / top:.1f}"/>'
        f'<rect class="hit" x="{number}" width="1" height="{INNER}"><title>{hint}</title></rect>'
        for number, (value, hint) in enumerate(zip(values, hints, strict=True))
    )
    inner = (
        f'<svg class="bars" width="100%" height="{PLOT_PX}" y="{TOP_PX}"'
        f' viewBox="0 0 {len(values)} {INNER}" preserveAspectRatio="none">{rects}</svg>'
    )
    ticks = "".join(
        f'<text class="{"s" if number == 0 else "m"}" x="{100 * number / len(values):.2f}%"'
        f' y="{FIRST_LINE_PX}">{text}</text>'
        for number, text in enumerate(labels)
        if text
    )
    return _picture(name, label, _grid(top, step, scaled) + inner + ticks, 1)


def meter(part: float, whole: float, colour: str = "c0") -> str:
    """A bar beside a number, which says the same: it is left out for those who cannot see it."""
    per_cent = 100 * min(part / whole, 1.0) if whole else 0.0
    shown = max(per_cent, 0.5) if part else 0.0
    return (
        '<svg class="meter" width="100%" height="8" aria-hidden="true"><rect class="rail" width="100%"'
        f' height="8" rx="4"/><rect class="{colour}" width="{shown:.1f}%" height="8" rx="4"/></svg>'
    )


def swatch(colour: str) -> str:
    return (
        '<svg class="swatch" width="12" height="12" aria-hidden="true">'
        f'<rect class="{colour}" width="12" height="12" rx="3"/></svg>'
    )
