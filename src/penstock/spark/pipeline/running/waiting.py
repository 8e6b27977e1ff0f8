"""Whether there is something new to read: one question to the broker instead of an update that finds
nothing."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from penstock.client.errors import ClientError
from penstock.errors import PenstockError
from penstock.spark.connection import resolve
from penstock.spark.options import read_options
from penstock.spark.pipeline.connecting import with_key

# An update without anything new, for what goes by the clock: days to remove, a topic without rights
# before.
QUIET_TIME_S: Final = 60.0

Ends = Mapping[str, tuple[int, tuple[int, ...]]]


class News:
    """`options` are those of format("penstock")."""

    def __init__(
        self, options: Mapping[str, str], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        given = {**with_key(options), "subscribePattern": ".*"}
        self._connection = resolve(read_options(given, streaming=False).connection)
        self._clock_s = clock_s
        self._seen: Ends | None = None
        self._looked_s = clock_s()

    def update_begins(self) -> None:
        """What is there now will be read."""
        self._seen = self._look()
        self._looked_s = self._clock_s()

    def is_there(self) -> bool:
        """Also when the broker does not tell: then an update shows why."""
        if self._clock_s() - self._looked_s >= QUIET_TIME_S:
            return True
        now = self._look()
        return now is None or now != self._seen

    def topics_changed(self) -> bool:
        """Some were made or deleted since the last update began. False when the broker does not tell."""
        now = self._look()
        return now is not None and (self._seen is None or now.keys() != self._seen.keys())

    def ends(self) -> Ends | None:
        """What there is now. None when the broker does not tell."""
        return self._look()

    def _look(self) -> Ends | None:
        try:
            found = self._connection.client().ends()
        except (ClientError, PenstockError):
            self._connection.drop()
            return None
        return {name: ends for name, ends in found.items() if not name.startswith("_")}

    def close(self) -> None:
        self._connection.drop()


class Looking:
    """The same question from any thread, for those who only look: what keeps it from being asked is told
    by the update itself."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options
        self._news: News | None = None
        self._lock = threading.Lock()

    def ends(self) -> Ends | None:
        with self._lock:
            try:
                self._news = self._news or News(self._options)
            except PenstockError:
                return None
            return self._news.ends()

    def close(self) -> None:
        with self._lock:
            if self._news is not None:
                self._news.close()
