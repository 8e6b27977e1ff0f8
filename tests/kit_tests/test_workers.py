"""kit/workers.py: what stays together when the tests are spread over worker processes."""

import pytest
from kit.workers import MOST_WORKERS, unit, worker_count


@pytest.mark.parametrize(
    ("nodeid", "expected"),
    [
        ("tests/spark/test_batch.py::test_columns[x::y]", "tests/spark/"),
        ("tests/spark/test_tls.py::test_no_trust", "tests/spark/"),
        ("tests/spark/test_kills.py::test_one_kill_of_each", "tests/spark/test_kills.py"),
        ("tests/log/batch/test_view.py::TestView::runTest", "tests/log/batch/test_view.py"),
        ("tests/test_pure.py::test_kind[a]", "tests/test_pure.py"),
    ],
)
def test_a_unit_is_a_file_or_the_spark_session(nodeid: str, expected: str) -> None:
    assert unit(nodeid) == expected


def test_a_worker_for_each_core_up_to_a_limit() -> None:
    assert 1 <= worker_count() <= MOST_WORKERS
