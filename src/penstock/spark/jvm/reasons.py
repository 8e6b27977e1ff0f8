"""From what Spark says about a failure, eighty lines of it, to the one line that a person needs."""

import re
from collections.abc import Sequence
from typing import Final

# penstock.client.errors.ConnectionLost: cannot connect to 127.0.0.1:8815 ...
_OURS: Final = re.compile(r"\bpenstock\.[\w.]+: (?P<text>[^\n]+)")
# [TABLE_OR_VIEW_NOT_FOUND] The table or view `x` cannot be found. ...
_CLASS: Final = re.compile(r"\[(?P<name>[A-Z][A-Z0-9_.]+)\]\s*(?P<text>[^\n]+)")
# ZeroDivisionError: division by zero, as the last line of a traceback of Python.
_PYTHON: Final = re.compile(
    r"^\s*(?P<text>(?:[\w]+\.)*\w*(?:Error|Exception|Refused): [^\n]+)", re.M
)
_SQLSTATE: Final = re.compile(r"\s*SQLSTATE: \w+")
# Classes that only wrap another error.
_WRAPPERS: Final = frozenset(
    {
        "STREAM_FAILED",
        "PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR",
        "PYTHON_DATA_SOURCE_ERROR",
        "PYTHON_EXCEPTION",
        "UDF_ERROR",
        "FAILED_EXECUTE_UDF",
        "TASK_WRITE_FAILED",
        "STREAMING_PYTHON_RUNNER_INITIALIZATION_FAILURE",
        "UNABLE_TO_INFER_PIPELINE_TABLE_SCHEMA",
    }
)
LONGEST: Final = 500


def reason_of(texts: Sequence[str]) -> str:
    """Of several texts the first that has something to say: what Penstock said itself, else a class of
    Spark's that is no wrapper, else an error of the user's Python, else the first line."""
    for pattern in (_OURS, _CLASS, _PYTHON):
        for text in texts:
            for found in pattern.finditer(text):
                if pattern is _CLASS and found["name"] in _WRAPPERS:
                    continue
                return _line(found["text"])
    everything = [line for text in texts for line in text.splitlines() if line.strip()]
    return _line(everything[-1] if everything else "Spark failed without a word")


def _line(text: str) -> str:
    text = " ".join(_SQLSTATE.sub("", text).split()).rstrip(". ;")
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
