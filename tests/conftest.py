"""For every test run: no silent run on the wrong build, and the sizes of random testing.

PENSTOCK_EXPECT=compiled|pure   refuse to start unless the hot modules load like that
HYPOTHESIS_PROFILE=quick|soak   how many random cases
--engine kafka                  servers of the tests have Kafka as their engine, see kit/kafka_pool.py
"""

import gc
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conformance.kafka_rows import skip_on_kafka
from hypothesis import HealthCheck, settings
from kit import kafka_pool
from kit.workers import UnitScheduling, start_order, worker_count

from penstock import BuildInfo, build_info

if TYPE_CHECKING:
    from xdist.remote import Producer

EXPECT_VARIABLE = "PENSTOCK_EXPECT"
EXPECTATIONS = ("compiled", "pure")
# A run that takes longer than this says where its time went.
LONG_RUN_S = 60.0

# No deadline: these machines have two shared cores, and a slow moment is not a defect.
# On CI the cases are the same in every run; elsewhere each run tries new ones.
settings.register_profile("quick", deadline=None, derandomize="CI" in os.environ, print_blob=True)
settings.register_profile(
    "soak",
    deadline=None,
    derandomize=False,
    max_examples=5_000,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture
def collected() -> Iterator[list[object]]:
    """What only the garbage collector finds, of all that was made in the test."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    yield gc.garbage
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


def complaint(info: BuildInfo, expected: str | None) -> str | None:
    """Why tests on this build would prove something else than was asked for, or None."""
    if expected is not None and expected not in EXPECTATIONS:
        return f"{EXPECT_VARIABLE}={expected} is unknown, use one of {', '.join(EXPECTATIONS)}"
    if expected is not None and info.kind != expected:
        return (
            f"{EXPECT_VARIABLE}={expected}, but {len(info.compiled)} hot modules are compiled and"
            f" {len(info.pure)} are not; make compile, or set PENSTOCK_PURE=1"
        )
    stale = [module for module in info.compiled if is_stale(module)]
    if stale:
        return f"compiled from older sources: {' '.join(stale)}; make compile, or PENSTOCK_PURE=1"
    return None


def is_stale(module: str) -> bool:
    """Whether the source of a compiled module was changed after it was compiled."""
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    compiled = Path(spec.origin)
    suffix = next(suffix for suffix in EXTENSION_SUFFIXES if compiled.name.endswith(suffix))
    source = compiled.with_name(compiled.name.removesuffix(suffix) + ".py")
    return source.stat().st_mtime > compiled.stat().st_mtime


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engine",
        choices=("embedded", "kafka"),
        default="embedded",
        help="the engine of servers that tests start; kafka: tests/conformance alone are meant for it",
    )


def pytest_configure(config: pytest.Config) -> None:
    reason = complaint(build_info(), os.environ.get(EXPECT_VARIABLE))
    if reason is not None:
        raise pytest.UsageError(reason)
    if config.getoption("--engine") == "kafka":
        kafka_pool.use_kafka()


def pytest_unconfigure(config: pytest.Config) -> None:
    kafka_pool.end_kafka()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    own = getattr(item, "funcargs", {}).get("tmp_path")
    if own is not None:
        kafka_pool.end_data(own)
    if nextitem is None or nextitem.path != item.path:
        kafka_pool.end_data(Path("/"))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    return worker_count()


def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> UnitScheduling:
    return UnitScheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--engine") == "kafka":
        skip_on_kafka(items)
    if hasattr(config, "workerinput"):
        items.sort(key=start_order)


def pytest_report_header(config: pytest.Config) -> str:
    info = build_info()
    return f"penstock {info.version}, {info.kind}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [
        report
        for found in terminalreporter.stats.values()
        for report in found
        if isinstance(report, pytest.TestReport)
    ]
    lines = time_by_directory((report.nodeid, report.duration) for report in reports)
    if lines:
        terminalreporter.section("where the time went")
        for line in lines:
            terminalreporter.line(line)


def time_by_directory(spent: Iterable[tuple[str, float]]) -> list[str]:
    """Seconds of each directory below tests/, the longest first; nothing for a short run."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for node, duration_s in spent:
        seconds[node.partition("::")[0].removeprefix("tests/").partition("/")[0]] += duration_s
    if sum(seconds.values()) < LONG_RUN_S:
        return []
    longest_first = sorted(seconds.items(), key=lambda one: -one[1])
    return [f"{total_s:6.0f} s  {name}" for name, total_s in longest_first]
