"""A request to cancel a delayed message where several processes serve the log: whoever delivers the hour
decides it, and a mark tells.

The request is a record of the hour. Who delivers the hour meets it before or behind the moment in which it
takes the message for a run, and the next mark says how far requests are decided and which came too late.
The one who asks follows the marks until then. When nobody delivers the hour because a process has just
died, the answer comes when another one does.
"""

from typing import TYPE_CHECKING, Final

from penstock.broker.delayed.hour import CANCELS, MARKS, PLACE, Place, hour_name
from penstock.broker.delayed.marks import decode_mark
from penstock.broker.errors import BrokerError, Code
from penstock.broker.tail import Tail
from penstock.log.batch.format import encode_values
from penstock.log.batch.view import BatchView
from penstock.log.engine import AppendToken, Pending

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

# Twice what it takes to find out that a process is dead: longer only where Kafka is in trouble.
DECIDED_S: Final = 20.0


class Request:
    """`result`: whether the message is cancelled; it was delivered, or cancelled before, where not."""

    def __init__(self, broker: "Broker", hour: int, place: Place) -> None:
        self.result: Pending[bool] = Pending()
        self._broker = broker
        self._name = hour_name(hour)
        self._place = place
        self._marks_end = 0
        self._offset = 0
        self._tail: Tail | None = None

    def begin(self) -> None:
        """Raises LogError."""
        self._broker.engine.fresh_offsets(self._name, MARKS).on_done(self._told)

    def _told(self, ends: Pending[tuple[int, int]]) -> None:
        if ends.error is not None:
            self._settle(False, ends.error)
            return
        # The mark that decides it is not written yet.
        self._marks_end = ends.result()[1]
        batch = encode_values([PLACE.pack(*self._place)], self._broker.clock_us())
        try:
            token = self._broker.engine.append(self._name, CANCELS, batch)
        except Exception as error:  # whatever it is, the one who waits is told
            self._settle(False, error)
            return
        token.on_done(self._written)

    def _written(self, token: AppendToken) -> None:
        if token.error is not None:
            self._settle(False, token.error)
            return
        self._offset = token.base_offset
        engine, later = self._broker.engine, self._broker.later
        self._tail = Tail(
            engine, later, self._name, MARKS, self._marks_end, self._take, _nothing, self._gone
        )
        self._broker.later(DECIDED_S, self._late)
        self._tail.go_on()

    def _take(self, view: BatchView) -> None:
        for row in range(view.first_row, view.last_row):
            mark = decode_mark(view.value(row))
            if mark is not None and mark.cancels_end > self._offset:
                self._settle(self._offset not in mark.refused, None)
                return

    def _gone(self) -> None:
        """The hour was deleted: everything in it is delivered or cancelled, and this came too late."""
        self._settle(False, None)

    def _late(self) -> None:
        if not self.result.done:
            text = "it is not known yet whether the message is cancelled: nobody delivers its hour"
            self._settle(False, BrokerError(Code.OVERLOADED, text))

    def _settle(self, cancelled: bool, error: BaseException | None) -> None:
        if self._tail is not None:
            self._tail.stop()
        if not self.result.done:
            self.result.settle(cancelled, error)


def _nothing(offset: int) -> None:
    """Marks alone matter."""
