"""Rows of a benchmark and how they are printed. Measures nothing."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

COLUMNS = ("what", "value", "unit", "ratio", "target", "verdict")


@dataclass(frozen=True, slots=True)
class Row:
    """One number. `ratio` is to the control row; `target` is a least ratio, value, or a greatest."""

    what: str
    value: float
    unit: str
    ratio: float | None = None
    target: str = ""
    reached: bool | None = None

    def cells(self) -> tuple[str, ...]:
        verdict = "" if self.reached is None else ("yes" if self.reached else "NO")
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        return (self.what, _number(self.value), self.unit, ratio, self.target, verdict)


@dataclass(slots=True)
class Table:
    title: str
    rows: list[Row] = field(default_factory=list)

    def add(self, what: str, value: float, unit: str) -> None:
        """A row that stands for itself, for example a control row."""
        self.rows.append(Row(what, value, unit))

    def compare(self, what: str, value: float, unit: str, control: float, least: float) -> None:
        """A row that must reach a part of its control row; a part of 0 only shows the ratio."""
        ratio = value / control
        if least:
            row = Row(what, value, unit, ratio, f">= {least:.2f} of control", ratio >= least)
        else:
            row = Row(what, value, unit, ratio)
        self.rows.append(row)

    def at_least(self, what: str, value: float, unit: str, least: float) -> None:
        self.rows.append(Row(what, value, unit, None, f">= {least:g}", value >= least))

    def at_most(self, what: str, value: float, unit: str, control: float, most: float) -> None:
        """A row that may grow over its control row by a factor at most."""
        ratio = value / control
        self.rows.append(Row(what, value, unit, ratio, f"<= {most:.2f} of control", ratio <= most))

    def text(self) -> str:
        lines = [COLUMNS, *(row.cells() for row in self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
        shown = [self.title]
        for line in lines:
            cells = [
                cell.rjust(width) if column in (1, 3) else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            ]
            shown.append("  " + "  ".join(cells).rstrip())
        return "\n".join(shown)


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 10 else f"{value:.1f}"


def interleaved(calls: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The median of each call over some rounds; all calls of a round meet the same weather."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            found[name].append(call())
    return {name: median(values) for name, values in found.items()}


def median(values: Sequence[float]) -> float:
    return statistics.median(values)
