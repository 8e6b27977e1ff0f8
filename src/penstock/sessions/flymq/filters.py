"""The filter of FETCH: which records of a read match. Runs in a thread, never on the event loop.

Three tests, any of which is enough:

    1. the filter begins with "$." and the value with "{": the dotted path exists in the JSON object
    2. the filter is in the value or the key, whatever the case of letters
    3. as a regular expression it is found in the value or the key; one that is not valid finds nothing

Expressions are RE2's, whose time is linear in the text: no filter can stall the thread.
"""

from typing import Final

import msgspec
import re2

from penstock.broker.errors import BrokerError, Code
from penstock.log.batch.view import BatchView

# More is no filter but an attempt to keep a thread busy with compiling it.
MAX_FILTER_BYTES: Final = 1_024
# What a compiled expression and its states may take.
MAX_EXPRESSION_BYTES: Final = 1024 * 1024
PATH_PREFIX: Final = "$."


def check_filter(text: str) -> None:
    size = len(text.encode())
    if size > MAX_FILTER_BYTES:
        detail = f"a filter has at most {MAX_FILTER_BYTES} bytes, not {size}"
        raise BrokerError(Code.INVALID_REQUEST, detail)


class RecordFilter:
    """Compiled from the text of a filter. Not shared between threads that match at the same time."""

    def __init__(self, text: str) -> None:
        self._path = (
            text.removeprefix(PATH_PREFIX).split(".") if text.startswith(PATH_PREFIX) else None
        )
        self._lower = text.lower()
        self._lower_raw = self._lower.encode()
        self._ascii = text.isascii()
        options = re2.Options()
        options.max_mem = MAX_EXPRESSION_BYTES
        options.log_errors = False
        try:
            self._expression = re2.compile(text.encode(), options)
        except re2.error:
            self._expression = None

    def matches(self, key: bytes | None, value: bytes) -> bool:
        if self._path is not None and value.startswith(b"{") and _has_path(value, self._path):
            return True
        if self._contains(value) or (key is not None and self._contains(key)):
            return True
        expression = self._expression
        if expression is None:
            return False
        return bool(expression.search(value)) or (key is not None and bool(expression.search(key)))

    def _contains(self, raw: bytes) -> bool:
        if self._ascii:
            return self._lower_raw in raw.lower()
        return self._lower in raw.decode("utf-8", "replace").lower()

    def rows(self, view: BatchView, most: int) -> list[int]:
        """Numbers of the rows that match, `most` at most."""
        found: list[int] = []
        for row in range(view.first_row, view.last_row):
            if len(found) >= most:
                break
            if self.matches(view.key(row), view.value(row)):
                found.append(row)
        return found


def _has_path(value: bytes, path: list[str]) -> bool:
    try:
        found = msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return False
    for name in path:
        if not isinstance(found, dict) or name not in found:
            return False
        found = found[name]
    return True
