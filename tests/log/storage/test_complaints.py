"""One line a minute for a disk that refuses, and the right error for the caller."""

import errno

import pytest

from penstock.log.errors import AppendFailed, StorageFull
from penstock.log.storage.complaints import INTERVAL_US, Complaints, append_error


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, StorageFull), (errno.EDQUOT, StorageFull), (errno.EIO, AppendFailed)],
)
def test_the_error_for_the_caller(number: int, kind: type[AppendFailed]) -> None:
    error = append_error("data/0", OSError(number, "words"))
    assert type(error) is kind
    assert str(error) == "append to data/0 failed, nothing was stored: words"


def test_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now_us = 5
    complaints = Complaints(lambda: now_us)
    error = append_error("data/0", OSError(errno.ENOSPC, "No space left on device"))
    for _ in range(3):
        complaints.tell(error)
    assert caplog.messages == [str(error)]
    now_us += INTERVAL_US
    complaints.tell(error)
    assert caplog.messages == [str(error)] * 2
