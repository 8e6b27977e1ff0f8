"""The wire between the server and its Flight process: messages over a socket pair, and the asking end.

Both ends are ours and of the same version. Who answers is flight_calls.py, who starts the process is
flight_host.py. Knows nothing of Arrow.
"""

import socket
import threading
from collections.abc import Callable
from struct import Struct
from typing import Final

import msgspec

from penstock.broker.access import Principal
from penstock.broker.errors import BY_NUMBER, BrokerError, Code
from penstock.log.settings import TopicSettings

# A frame, little-endian:
#    0 u32 length of the message      4 u32 length of the body
#    8 message (msgpack of one of the structs below), then the body as it is: a batch to append
_PREFIX: Final = Struct("<II")
# The answer to any question is there in milliseconds, after a flush at the latest. Longer means that
# the disk hangs; the peer of the Flight process must hear something.
ANSWER_TIME_S: Final = 60.0
# A commit appends all that was staged: gigabytes take a while.
COMMIT_TIME_S: Final = 600.0
# Appends on their way, all streams together: what the server holds for Flight until it is durable.
MAX_UNANSWERED_BYTES: Final = 64 * 1024 * 1024


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Everything that goes over the link."""


# --- questions -----------------------------------------------------------------------------------


class Login(Message, frozen=True):
    """Who is it? Without a key: whoever needs none."""

    key: str | None


class Topics(Message, frozen=True):
    """All topics that `who` may read."""

    who: Principal


class Describe(Message, frozen=True):
    who: Principal
    topic: str
    action: str  # "read" or "write": what it is wanted for
    create: bool = False


class AtTime(Message, frozen=True):
    """The first offset at this time or later of each partition that is named."""

    who: Principal
    topic: str
    partitions: tuple[int, ...]
    time_us: int


class Append(Message, frozen=True):
    """The body of the frame is the body of the batch. `producer`: id, epoch, sequence."""

    who: Principal
    topic: str
    partition: int
    count: int
    flags: int
    producer: tuple[int, int, int] | None = None


class CommitGroup(Message, frozen=True):
    who: Principal
    group: str
    offsets: tuple[tuple[str, int, int], ...]  # topic, partition, offset


class Committed(Message, frozen=True):
    who: Principal
    group: str
    topic: str


class Begin(Message, frozen=True):
    """Opens a transaction, or gives it more time."""

    who: Principal
    name: str
    timeout_us: int


class Stage(Message, frozen=True):
    """Like Append, but nobody sees it before the commit."""

    who: Principal
    name: str
    task: int
    topic: str
    partition: int
    count: int
    flags: int


class Finish(Message, frozen=True):
    """Commits what these tasks staged; without tasks (None) gives it all up."""

    who: Principal
    name: str
    tasks: tuple[int, ...] | None


# --- answers -------------------------------------------------------------------------------------


class Failure(Message, frozen=True):
    """An entry of broker/errors.py."""

    number: int
    text: str


class LoggedIn(Message, frozen=True):
    who: Principal


class PartitionFacts(msgspec.Struct, frozen=True, array_like=True):
    """`latest` is the offset after the last one that readers may see."""

    directory: str
    earliest: int
    latest: int
    size_bytes: int


class TopicFacts(Message, frozen=True):
    """`created_us` tells a topic from an older one of the same name."""

    name: str
    created_us: int
    settings: TopicSettings
    partitions: tuple[PartitionFacts, ...]


class TopicList(Message, frozen=True):
    topics: tuple[TopicFacts, ...]


class Offsets(Message, frozen=True):
    """By partition. None where there is none."""

    offsets: tuple[int | None, ...]


class Appended(Message, frozen=True):
    """Durable. `repeated`: it was there already; then the offset may be unknown, -1."""

    base_offset: int
    repeated: bool


class TransactionState(Message, frozen=True):
    """open or committed."""

    state: str


class Done(Message, frozen=True):
    """As was asked."""


# --- frames --------------------------------------------------------------------------------------

Question = (
    Login | Topics | Describe | AtTime | Append | CommitGroup | Committed | Begin | Stage | Finish
)
Answer = Failure | LoggedIn | TopicFacts | TopicList | Offsets | Appended | TransactionState | Done


class Ask(Message, frozen=True):
    number: int
    question: Question


class Started(Message, frozen=True):
    """The Flight process listens."""


class Refused(Message, frozen=True):
    """It cannot, and ends."""

    reason: str


class Reply(Message, frozen=True):
    number: int
    answer: Answer


class Start(Message, frozen=True):
    """The first message to the Flight process. The three files are those of the TLS settings."""

    host: str
    port: int
    certificate: str | None
    key: str | None
    client_ca: str | None
    log_level: int


class Stop(Message, frozen=True):
    """Finish what goes on, take nothing new, end."""


FromChild = Ask | Started | Refused
ToChild = Start | Reply | Stop

_encoder: Final = msgspec.msgpack.Encoder()
from_child_decoder: Final = msgspec.msgpack.Decoder(FromChild)
to_child_decoder: Final = msgspec.msgpack.Decoder(ToChild)


class LinkClosed(Exception):
    """The other end is gone."""


def send(link: socket.socket, message: Message, body: bytes = b"") -> None:
    """Blocks until the other end has taken it. Raises OSError."""
    content = _encoder.encode(message)
    link.sendall(_PREFIX.pack(len(content), len(body)) + content)
    if body:
        link.sendall(body)


def receive(link: socket.socket) -> tuple[bytes, bytes]:
    """One message, not yet decoded, and its body. Raises LinkClosed or OSError."""
    length, body_length = _PREFIX.unpack(_exactly(link, _PREFIX.size))
    content = _exactly(link, length)
    return content, _exactly(link, body_length) if body_length else b""


def _exactly(link: socket.socket, size: int) -> bytes:
    # The kernel fills one bytes object as a whole: a large body is copied once, without the GIL.
    data = link.recv(size, socket.MSG_WAITALL)
    while len(data) < size:
        more = link.recv(size - len(data), socket.MSG_WAITALL)
        if not more:
            raise LinkClosed
        data += more
    return data


# --- the asking end ------------------------------------------------------------------------------


class _Waiting:
    __slots__ = ("answer", "ready", "size")

    def __init__(self, size: int) -> None:
        self.ready = threading.Event()
        self.answer: Answer | None = None
        self.size = size


class Asked:
    """A question on its way; `result` waits for the answer."""

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
    """Asks from any thread. One thread must run `listen`."""

    def __init__(self, link: socket.socket) -> None:
        self.stopping = False
        self._link = link
        self._lock = threading.Condition()
        self._sending = threading.Lock()
        self._waiting: dict[int, _Waiting] = {}
        self._number = 0
        self._unanswered_bytes = 0

    def tell(self, message: Message) -> None:
        with self._sending:
            send(self._link, message)

    def listen(self) -> None:
        """Takes answers until the server says stop or is gone."""
        try:
            while True:
                content, _ = receive(self._link)
                message = to_child_decoder.decode(content)
                if isinstance(message, Stop):
                    return
                if isinstance(message, Reply):
                    self._settle(message.number, message.answer)
        except (LinkClosed, OSError):
            self.close()

    def close(self) -> None:
        """Whoever still waits hears that the server is gone."""
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
        """Sends the question; waits only while too many bytes are on their way already."""
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

    def login(self, key: str | None) -> Principal:
        answer = self.ask_later(Login(key)).result()
        assert isinstance(answer, LoggedIn)
        return answer.who

    def topics(self, who: Principal) -> tuple[TopicFacts, ...]:
        answer = self.ask_later(Topics(who)).result()
        assert isinstance(answer, TopicList)
        return answer.topics

    def describe(
        self, who: Principal, topic: str, action: str = "read", *, create: bool = False
    ) -> TopicFacts:
        answer = self.ask_later(Describe(who, topic, action, create)).result()
        assert isinstance(answer, TopicFacts)
        return answer

    def offsets_at(
        self, who: Principal, topic: str, partitions: tuple[int, ...], time_us: int
    ) -> tuple[int, ...]:
        answer = self.ask_later(AtTime(who, topic, partitions, time_us)).result()
        assert isinstance(answer, Offsets)
        return tuple(offset for offset in answer.offsets if offset is not None)

    def commit_group(
        self, who: Principal, group: str, offsets: tuple[tuple[str, int, int], ...]
    ) -> None:
        self.ask_later(CommitGroup(who, group, offsets)).result()

    def committed(self, who: Principal, group: str, topic: str) -> tuple[int | None, ...]:
        answer = self.ask_later(Committed(who, group, topic)).result()
        assert isinstance(answer, Offsets)
        return answer.offsets

    def begin(self, who: Principal, name: str, timeout_us: int) -> str:
        answer = self.ask_later(Begin(who, name, timeout_us)).result()
        assert isinstance(answer, TransactionState)
        return answer.state

    def finish(self, who: Principal, name: str, tasks: tuple[int, ...] | None) -> None:
        self.ask_later(Finish(who, name, tasks)).result(COMMIT_TIME_S)
