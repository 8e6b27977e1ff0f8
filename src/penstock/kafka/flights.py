"""One batch on its way to Kafka: the reports of its records, and what they come to.

Each record is reported by librdkafka, so this runs once for each. Hot: compiled by mypyc, runs uncompiled
too. Does no I/O.
"""

from typing import Any, Final, final

from confluent_kafka import KafkaError

from penstock.log.batch.format import Batch
from penstock.log.engine import AppendToken
from penstock.log.errors import AppendFailed, LogError, OutcomeUnknown, TooLarge

# Kafka has looked at it and refused it: it is not stored.
_REFUSED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.POLICY_VIOLATION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)
# Where Kafka does not say what to do.
_HINTS: Final = {KafkaError.INVALID_RECORD: "; a compacted topic takes records with a key alone"}

Place = tuple[str, int]


@final
class Flight:
    """Reports come in the thread that polls, and are counted there alone."""

    def __init__(
        self, place: Place, batch: Batch, token: AppendToken, done: "list[Flight]"
    ) -> None:
        self.place = place
        self.batch = batch
        self.token = token
        self.left: int = batch.count
        self.offsets: list[int] = []
        # Of the first record and of the last one.
        self.first_ms: int = 0
        self.last_ms: int = 0
        self.error: Any = None
        self._done = done

    def report(self, error: Any, message: Any) -> None:
        offsets = self.offsets
        if error is None:
            if not offsets:
                self.first_ms = message.timestamp()[1]
            offset = message.offset()
            offsets.append(-1 if offset is None else offset)
            if self.left == 1:
                self.last_ms = message.timestamp()[1]
        self.count_out(error, 1)

    def count_out(self, error: Any, count: int) -> None:
        """So many of its records are through, or never went out."""
        if error is not None:
            self.error = error
        self.left -= count
        if not self.left:
            self._done.append(self)

    def same_time_us(self) -> int | None:
        """The time of all records as Kafka has it; None where they differ."""
        return self.first_ms * 1000 if self.first_ms == self.last_ms else None

    def failure(self, path: str) -> LogError | None:
        error = self.error
        if error is None:
            return None
        code: int = error.code()
        if code == KafkaError.MSG_SIZE_TOO_LARGE:
            return TooLarge("batch", self.batch.size(), self.batch.size() - 1)
        if code in _REFUSED and not self.offsets:
            return AppendFailed(path, error.str() + _HINTS.get(code, ""))
        return OutcomeUnknown(path, error.str())
