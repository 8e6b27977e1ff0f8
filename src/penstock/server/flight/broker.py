"""The broker as the Flight process sees it: requests over the link, from any thread, and their answers.

The messages are in link.py; calls.py answers them. Knows nothing of Arrow.
"""

import socket
import threading
from collections.abc import Callable
from typing import Final

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation
from penstock.broker.errors import BY_NUMBER, BrokerError, Code
from penstock.log.batch.encryption import Keyring
from penstock.server.flight.link import (
    ANSWER_TIME_S,
    Answer,
    Ask,
    AtTime,
    Begin,
    CommitGroup,
    Committed,
    Describe,
    Failure,
    Fence,
    Fetch,
    Fetched,
    Finish,
    FlightKeys,
    GetSchema,
    LinkClosed,
    LoggedIn,
    Login,
    Message,
    Offsets,
    Question,
    Reply,
    SchemaFacts,
    Stop,
    TopicFacts,
    TopicList,
    Topics,
    TransactionState,
    receive,
    send,
    to_child_decoder,
)

# A commit appends all that was staged: gigabytes take a while.
COMMIT_TIME_S: Final = 600.0
# Appends on their way, all streams together: what the server holds for Flight until it is durable.
MAX_UNANSWERED_BYTES: Final = 64 * 1024 * 1024


class _Waiting:
    __slots__ = ("answer", "ready", "size")

    def __init__(self, size: int) -> None:
        self.ready = threading.Event()
        self.answer: Answer | None = None
        self.size = size


class Asked:
    """A pending request; `result` waits for the answer."""

    def __init__(self, waiting: _Waiting, give_up: Callable[[], None]) -> None:
        self._waiting = waiting
        self._give_up = give_up

    @property
    def done(self) -> bool:
        return self._waiting.ready.is_set()

    def result(self, timeout_s: float = ANSWER_TIME_S) -> Answer:
        """Raises BrokerError: the server's, or ours when no answer comes."""
        if not self._waiting.ready.wait(timeout_s):
            self._give_up()
            text = f"the server did not answer within {timeout_s:g} s"
            raise BrokerError(Code.OUTCOME_UNKNOWN, text)
        answer = self._waiting.answer
        if answer is None:
            raise BrokerError(Code.SHUTTING_DOWN)
        if isinstance(answer, Failure):
            raise BrokerError(BY_NUMBER.get(answer.number, Code.INTERNAL), answer.text)
        return answer


class BrokerLink:
    """Sends requests from any thread. One thread must run `listen`."""

    def __init__(self, link: socket.socket) -> None:
        self.stopping = False
        self._link = link
        self._lock = threading.Condition()
        self._sending = threading.Lock()
        self._waiting: dict[int, _Waiting] = {}
        self._number = 0
        self._unanswered_bytes = 0
        # Opens what the files of encrypted topics hold.
        self.keyring = Keyring()

    def use_keys(self, message: FlightKeys) -> None:
        self.keyring.replace(dict(message.keys), 0)

    def tell(self, message: Message) -> None:
        with self._sending:
            send(self._link, message)

    def listen(self) -> None:
        """Receives answers until the server sends a stop or closes the link."""
        try:
            while True:
                content, _ = receive(self._link)
                message = to_child_decoder.decode(content)
                if isinstance(message, Stop):
                    return
                if isinstance(message, FlightKeys):
                    self.use_keys(message)
                if isinstance(message, Reply):
                    self._settle(message.number, message.answer)
        except (LinkClosed, OSError):
            self.close()

    def close(self) -> None:
        """Completes all pending requests with an error: the server is gone."""
        with self._lock:
            self.stopping = True
            numbers = list(self._waiting)
        for number in numbers:
            self._settle(number, None)

    def _settle(self, number: int, answer: Answer | None) -> None:
        with self._lock:
            waiting = self._waiting.pop(number, None)
            if waiting is None:
                return
            self._unanswered_bytes -= waiting.size
            self._lock.notify_all()
        waiting.answer = answer
        waiting.ready.set()

    def ask_later(self, question: Question, body: bytes = b"") -> Asked:
        """Sends the request; waits only while too many bytes are pending."""
        size = len(body)
        with self._lock:
            fits = self._lock.wait_for(lambda: self._fits(size), ANSWER_TIME_S)
            if not fits:
                raise BrokerError(Code.OVERLOADED)
            if self.stopping:
                raise BrokerError(Code.SHUTTING_DOWN)
            self._number += 1
            number = self._number
            waiting = _Waiting(size)
            self._waiting[number] = waiting
            self._unanswered_bytes += size
        try:
            with self._sending:
                send(self._link, Ask(number, question), body)
        except OSError:
            self._settle(number, None)
        return Asked(waiting, lambda: self._settle(number, None))

    def _fits(self, size: int) -> bool:
        used = self._unanswered_bytes
        return self.stopping or not size or not used or used + size <= MAX_UNANSWERED_BYTES

    # Each question with the kind of its answer.

    def login(self, key: str | None, address: str) -> Principal:
        answer = self.ask_later(Login(key, address)).result()
        assert isinstance(answer, LoggedIn)
        return answer.who

    def topics(self, who: Principal) -> tuple[TopicFacts, ...]:
        answer = self.ask_later(Topics(who)).result()
        assert isinstance(answer, TopicList)
        return answer.topics

    def describe(
        self,
        who: Principal,
        topic: str,
        operation: Operation,
        *,
        create: bool = False,
        partitions: tuple[int, ...] | None = None,
        created_us: int | None = None,
        end: int | None = None,
    ) -> TopicFacts:
        question = Describe(who, topic, operation.name, create, partitions, created_us, end)
        answer = self.ask_later(question).result()
        assert isinstance(answer, TopicFacts)
        return answer

    def offsets_at(
        self, who: Principal, topic: str, partitions: tuple[int, ...], time_us: int
    ) -> tuple[int, ...]:
        answer = self.ask_later(AtTime(who, topic, partitions, time_us)).result()
        assert isinstance(answer, Offsets)
        return tuple(offset for offset in answer.offsets if offset is not None)

    def schema(self, who: Principal, name: str, version: int) -> SchemaFacts:
        answer = self.ask_later(GetSchema(who, name, version)).result()
        assert isinstance(answer, SchemaFacts)
        return answer

    def fetch(
        self, who: Principal, topic: str, partition: int, offset: int, max_bytes: int
    ) -> Fetched:
        answer = self.ask_later(Fetch(who, topic, partition, offset, max_bytes)).result()
        assert isinstance(answer, Fetched)
        return answer

    def commit_group(
        self,
        who: Principal,
        group: str,
        offsets: tuple[tuple[str, int, int], ...],
        keep_s: int | None,
    ) -> None:
        self.ask_later(CommitGroup(who, group, offsets, keep_s)).result()

    def committed(self, who: Principal, group: str, topic: str) -> tuple[int | None, ...]:
        answer = self.ask_later(Committed(who, group, topic)).result()
        assert isinstance(answer, Offsets)
        return answer.offsets

    def begin(
        self, who: Principal, name: str, timeout_us: int, fence: Fence | None
    ) -> TransactionState:
        answer = self.ask_later(Begin(who, name, timeout_us, fence)).result()
        assert isinstance(answer, TransactionState)
        return answer

    def finish(
        self,
        who: Principal,
        name: str,
        tasks: tuple[tuple[int, int | None], ...] | None,
        rows: int | None = None,
        fence: Fence | None = None,
    ) -> None:
        self.ask_later(Finish(who, name, tasks, rows, fence)).result(COMMIT_TIME_S)
