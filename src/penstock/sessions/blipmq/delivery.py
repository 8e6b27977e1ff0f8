"""Answers to BlipMQ polls: turns the records of a delivery into frames.

Knows nothing of connections and decides nothing about retries. It settles only records that no BlipMQ
frame can hold.
"""

from librt.strings import BytesWriter

from penstock.broker.counters import ProtocolCounters
from penstock.broker.delivery.collection import Delivery
from penstock.broker.delivery.subscription import Subscription
from penstock.log.batch.view import BatchView
from penstock.wire.blipmq import frames as wire
from penstock.wire.blipmq.batch import (
    pack_consecutive,
    write_deliveries,
    write_messages,
    write_poll_answers,
)
from penstock.wire.blipmq.split import PollRun


class PollAnswers:
    """A run of polls that is being answered."""

    __slots__ = ("_counters", "_ids", "answered", "left", "reading", "subscription")

    def __init__(
        self, subscription: Subscription, run: PollRun, counters: ProtocolCounters
    ) -> None:
        self.subscription = subscription
        self.left = run.count
        self.answered = 0
        # A read of the log is running.
        self.reading = False
        self._ids = run.correlation_ids
        self._counters = counters

    def encode(self, delivery: Delivery) -> bytes:
        """The frames of a delivery; a poll whose message could not be read waits for another one."""
        writer = BytesWriter()
        for run, views in delivery:
            once = self.subscription.acknowledged_by_delivery(run)
            before = self.answered
            for view in views:
                first_tag = run.first_tag + view.first_offset() - run.first_offset
                self._write_view(writer, view, first_tag, once)
            self.left += run.count - (self.answered - before)
        return writer.getvalue()

    def _write_view(self, writer: BytesWriter, view: BatchView, first_tag: int, once: bool) -> None:
        rows = len(view)
        topic = self.subscription.topic_bytes
        before = len(writer)
        try:
            if once:
                write_poll_answers(
                    writer,
                    topic,
                    view.buffer,
                    view.value_offsets_at,
                    view.values_at,
                    view.first_row,
                    rows,
                    self._ids,
                    self.answered,
                )
            else:
                write_deliveries(
                    writer,
                    topic,
                    view.buffer,
                    view.value_offsets_at,
                    view.values_at,
                    view.first_row,
                    rows,
                    first_tag,
                )
        except ValueError:
            # A record of another protocol that no BlipMQ frame can hold: the others are sent.
            writer.truncate(before)
            rows = self._write_fitting(writer, view, first_tag, once)
        self.answered += rows
        self._counters.messages_out += rows
        self._counters.frames_out += rows

    def _write_fitting(
        self, writer: BytesWriter, view: BatchView, first_tag: int, once: bool
    ) -> int:
        topic = self.subscription.topic_bytes
        room = wire.message_room(topic)
        written = 0
        for row in range(view.first_row, view.last_row):
            value = view.value(row)
            tag = first_tag + row - view.first_row
            if len(value) > room:
                self._counters.refused["record too large for a frame"] += 1
                self.subscription.acknowledge(tag, tag + 1)
                continue
            at = 8 * (self.answered + written)
            ids = self._ids[at : at + 8] if once else pack_consecutive(tag, 1)
            write_messages(writer, topic, 0 if once else 1, [value], ids)
            written += 1
        return written
