"""How far readers see: what a transaction keeps back is kept from everybody."""

from pathlib import Path

from kit.partitions import Bench, append_rows, read_all
from kit.records import Row

from penstock.log.partitions.visibility import Visibility
from penstock.log.storage.files import RealFiles


def test_a_part_that_an_earlier_process_stored_is_hidden_from_those_at_most_once_too(
    tmp_path: Path,
) -> None:
    partition = Bench(RealFiles(), str(tmp_path / "p")).open()
    append_rows(partition, [[Row(b"a")], [Row(b"b")], [Row(b"c")]])
    partition.hold(7, at=1)
    assert (partition.visible_offset, partition.early_offset) == (1, 1)
    assert [row.value for _, row in read_all(partition)] == [b"a"]
    partition.release(7)
    assert (partition.visible_offset, partition.early_offset) == (3, 3)


def test_while_a_transaction_holds_nothing_is_shown_early() -> None:
    visible = Visibility(3)
    visible.hold(7, 2)
    woken: list[int] = []
    assert visible.watch_early(2, lambda: woken.append(1))
    visible.written(3, 4)
    assert visible.take_early() == []
    assert visible.show(4) == []
    visible.release(7)
    visible.show(4)
    assert (visible.offset, visible.early) == (4, 4)
    assert len(visible.take_early()) == 1
