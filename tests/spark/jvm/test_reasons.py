"""The one line of what Spark says about a failure."""

import pytest

from penstock.spark.jvm.reasons import LONGEST, reason_of

WORKER = """\
[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: \
[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform latestOffset:
Traceback (most recent call last):
  File "/x/stream_reader.py", line 1, in latestOffset
penstock.client.errors.ConnectionLost: cannot connect to 127.0.0.1:8815: refused
	at org.apache.spark.sql.Some.thing(Some.scala:1)
"""


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ([WORKER], "cannot connect to 127.0.0.1:8815: refused"),
        (
            ["Flow x FAILED.", "[TABLE_OR_VIEW_NOT_FOUND] No table `x`. SQLSTATE: 42P01\nat y"],
            "No table `x`",
        ),
        (["[UDF_ERROR] in task\nTraceback:\n  File\nValueError: bad thing\nat x"], "ValueError: bad thing"),
        (["[PYTHON_EXCEPTION] Traceback:\n  File\nTypeError: no\n SQLSTATE: 1"], "TypeError: no"),
        (["Failed to run", "because"], "because"),
        ([], "Spark failed without a word"),
        (["x" * 2000], "x" * (LONGEST - 3) + "..."),
    ],
)  # fmt: skip
def test_the_line_that_matters(texts: list[str], reason: str) -> None:
    assert reason_of(texts) == reason
