"""Dead letters: messages that were delivered as often as allowed and never acknowledged.

They go to `<topic>.dlq` with headers that say where they come from and why. A message counts as
settled only once its dead letter is durable.
"""

import logging
from typing import TYPE_CHECKING

from penstock.broker.inflight import Run
from penstock.broker.subscription import Subscription
from penstock.errors import PenstockError
from penstock.log.builder import BatchBuilder
from penstock.log.tokens import AppendToken
from penstock.log.view import BatchView

if TYPE_CHECKING:
    from penstock.broker.broker import Broker, Delivery

DEAD_LETTER_SUFFIX = ".dlq"
REASON = b"max deliveries reached"
# A batch of dead letters is closed at this size; a single large message may pass it.
BATCH_BYTES = 1024 * 1024

logger = logging.getLogger(__name__)


class DeadLetters:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    def bury(self, subscription: Subscription) -> None:
        """Takes care of what the subscription has given up."""
        runs = subscription.take_exhausted()
        if not runs:
            return
        if subscription.topic.endswith(DEAD_LETTER_SUFFIX):
            # A dead letter that nobody takes stays in its topic; it is not copied onto itself.
            for run in runs:
                self._settled(subscription, run)
            return
        self._broker.collect(
            subscription.topic, runs, lambda delivery: self._write(subscription, delivery)
        )

    def _write(self, subscription: Subscription, delivery: "Delivery") -> None:
        for run, views in delivery:
            tokens = []
            try:
                for builder in self._batches(subscription, run, views):
                    topic = subscription.topic + DEAD_LETTER_SUFFIX
                    tokens.append(self._broker.append_batch(topic, builder.build()))
            except PenstockError as error:
                self._failed(subscription, run, error)
                continue
            self._watch(tokens, subscription, run)

    def _watch(self, tokens: list[AppendToken], subscription: Subscription, run: Run) -> None:
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
        self, subscription: Subscription, run: Run, views: list[BatchView]
    ) -> list[BatchBuilder]:
        now_us = self._broker.clock_us()
        common = [
            (b"penstock-reason", REASON),
            (b"penstock-topic", subscription.topic_bytes),
            (b"penstock-partition", str(run.partition).encode()),
            (b"penstock-deliveries", str(run.deliveries).encode()),
        ]
        builders: list[BatchBuilder] = []
        for view in views:
            for row in range(view.first_row, view.last_row):
                if not builders or builders[-1].size() >= BATCH_BYTES:
                    builders.append(BatchBuilder())
                offset = (b"penstock-offset", str(view.offset_of(row)).encode())
                headers = [*view.headers(row), *common, offset]
                builders[-1].add(view.value(row), now_us, view.key(row), headers)
        return builders

    def _failed(self, subscription: Subscription, run: Run, error: Exception) -> None:
        logger.error("dead letter of %s could not be written: %s", subscription.topic, error)
        subscription.put_back(run)

    def _settled(self, subscription: Subscription, run: Run) -> None:
        subscription.buried(run)
        self._broker.backlog.changed(subscription)
