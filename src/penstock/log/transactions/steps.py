"""What is left to do of a decided transaction, and which of its files become segments. Values only.

A file becomes a segment where it holds batches of one partition that follow each other from its beginning,
none of them is in the log yet, and it is large enough to be worth a segment. Everything else is appended,
which copies it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from penstock.log.metadata.transaction_rows import SHARED, StagedBatch
from penstock.log.partitions.partition import Partition
from penstock.log.transactions.places import least_segment_bytes


@dataclass(frozen=True, slots=True)
class Step:
    """A staged batch, its number as that of a producer in its partition, and the partition."""

    entry: StagedBatch
    sequence: int
    target: Partition


@dataclass(slots=True)
class Run:
    """Steps of one partition that follow each other. `whole`: they are a file that can become a segment."""

    steps: list[Step] = field(default_factory=list)
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """`appended`: in this order, of whatever partitions. `runs`: of the others, those of one partition one
    behind the other."""

    appended: list[Step]
    runs: list[Run]


def plan(steps: Sequence[Step]) -> Plan:
    """Partitions that get no file are appended to at the same time, as the steps come."""
    by_target: dict[Partition, list[Step]] = {}
    for step in steps:
        by_target.setdefault(step.target, []).append(step)
    runs = {target: _runs(few) for target, few in by_target.items()}
    with_files = {target for target, some in runs.items() if any(run.whole for run in some)}
    return Plan(
        [step for step in steps if step.target not in with_files],
        [run for target, some in runs.items() if target in with_files for run in some],
    )


def _runs(steps: Iterable[Step]) -> list[Run]:
    """Of one partition: split where the file changes."""
    runs: list[Run] = []
    files: Counter[tuple[int, int]] = Counter()
    for step in steps:
        last = runs[-1].steps[-1].entry if runs else None
        entry = step.entry
        if last is None or (last.task, last.file) != (entry.task, entry.file):
            runs.append(Run())
            files[entry.task, entry.file] += 1
        runs[-1].steps.append(step)
    for run in runs:
        entry = run.steps[0].entry
        run.whole = files[entry.task, entry.file] == 1 and _is_whole(run.steps)
    return runs


def _is_whole(steps: Sequence[Step]) -> bool:
    """Whether these, which are all that is left to do of their file, are all of it."""
    if steps[0].entry.file == SHARED:
        return False
    end = 0
    for step in steps:
        if step.entry.position != end:
            return False  # a part of it is in the log, or was never written
        end += step.entry.length
    return end >= least_segment_bytes(steps[0].target.settings)
