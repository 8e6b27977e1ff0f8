"""The view of a running pipeline on a terminal: its flows and tables, drawn anew about twice a second, and
above it the lines that stay.

Nothing of it is written where stderr is no terminal.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import typer

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    from penstock.spark.pipeline.running.watching import FlowOrTable, Snapshot, Watch

REFRESH_S: Final = 0.5
# A look at many tables takes long: no more than one part in so many of the time goes into it.
TIME_SHARE: Final = 10
# Around the lines of flows and tables: a title, a heading, topics that are behind, and what was said last.
OTHER_LINES: Final = 5
MOST_TOPICS: Final = 3


class PipelineView:
    """`say` is for lines that stay; `showing` is open while the pipeline runs. `drawn`: with a view, where
    there is a terminal."""

    def __init__(self, drawn: bool = True) -> None:
        self._drawn = drawn
        self._live: Live | None = None

    def say(self, text: str) -> None:
        live = self._live
        if live is None:
            typer.echo(text, err=True)
        else:
            live.console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def showing(self, watch: "Watch") -> Iterator[None]:
        from rich.console import Console

        console = Console(stderr=True, highlight=False)
        if not self._drawn or not console.is_terminal or console.is_dumb_terminal:
            yield
            return
        with self._live_on(console) as live:
            ended = threading.Event()
            drawing = threading.Thread(target=_draw, args=(watch, live, ended), daemon=True)
            drawing.start()
            try:
                yield
            finally:
                ended.set()
                drawing.join()

    @contextmanager
    def _live_on(self, console: "Console") -> "Iterator[Live]":
        from rich.live import Live

        with Live(
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        ) as live:
            # A process that is cut off would leave a terminal without one.
            console.show_cursor(True)
            self._live = live
            try:
                yield live
            finally:
                self._live = None


def _draw(watch: "Watch", live: "Live", ended: threading.Event) -> None:
    pause_s = 0.0
    while not ended.wait(pause_s):
        began_s = time.monotonic()
        if watch.begun:
            try:
                live.update(table_of(watch.look(), live.console.height), refresh=True)
            except (
                PenstockError,
                OSError,
                ValueError,
            ):  # a file in the middle of a change; again soon
                live.refresh()
        pause_s = max(REFRESH_S, TIME_SHARE * (time.monotonic() - began_s))


def table_of(snapshot: "Snapshot", height: int) -> "Table":
    from rich.table import Table

    title = f"update {snapshot.number}, {snapshot.seconds:.0f} s"
    if snapshot.behind:
        most = [f"{topic} {lag:,}" for topic, lag in snapshot.behind[:MOST_TOPICS]]
        more = len(snapshot.behind) - len(most)
        title += f", behind: {', '.join(most)}" + (f" and {more} more" if more else "")
    table = Table(box=None, title=title, title_justify="left", title_style="", header_style="")
    for heading in ("flow or table", "state"):
        table.add_column(heading, no_wrap=True)
    for heading in ("rows", "new", "rows/s", "lag"):
        table.add_column(heading, justify="right", no_wrap=True)
    room = max(1, height - OTHER_LINES)
    lines = sorted(snapshot.lines, key=lambda one: (_rank(one), one.name))
    for one in lines[:room]:
        table.add_row(*_cells(one))
    if len(lines) > room:
        table.add_row(f"and {len(lines) - room} more")
    return table


def _rank(line: "FlowOrTable") -> int:
    """What runs, or is behind, stands above what is done."""
    return 0 if line.state == "RUNNING" or line.lag else 1


def _cells(line: "FlowOrTable") -> list[str]:
    from penstock.spark.pipeline.running.watching import rate

    return [
        line.name,
        line.state.lower().replace("_", " "),
        "" if line.rows is None else f"{line.rows:,}",
        f"{line.new:+,}" if line.new else "",
        rate(line.rows_per_s) if line.rows_per_s else "",
        "" if line.lag is None else f"{line.lag:,}",
    ]
