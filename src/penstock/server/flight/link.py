"""The wire between the server and its Flight process: messages, and how they go over a socket pair.

Both ends have the same version. broker.py sends the requests, calls.py answers them, host.py starts the
process. Knows nothing of Arrow.
"""

import socket
from struct import Struct
from typing import Final, Literal

import msgspec

from penstock.broker.access.access import Principal
from penstock.log.engine import Keys
from penstock.log.settings import TopicSettings

# A frame, little-endian:
#    0 u32 length of the message      4 u32 length of the body
#    8 message (msgpack of one of the structs below), then the body as it is: batches to append
_PREFIX: Final = Struct("<II")

# An answer takes milliseconds, or one flush at most. A longer wait means that the disk hangs, and the peer
# of the Flight process gets an error.
ANSWER_TIME_S: Final = 60.0


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Everything that goes over the link."""


# --- requests ------------------------------------------------------------------------------------


class Login(Message, frozen=True):
    """Asks for the principal of a key; without a key, for that of peers without a login. `address` is that
    of the peer."""

    key: str | None
    address: str = ""


class Topics(Message, frozen=True):
    """All topics that `who` may read."""

    who: Principal


class Describe(Message, frozen=True):
    who: Principal
    topic: str
    operation: str  # of the table of rights: what it is wanted for
    create: bool = False
    # Of which partitions; None: of all, and there may be thousands.
    partitions: tuple[int, ...] | None = None
    # What the peer was told of it, perhaps by another server: which topic of this name it is, and an
    # offset up to which the first of the partitions has records.
    created_us: int | None = None
    end: int | None = None


class AtTime(Message, frozen=True):
    """The first offset at this time or later of each partition that is named."""

    who: Principal
    topic: str
    partitions: tuple[int, ...]
    time_us: int


class GetSchema(Message, frozen=True):
    """A schema of the registry; version 0 is the latest."""

    who: Principal
    name: str
    version: int = 0


class Fetch(Message, frozen=True):
    """Records, for a process that cannot read the files of the partition."""

    who: Principal
    topic: str
    partition: int
    offset: int
    max_bytes: int


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
    # The group only shows progress: it is forgotten so long after its last commit.
    keep_s: int | None = None


class Committed(Message, frozen=True):
    who: Principal
    group: str
    topic: str


class Fence(msgspec.Struct, frozen=True, array_like=True):
    """Which run of a series of transactions it belongs to: earlier runs are refused."""

    series: str
    run: str


class Begin(Message, frozen=True):
    """Opens a transaction, or gives it more time."""

    who: Principal
    name: str
    timeout_us: int
    fence: Fence | None = None


class StagePart(msgspec.Struct, frozen=True, array_like=True):
    """One batch of the log, and how much of the frame's body is its body."""

    topic: str
    partition: int
    count: int
    flags: int
    length: int


class Stage(Message, frozen=True):
    """Like Append, but not visible before the commit. All parts or none.

    With `sequence` it is stored once, and only after the one with the preceding number.
    """

    who: Principal
    name: str
    task: int
    parts: tuple[StagePart, ...]
    sequence: int | None = None


class Finish(Message, frozen=True):
    """Commits what these tasks staged; without tasks (None) gives it all up.

    Each task with the number of batches that it has staged, None when that is not known. `rows` is
    remembered with the name.
    """

    who: Principal
    name: str
    tasks: tuple[tuple[int, int | None], ...] | None
    rows: int | None = None
    fence: Fence | None = None


# --- answers -------------------------------------------------------------------------------------


class Failure(Message, frozen=True):
    """An entry of broker/errors.py."""

    number: int
    text: str


class LoggedIn(Message, frozen=True):
    who: Principal


class PartitionFacts(msgspec.Struct, frozen=True, array_like=True):
    """`latest` is the offset after the last one that readers may see. `directory`: where its files can be
    read, if the engine has files."""

    directory: str | None
    earliest: int
    latest: int
    size_bytes: int


class TopicFacts(Message, frozen=True):
    """`created_us` tells a topic from an older one of the same name. `partitions`: all of them, or those
    that were asked for, in that order. `servers`: where else it is served, see describing.py."""

    name: str
    created_us: int
    settings: TopicSettings
    partitions: tuple[PartitionFacts, ...]
    servers: tuple[str, ...] = ()


class TopicList(Message, frozen=True):
    topics: tuple[TopicFacts, ...]


class Offsets(Message, frozen=True):
    """By partition. None where there is none."""

    offsets: tuple[int | None, ...]


class SchemaFacts(Message, frozen=True):
    """One version of a schema. `versions`: all that there are, each with the time of its registration.
    `descriptors`: what protoc made of a Protobuf schema, a FileDescriptorSet with its own file last."""

    name: str
    version: int
    kind: str
    definition: bytes
    versions: tuple[tuple[int, int], ...]
    descriptors: bytes = b""


class FetchedRows(msgspec.Struct, frozen=True, array_like=True):
    """Rows of one batch of the log: its body, unpacked, and which of its rows are meant (from, to)."""

    base_offset: int
    count: int
    flags: int
    first_time_us: int
    max_time_us: int
    ranges: list[tuple[int, int]]
    body: bytes


class Fetched(Message, frozen=True):
    rows: tuple[FetchedRows, ...]
    next_offset: int
    end_offset: int


class Appended(Message, frozen=True):
    """Durable. `repeated`: it was there already; then its offset may be forgotten, -1."""

    base_offset: int
    repeated: bool


class Staged(Message, frozen=True):
    """Durable. `repeated`: it was there already."""

    repeated: bool


class TransactionState(Message, frozen=True):
    """open or committed. `rows`: of a committed one, if its commit has told. `servers` as in TopicFacts:
    where else it can be staged and committed."""

    state: str
    rows: int | None = None
    servers: tuple[str, ...] = ()


class Done(Message, frozen=True):
    """The request was carried out."""


# --- frames --------------------------------------------------------------------------------------

Question = (
    Login
    | Topics
    | Describe
    | AtTime
    | GetSchema
    | Fetch
    | Append
    | CommitGroup
    | Committed
    | Begin
    | Stage
    | Finish
)
Answer = (
    Failure
    | LoggedIn
    | TopicFacts
    | TopicList
    | Offsets
    | SchemaFacts
    | Fetched
    | Appended
    | Staged
    | TransactionState
    | Done
)


class Ask(Message, frozen=True):
    number: int
    question: Question


class Started(Message, frozen=True):
    """The Flight process listens."""


class Refused(Message, frozen=True):
    """It cannot, and ends."""

    reason: str


class StreamCounts(msgspec.Struct, frozen=True, array_like=True):
    """Streams of one kind: now, and since the start of the process."""

    open: int = 0
    refused: int = 0
    rows: int = 0
    size_bytes: int = 0


class ConnectionCounts(msgspec.Struct, frozen=True, array_like=True):
    """Connections now, and those cut for a limit since the start of the process."""

    open: int = 0
    cut: int = 0


class Traffic(Message, frozen=True):
    """For the metrics of the server."""

    reads: StreamCounts = StreamCounts()
    writes: StreamCounts = StreamCounts()
    connections: ConnectionCounts = ConnectionCounts()


class Reply(Message, frozen=True):
    number: int
    answer: Answer


class FlightLimits(msgspec.Struct, frozen=True, array_like=True):
    """Of the settings: streams at the same time, bytes of one record batch that comes in, connections."""

    reads: int
    writes: int
    batch_bytes: int
    connections: int = 10_000
    connections_per_address: int = 1_000
    login_time_s: float = 10.0


class Start(Message, frozen=True):
    """The first message to the Flight process. The three files are those of the TLS settings.
    `run_base_us`: as Engine.run_base_us, for what has expired."""

    host: str
    port: int
    certificate: str | None
    key: str | None
    client_ca: str | None
    log_level: int
    limits: FlightLimits
    log_format: Literal["text", "json"] = "text"
    run_base_us: int | None = None


class FlightKeys(Message, frozen=True):
    """The keys of encryption, for the files that the Flight process reads itself. The second message to it,
    and again whenever they change: over the socket pair alone, where nobody else listens."""

    keys: tuple[tuple[int, bytes], ...] = ()

    @classmethod
    def of(cls, keys: Keys) -> "FlightKeys":
        return cls(tuple(keys.by_id.items()))

    def __repr__(self) -> str:
        return f"FlightKeys({[key_id for key_id, _ in self.keys]})"


class Stop(Message, frozen=True):
    """Finish open streams, accept no new ones, end."""


FromChild = Ask | Started | Refused | Traffic
ToChild = Start | FlightKeys | Reply | Stop

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
