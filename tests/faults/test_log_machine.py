"""The log against a model of dictionaries, with random commands, on the three file layers.

- real files: the process dies at any time, its page cache stays;
- the simulated disk: power goes at any operation of the last command, in every mode;
- the fault wrapper over both: writes fail or stay short at any time, and power goes as well.
"""

import errno
import shutil
import tempfile
from typing import cast

import pytest
from faults.log_machine import LogMachine
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test
from kit.faulty_files import CallKind, FaultyFiles
from kit.simulated_disk import SimulatedDisk
from kit.torn_content import PURE_MODES, CrashMode

from penstock.log.partitions.recovery import recover
from penstock.log.storage.files import FileSystem, RealFiles


class OnRealFiles(LogMachine):
    def make_files(self) -> FileSystem:
        self._directory = tempfile.mkdtemp(prefix="penstock-machine-")
        return RealFiles()

    def directory(self) -> str:
        return f"{self._directory}/log"

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "_directory"):
            shutil.rmtree(self._directory)


class OnSimulatedDisk(LogMachine):
    def make_files(self) -> FileSystem:
        self.disk = SimulatedDisk(0)
        self._operations_before = 0
        return self.disk

    def begin(self) -> None:
        super().begin()
        self._operations_before = len(self.disk.operations)

    def on_disk(self, disk: SimulatedDisk) -> None:
        self.disk = self.files = disk

    @rule(mode=st.sampled_from(PURE_MODES), seed=st.integers(0, 99), part=st.floats(0, 1))
    def lose_power(self, mode: CrashMode, seed: int, part: float) -> None:
        """Before, within or after the last command."""
        before, durable = self.before
        done = len(self.disk.operations)
        at = round(self._operations_before + part * (done - self._operations_before))
        if at == done:
            durable = self.durable_end()
        self.log.die()
        self.queued = []
        self.on_disk(self.disk.crash_after(at, mode, seed))
        recover(self.disk, self.directory())
        once = self.disk.contents()
        recover(self.disk, self.directory())
        assert self.disk.contents() == once, "recovering twice is not recovering once"
        self.open()
        self.accept(before.start, durable)

    def accept(self, oldest_start: int, durable: int) -> None:
        """Goes on with what was found, if that keeps every promise."""
        partition = self.log.partition
        assert partition.next_offset >= durable, "acknowledged records are lost"
        assert oldest_start <= partition.start_offset <= self.model.start
        # Without acknowledged durability records may be given up by trimming and then lost.
        assert partition.next_offset <= self.model.end, "never sent"
        self.model.cut(partition.next_offset)
        self.model.start = partition.start_offset
        self.begin()
        self.check_repeats()


WRITE_FAULTS = st.tuples(
    st.sampled_from(["write", "write", "write", "create"]),
    st.sampled_from([errno.ENOSPC, errno.EIO]),
    st.sampled_from(["", ".log", ".log", ".tmp"]),
    st.integers(1, 4),
    st.sampled_from([1, 2, None]),
)


class WithFaults(OnSimulatedDisk):
    """A full or failing disk. Failed appends are not visible, now or after a power loss."""

    def make_files(self) -> FileSystem:
        self._failing = False
        self.faulty = FaultyFiles(super().make_files())
        return self.faulty

    def on_disk(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.files = self.faulty = FaultyFiles(disk)
        self._failing = False

    def faults_allowed(self) -> bool:
        return self._failing

    def open(self) -> None:
        self.faulty.clear()
        super().open()

    @rule(fault=WRITE_FAULTS, written=st.one_of(st.none(), st.integers(0, 2000)))
    def break_disk(self, fault: tuple[str, int, str, int, int | None], written: int | None) -> None:
        kind, error, suffix, nth, times = fault
        self._failing = True
        if kind == "write" and written is not None:
            self.faulty.write_short(written, error, nth=nth, times=times, suffix=suffix)
        else:
            self.faulty.fail(cast(CallKind, kind), error, nth=nth, times=times, suffix=suffix)

    @precondition(lambda self: self._failing)
    @rule()
    def mend_disk(self) -> None:
        """There is space again: the log takes appends as if nothing had been."""
        self.commit()
        self.faulty.clear()
        self._failing = False
        self.append([(40, None, False, 0, 0)])
        self.commit()


MACHINES = {"real": OnRealFiles, "simulated": OnSimulatedDisk, "faults": WithFaults}
# Together they take half a minute; the soak form below has thousands. Real files wait for real flushes.
EXAMPLES = {"real": 30, "simulated": 150, "faults": 150}
QUICK = settings(
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.parametrize("layer", MACHINES)
def test_the_log_is_its_model(layer: str) -> None:
    chosen = settings(QUICK, max_examples=EXAMPLES[layer])
    run_state_machine_as_test(MACHINES[layer], settings=chosen)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("layer", MACHINES)
def test_the_log_is_its_model_for_long(layer: str) -> None:
    long = settings(settings.get_profile("soak"), stateful_step_count=60)
    run_state_machine_as_test(MACHINES[layer], settings=long)
