"""The wire formats as one suite; the rows and their control rows are in the wire_* modules."""

from collections.abc import Callable, Iterator
from typing import Protocol

from benchmarks import wire_blipmq, wire_rustlog
from benchmarks.table import Table
from penstock.server.memory import settle_allocator


class WireModule(Protocol):
    """What a wire_* module offers; the first of its rows is the control row."""

    def rows(self) -> dict[str, Callable[[], object]]: ...
    def rate(self, call: Callable[[], object], seconds: float) -> float: ...


MODULES: tuple[tuple[str, WireModule], ...] = (
    ("BlipMQ wire", wire_blipmq),
    ("RustLog wire", wire_rustlog),
)


def tables(quick: bool) -> Iterator[Table]:
    for title, module in MODULES:
        settle_allocator()
        table = Table(f"{title}, messages per second")
        control = 0.0
        for what, call in module.rows().items():
            speed = module.rate(call, 0.05 if quick else 1.0)
            if control:
                table.compare(what, speed / 1e6, "M/s", control / 1e6, 0)
            else:
                control = speed
                table.add(what, speed / 1e6, "M/s")
        yield table
