"""The thread that reads the topic of the metadata, from its beginning and then for ever.

It sees what is committed, by any gateway and in one order, gathers records up to the mark behind them, and
hands over whole transactions. It starts again from the beginning, and hands over what differs, when the
place where it reads is gone (the topic was made anew), or when it was cut off for so long that compaction
may have removed deletions that it has not seen. Writes nothing.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, TopicPartition

from penstock.kafka.clients import Clients
from penstock.kafka.metadata.layout import (
    FORMAT,
    MARK_KEY,
    Headers,
    Mark,
    NotOurs,
    read_mark,
    split_key,
    version_of,
)
from penstock.kafka.metadata.spaces import Spaces
from penstock.log.feeds import Steps
from penstock.log.metadata_errors import MetadataError, MetadataTooNew, MetadataUnavailable
from penstock.log.records import RecordChange

# A closed follower ends after this time at the latest.
POLL_S: Final = 0.1
READ_AT_ONCE: Final = 10_000
# Behind a transaction that was given up, the end of the topic is known after this time.
FETCH_WAIT_MS: Final = 100
# Of a question for the end of the topic, where the thread has other things to do too.
ASK_S: Final = 1.0
# When nothing comes, this often somebody asks whether Kafka is there: for the health, and for `STALE_S`.
PROBE_S: Final = 30.0
PROBE_IN_TROUBLE_S: Final = 0.5
# Kafka keeps deletions for twice this time (topic.py).
STALE_S: Final = 12 * 3600.0

logger = logging.getLogger(__name__)


class Receiver(Protocol):
    """Called in the thread of the follower."""

    def apply(self, steps: Steps, mark: Mark) -> None:
        """A transaction, or several of which compaction has left the last mark."""
        ...

    def expects(self, transaction: bytes) -> bool:
        """Whether anybody waits for this one."""
        ...

    def replace(self, spaces: Spaces, last_version: int, transactions: set[bytes]) -> None:
        """All records as they are now. `transactions`: those that somebody expects, and that happened."""
        ...

    def applied_up_to(self, offset: int) -> None:
        """Everything before this offset was handed over."""
        ...

    def failed(self, error: MetadataError) -> None:
        """The follower has ended: nothing will be handed over any more."""
        ...


class Follower:
    def __init__(
        self,
        clients: Clients,
        topic: str,
        path: str,
        receiver: Receiver,
        end_offset: Callable[[float], int],
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        """`end_offset`: the end of what is committed, asked for within so many seconds."""
        self._clients = clients
        self._path = path
        self._receiver = receiver
        self._end_offset = end_offset
        self._clock_s = clock_s
        self._start = TopicPartition(topic, 0, OFFSET_BEGINNING)
        self._consumer = clients.consumer(
            enable_partition_eof=True,
            fetch_wait_max_ms=FETCH_WAIT_MS,
            fetch_error_backoff_ms=50,
            reconnect_backoff_ms=10,
        )
        self._closing = False
        self._gathered: Steps = []
        self._position = 0
        # While all is read from the beginning: what was read, the end that must be reached (None: not
        # known yet), and the transactions that somebody expects.
        self._loading: Spaces | None = None
        self._loaded_end: int | None = None
        self._marks: set[bytes] = set()
        self._last_version = 0
        # When the end was last seen or asked for, by the wall clock: a suspended machine is cut off too.
        self._contact_s = clock_s()
        self._probe_s = 0.0
        self._thread = threading.Thread(
            target=self._run, name="penstock-kafka-follower", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Waits for the thread, unless this is the thread."""
        self._closing = True
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._load()
            while not self._closing:
                self._read_some()
        except MetadataError as error:
            self._receiver.failed(error)
        except Exception as error:  # whoever waits must hear of it
            logger.exception("the follower of the metadata failed")
            self._receiver.failed(MetadataUnavailable(self._path, f"the follower failed: {error}"))
        finally:
            self._consumer.close()

    def _load(self) -> None:
        """From the beginning."""
        self._loading, self._loaded_end = Spaces(), None
        self._gathered, self._position = [], 0
        self._marks.clear()
        self._contact_s = self._clock_s()
        self._consumer.assign([self._start])

    def _read_some(self) -> None:
        if self._loaded_end is None and self._loading is not None:
            self._ask_for_end()
        first = self._consumer.poll(POLL_S)
        if self._clock_s() - self._contact_s > STALE_S:
            logger.warning("%s: cut off for long, all is read again", self._path)
            self._load()
            return
        if first is None:
            self._probe()
        else:
            heard = False
            for message in (first, *self._consumer.consume(READ_AT_ONCE, 0)):
                # That nobody is there is told by messages too.
                heard = heard or _is_of_kafka(message)
                if not self._take(message):
                    return
            if heard:
                self._contact()
        self._finish_loading()
        self._receiver.applied_up_to(self._position if self._loading is None else 0)

    def _ask_for_end(self) -> None:
        try:
            self._loaded_end = self._end_offset(ASK_S)
        except KafkaException as error:
            logger.debug("%s: %s", self._path, error)

    def _contact(self) -> None:
        self._contact_s = self._clock_s()
        self._probe_s = time.monotonic() + PROBE_S

    def _probe(self) -> None:
        """Nothing came: is there nothing, or nobody?"""
        now_s = time.monotonic()
        if self._clients.trouble.last:
            self._probe_s = min(self._probe_s, now_s + PROBE_IN_TROUBLE_S)
        if now_s < self._probe_s:
            return
        trouble = self._clients.trouble
        asked_s = trouble.now_s()
        try:
            end = self._end_offset(ASK_S)
        except KafkaException as error:
            trouble.note(error.args[0])
            self._probe_s = now_s + PROBE_IN_TROUBLE_S
            return
        trouble.answered(asked_s)
        if end <= self._position:
            self._contact()

    def _take(self, message: Message) -> bool:
        """False when everything is read again from the beginning."""
        error = message.error()
        if error is None:
            self._take_record(message)
            return True
        offset = message.offset()
        if error.code() == KafkaError._PARTITION_EOF and offset is not None:
            # Also behind what is no record: the ends of transactions.
            self._position = max(self._position, offset)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            logger.warning("%s: the topic was made anew, all is read again", self._path)
            self._load()
            return False
        else:  # librdkafka goes on by itself
            self._clients.trouble.note(error)
        return True

    def _take_record(self, message: Message) -> None:
        offset, key = message.offset(), message.key()
        assert offset is not None
        # A committed transaction ends with its mark, and Kafka's own marker right behind it, which is shown
        # to nobody. That the topic ends there would be known with the next fetch only.
        self._position = offset + (2 if key == MARK_KEY else 1)
        try:
            if key == MARK_KEY:
                self._take_mark(read_mark(_as_bytes(message.value())))
            else:
                space, name = split_key(_as_bytes(key) or b"")
                version = version_of(_header_list(message))
                step = RecordChange(name, _as_bytes(message.value()), version)
                self._gathered.append((space, step))
        except NotOurs as error:
            logger.warning("%s: offset %d was left out: %s", self._path, offset, error)

    def _take_mark(self, mark: Mark) -> None:
        if mark.format > FORMAT:
            raise MetadataTooNew(self._path, mark.format, FORMAT)
        steps, self._gathered = self._gathered, []
        # A topic that was made anew begins with small versions; those that were given stay given.
        self._last_version = max(self._last_version, mark.last_version)
        if self._loading is None:
            self._receiver.apply(steps, mark)
        else:
            self._loading.apply_unshared(steps)
            if self._receiver.expects(mark.transaction):
                self._marks.add(mark.transaction)

    def _finish_loading(self) -> None:
        end = self._loaded_end
        if self._loading is None or end is None or self._position < end:
            return
        spaces, self._loading = self._loading, None
        self._receiver.replace(spaces, self._last_version, self._marks)
        self._marks = set()


def _header_list(message: Message) -> Headers:
    """The types of the library allow a dictionary too."""
    headers = message.headers() or []
    return list(headers.items()) if isinstance(headers, dict) else headers


def _as_bytes(value: bytes | str | None) -> bytes | None:
    """Messages have bytes; the types of the library allow texts too."""
    return value.encode() if isinstance(value, str) else value


def _is_of_kafka(message: Message) -> bool:
    error = message.error()
    return error is None or error.code() == KafkaError._PARTITION_EOF
