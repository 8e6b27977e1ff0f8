"""What can go wrong in the log.

LogError (a PenstockError)
 +-- CorruptLog          stored bytes are damaged: file, position, offsets concerned
 |    +-- StagingDamaged  ... those of a transaction, not yet in the log
 |    +-- KeyUnknown      ... or intact, and encrypted with an unknown key
 +-- KeyMissing, KeyWrong  a key of encryption that a topic needs is not given, or another one is
 +-- OffsetOutOfRange    the offset was never written or is no longer kept
 +-- AppendFailed        nothing was stored, the caller may try again
 |    +-- StorageFull    ... because there is no space
 |    +-- Overloaded     ... because too much is waiting to be written
 +-- OutcomeUnknown      stored or not: a flush failed, so the content of the disk is unknown
 +-- PartitionStopped    no appends until restart, after a failed fdatasync
 +-- TooLarge            a record or batch over its limit
 +-- FencedProducer      a newer epoch of the same producer exists
 +-- SequenceGap         an idempotent producer left out a batch
 |    +-- StagingGap     ... or a task of a transaction
 +-- TooManyGroups       this server reads for as many groups as it may
 +-- UnknownTopic, UnknownPartition, TopicExists, InvalidSettings
 |    +-- TopicReplaced   there is another topic of this name now
 +-- RecordConflict      a record of the metadata is not as the change expects it
 +-- TransactionNotOpen  committed, or never begun
 +-- CommitUnfinished    decided, will appear; something keeps it from being finished now
 |    +-- CommitWaits     ... another transaction, which must be finished first
 +-- DecisionUnknown     decided or not: the commit of the metadata failed
 +-- LogClosed           the log is shutting down
InvalidTopicName         a PenstockError and ValueError: the name breaks a rule
    InvalidGroupName     the same of a group
"""

import errno
from typing import ClassVar, Final

from penstock.errors import PenstockError

# What a file system says when there is no room, for all or for this user.
NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
# Enough of a bad name to recognise it in a log line.
MAX_CHARS_SHOWN: Final = 60


class LogError(PenstockError):
    """Anything the log refuses or fails to do."""


class StoreTrouble(LogError):
    """What the log is kept in, outside of this process, cannot be reached or refuses something."""


class GroupInUse(LogError):
    """Its offsets can be changed only by those who read in it, outside of this server."""


class TooManyGroups(LogError):
    """This server reads for as many groups as it may."""

    group: str
    limit: int
    setting: str

    line = (
        "this server cannot read for group {group!r} too: it reads for {limit} groups, the most that "
        "{setting} allows"
    )


class CorruptLog(LogError):
    path: str
    position: int
    reason: str
    first_offset: int
    next_offset: int

    def __str__(self) -> str:
        return (
            f"log damaged: {self.path} at byte {self.position}: {self.reason}; "
            f"offsets {self.first_offset} to {self.next_offset - 1} cannot be read"
        )


class StagingDamaged(CorruptLog):
    """`rolled_back`: the transaction was given up for it, and left nothing behind."""

    first_offset: int = 0
    next_offset: int = 0
    rolled_back: bool = False

    def after_rollback(self) -> "StagingDamaged":
        return StagingDamaged(self.path, self.position, self.reason, rolled_back=True)

    def __str__(self) -> str:
        return f"staged records are damaged: {self.path} at byte {self.position}: {self.reason}"


class KeyUnknown(CorruptLog):
    def __str__(self) -> str:
        return f"{self.path} at byte {self.position}: {self.reason}"


class KeyMissing(LogError):
    topic: str
    key_id: int

    line = (
        "topic {topic!r} is encrypted with key {key_id}, which is not among encryption.keys; "
        "add it, and keep it until no topic needs it"
    )


class KeyWrong(LogError):
    topic: str
    key_id: int

    line = (
        "topic {topic!r} is encrypted with another key than the one that encryption.keys has as "
        "number {key_id}; give the right one"
    )


class OffsetOutOfRange(LogError):
    offset: int
    earliest: int
    latest: int

    line = "offset out of range: requested {offset}, earliest {earliest}, latest {latest}"


class AppendFailed(LogError):
    path: str
    reason: str

    line = "append to {path} failed, nothing was stored: {reason}"


class StorageFull(AppendFailed):
    """No space is left; appends work again once there is."""


class Overloaded(AppendFailed):
    """More waits to be written than the log may hold in memory."""


class OutcomeUnknown(LogError):
    path: str
    reason: str

    line = "outcome unknown: flushing {path} failed: {reason}"


class PartitionStopped(LogError):
    path: str
    reason: str

    line = "{path} takes no appends until restart: {reason}"


class TooLarge(LogError):
    what: str
    size: int
    limit: int

    line = "{what} of {size} bytes is over the limit of {limit}"


class FencedProducer(LogError):
    producer_id: int
    epoch: int
    current_epoch: int

    line = "producer {producer_id} epoch {epoch} is fenced by epoch {current_epoch}"


class SequenceGap(LogError):
    producer_id: int
    sequence: int
    expected: int

    def __str__(self) -> str:
        hint = "" if self.expected else ": who is not known begins a new epoch with 0"
        return (
            f"producer {self.producer_id} sent sequence {self.sequence},"
            f" expected {self.expected}{hint}"
        )


class StagingGap(SequenceGap):
    def __init__(self, name: str, task: int, sequence: int, expected: int) -> None:
        super().__init__(task, sequence, expected)
        self.args = (name, task, sequence, expected)
        self.name = name
        self.task = task

    def __str__(self) -> str:
        text = f"task {self.task} sent batch {self.sequence}, expected {self.expected}"
        if not self.expected:
            text += "; the transaction may have timed out and been begun anew"
        return text


class UnknownTopic(LogError):
    topic: str

    line = "no topic named {topic!r}"


class TopicReplaced(UnknownTopic):
    line = (
        "topic {topic!r} was deleted and made anew since records were staged for it; abort "
        "the transaction and write it again"
    )


class UnknownPartition(LogError):
    topic: str
    partition: int

    line = "topic {topic!r} has no partition {partition}"


class TopicExists(LogError):
    topic: str

    line = "topic {topic!r} already exists"


class InvalidSettings(LogError):
    setting: str
    value: object
    reason: str

    line = "{setting} = {value!r}: {reason}"


class LogClosed(LogError):
    line = "the log is shutting down"


def closed_error(deleted_topic: str | None) -> LogError:
    """Why a closed partition takes nothing: its topic was deleted, or else the log is shutting down."""
    return LogClosed() if deleted_topic is None else UnknownTopic(deleted_topic)


class CommitUnfinished(LogError):
    """Repeating the commit is right, writing the records again is wrong: they would be there twice."""

    reason: str

    line = "the commit is decided and will appear, but cannot be finished yet: {reason}"


class CommitWaits(CommitUnfinished):
    def __init__(self, other_id: int) -> None:
        super().__init__(f"it waits for transaction {other_id}, which holds partitions of it")
        self.args = (other_id,)
        self.other_id = other_id


class DecisionUnknown(LogError):
    reason: str

    line = "the decision may be written or not: {reason}; repeat the commit"


class TransactionNotOpen(LogError):
    name: str
    state: str

    line = "transaction {name!r} is {state}"


class RecordConflict(LogError):
    """Nothing of the change has happened. Versions as in records.py: 0 means that there is none."""

    space: str
    name: str
    expected: int
    found: int

    line = "record {name!r} of {space} was changed meanwhile; try again"


class InvalidTopicName(PenstockError, ValueError):
    """A name that breaks a rule; `reason` says which."""

    kind: ClassVar[str] = "topic"

    name: str
    reason: str

    def __str__(self) -> str:
        shown = ascii(self.name[:MAX_CHARS_SHOWN])
        if len(self.name) > MAX_CHARS_SHOWN:
            shown += "..."
        return f"{self.kind} name {shown} is not allowed: {self.reason}"


class InvalidGroupName(InvalidTopicName):
    """Groups are named by the rules of topics."""

    kind: ClassVar[str] = "group"
