"""Dead letters: messages that were delivered as often as allowed and never acknowledged.

They go to `<topic>.dlq` with headers that say where they come from and why. A message counts as
settled only once its dead letter is durable, or if it can never become one: then it is counted, logged,
and stays in its topic alone. Any other failure puts the messages back, to be offered once more; while the
server stops they are left as they are, and come again after its start.
"""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol

from penstock.broker.access.access import Principal
from penstock.broker.delivery.collection import Delivery
from penstock.broker.delivery.inflight import Run
from penstock.broker.delivery.subscription import Subscription
from penstock.broker.errors import BrokerError, Code, from_exception
from penstock.broker.records import Records
from penstock.broker.topic_log import TopicLog
from penstock.errors import PenstockError
from penstock.log.batch.format import BatchError
from penstock.log.batch.view import BatchView, Headers
from penstock.log.engine import AppendToken
from penstock.log.settings import MAX_RECORD_BYTES

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

DEAD_LETTER_SUFFIX = ".dlq"
# The principal that writes dead letters: the broker itself.
ITSELF: Final = Principal("penstock", "admin")
REASON = b"max deliveries reached"
# A batch of dead letters is closed at this size; a single large message may pass it.
BATCH_BYTES = 1024 * 1024
# What the headers add to a message: their names and REASON have 120 bytes, a topic name 249 at most, the
# name of a protocol 8, and three numbers 20 digits each.
HEADER_ROOM_BYTES: Final = 1024
# Refusals that stay the same however often one asks: the name is too long with its suffix, or the
# message too large with its headers (the last is the log's word for a batch that none can hold).
LASTING: Final = frozenset({Code.INVALID_TOPIC_NAME, Code.RECORD_TOO_LARGE, Code.INVALID_REQUEST})

logger = logging.getLogger(__name__)

# Of the headers that a message gets as a dead letter.
HEADER_PREFIX: Final = b"penstock-"

# Value, key, headers, expiry.
Letter = tuple[bytes | None, bytes | None, Headers, int]


class GivesUp(Protocol):
    """A subscription or a cursor: what gives up messages that were delivered too often."""

    @property
    def topic(self) -> str: ...
    @property
    def topic_bytes(self) -> bytes: ...
    @property
    def protocol(self) -> str: ...
    def take_exhausted(self) -> list[Run]:
        """Runs that had their last delivery."""
        ...

    def put_back(self, run: Run) -> None:
        """The dead letter could not be written: it is offered once more."""
        ...

    def buried(self, run: Run) -> None:
        """The dead letter is durable, or there cannot be one."""
        ...


class DeadLetters:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._refusals = TopicLog(_say_refused)

    def bury(self, subscription: GivesUp) -> None:
        """Takes care of what the subscription has given up."""
        runs = subscription.take_exhausted()
        if not runs:
            return
        if subscription.topic.endswith(DEAD_LETTER_SUFFIX):
            # A dead letter that is not acknowledged stays in its topic; it is not copied again.
            for run in runs:
                self._settled(subscription, run)
            return
        self._broker.collect(
            subscription.topic, runs, lambda delivery: self._write(subscription, delivery)
        )

    def _write(self, subscription: GivesUp, delivery: Delivery) -> None:
        for run, views in delivery:
            tokens: list[AppendToken] = []
            try:
                for letters in self._batches(subscription, run, views):
                    tokens += self._append(subscription.topic, letters)
            except PenstockError as error:
                self._failed(subscription, run, error)
                continue
            self._watch(tokens, subscription, run)

    def _append(self, topic: str, letters: list[Letter]) -> list[AppendToken]:
        """Hands all of them to the log that it can ever take; the others are counted."""
        try:
            self.ensure_topic(topic)
            values, keys, headers, expiries = map(list, zip(*letters, strict=True))
            records = Records(values, keys, headers, expiries=expiries)
            return [self._broker.publish(ITSELF, topic + DEAD_LETTER_SUFFIX, None, records)]
        except (PenstockError, BatchError) as error:
            refusal = from_exception(error)
            if refusal.code not in LASTING:
                raise
        if len(letters) == 1 or refusal.code is Code.INVALID_TOPIC_NAME:
            self._broker.subscriptions.counters.dead_letters_refused += len(letters)
            self._refusals.note(topic, len(letters), str(refusal))
            self._refusals.speak(self._broker.clock_us())
            return []
        # At least one is too large. Halves find it in few steps, also among thousands.
        half = len(letters) // 2
        return self._append(topic, letters[:half]) + self._append(topic, letters[half:])

    def ensure_topic(self, topic: str) -> None:
        """Made with room for whatever its topic can hold, and encrypted where its topic is."""
        broker = self._broker
        name = topic + DEAD_LETTER_SUFFIX
        source = broker.engine.topic(topic)
        if source is None:
            return
        found = broker.engine.topic(name)
        if found is not None:
            if source.settings.encryption and not found.settings.encryption:
                broker.engine.change_topic(name, {"encryption": True})
                text = f"topic {name!r} is about to be encrypted as {topic!r} is, try again"
                raise BrokerError(Code.OVERLOADED, text)
            return
        if broker.stopping:
            raise BrokerError(Code.SHUTTING_DOWN)
        defaults = broker.options.default_settings
        largest = min(source.settings.record_bytes + HEADER_ROOM_BYTES, MAX_RECORD_BYTES)
        changes: dict[str, object] = {"record_bytes": max(defaults.record_bytes, largest)}
        if source.settings.encryption:
            changes["encryption"] = True
        settings = defaults.changed(changes)
        broker.engine.create_topic(name, broker.options.default_partitions, settings)

    def _watch(self, tokens: list[AppendToken], subscription: GivesUp, run: Run) -> None:
        """Settles the run when all its dead letters are durable."""
        left = len(tokens)

        def written(_: AppendToken) -> None:
            nonlocal left
            left -= 1
            if left:
                return
            errors = [token.error for token in tokens if token.error is not None]
            if errors:
                self._failed(subscription, run, errors[0])
            else:
                count = sum(token.count for token in tokens)
                self._broker.subscriptions.counters.dead_lettered += count
                self._settled(subscription, run)

        if not tokens:  # nothing of the run could be read
            self._settled(subscription, run)
        for token in tokens:
            token.on_done(written)

    def _batches(
        self, subscription: GivesUp, run: Run, views: list[BatchView]
    ) -> Iterator[list[Letter]]:
        common = [
            (b"penstock-reason", REASON),
            (b"penstock-topic", subscription.topic_bytes),
            (b"penstock-partition", str(run.partition).encode()),
            (b"penstock-deliveries", str(run.deliveries).encode()),
            (b"penstock-protocol", subscription.protocol.encode()),
        ]
        letters: list[Letter] = []
        size = 0
        for view in views:
            for row in range(view.first_row, view.last_row):
                offset = (b"penstock-offset", str(view.offset_of(row)).encode())
                value = None if view.is_null(row) else view.value(row)
                headers = [*view.headers(row), *common, offset]
                letters.append((value, view.key(row), headers, view.expiry_of(row)))
                size += view.payload_bytes(row, row + 1) + HEADER_ROOM_BYTES
                if size >= BATCH_BYTES:
                    yield letters
                    letters, size = [], 0
        if letters:
            yield letters

    def _failed(self, subscription: GivesUp, run: Run, error: Exception) -> None:
        if from_exception(error).code is Code.SHUTTING_DOWN:
            return  # not settled: it is offered again after the start
        logger.error("dead letter of %s could not be written: %s", subscription.topic, error)
        subscription.put_back(run)

    def _settled(self, subscription: GivesUp, run: Run) -> None:
        subscription.buried(run)
        if isinstance(subscription, Subscription):
            self._broker.backlog.changed(subscription)


def _say_refused(topic: str, count: int, reason: str) -> None:
    logger.warning(
        "topic %s: %d messages given up that cannot become dead letters, they stay in the topic: %s",
        topic,
        count,
        reason,
    )
