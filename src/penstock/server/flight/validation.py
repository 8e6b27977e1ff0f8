"""Validates records that come over Flight, where their topics are bound to schemas.

A batch of Flight holds tens of thousands of records, which would hold the event loop for too long.
One thread validates them in the order of their arrival, so that their order stays; while it has
work, batches for topics without a schema wait behind it too.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from penstock.broker.broker import Broker
from penstock.broker.errors import BrokerError, Code
from penstock.broker.records import Records
from penstock.broker.schemas.violations import SchemaViolation
from penstock.log.settings import TopicSettings

Found = list[SchemaViolation | None]
NO_SCHEMA = TopicSettings()


class Validation:
    """Lives on the event loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._thread = ThreadPoolExecutor(1, "penstock-flight-validation")
        self._open = 0

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def run(
        self,
        parts: Sequence[tuple[str, Records]],
        then: Callable[[Found], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        """Calls `then` with what the schema of each topic says of its records, or `fail`; at once where
        nothing has to be validated."""
        chosen = [(self._settings(topic), records) for topic, records in parts]
        if not self._open and not any(settings.schema for settings, _ in chosen):
            then([None] * len(chosen))
            return
        schemas = self._broker.schemas

        def work() -> None:
            found: Found = []
            error: BaseException | None = None
            try:
                for settings, records in chosen:
                    found.append(schemas.violation(settings, records) if settings.schema else None)
            except Exception as failure:  # whatever it is, the caller gets an answer
                error = failure
            self._broker.engine.post(lambda: self._done(found, error, then, fail))

        try:
            self._thread.submit(work)
        except RuntimeError:  # closed
            fail(BrokerError(Code.SHUTTING_DOWN))
            return
        self._open += 1

    def _settings(self, topic: str) -> TopicSettings:
        info = self._broker.topic(topic)
        return NO_SCHEMA if info is None else info.settings

    def _done(
        self,
        found: Found,
        error: BaseException | None,
        then: Callable[[Found], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._open -= 1
        if error is not None:
            fail(error)
            return
        try:
            then(found)
        except Exception as failure:  # as above
            fail(failure)
