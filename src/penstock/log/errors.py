"""What can go wrong in the log.

LogError (a PenstockError)
 +-- CorruptLog          stored bytes are damaged: file, position, offsets concerned
 |    +-- StagingDamaged  ... those of a transaction, not yet in the log
 |    +-- KeyUnknown      ... or whole, and encrypted with a key that nobody here has
 +-- OffsetOutOfRange    the offset was never written or is no longer kept
 +-- AppendFailed        nothing was stored, the caller may try again
 |    +-- StorageFull    ... because there is no space
 |    +-- Overloaded     ... because too much is waiting to be written
 +-- OutcomeUnknown      stored or not: the disk gave no answer that can be trusted
 +-- PartitionStopped    no appends until restart, after a failed fdatasync
 +-- TooLarge            a record or batch over its limit
 +-- FencedProducer      a newer epoch of the same producer exists
 +-- SequenceGap         an idempotent producer left out a batch
 |    +-- StagingGap     ... or a task of a transaction
 +-- UnknownTopic, UnknownPartition, TopicExists, InvalidSettings
 |    +-- TopicReplaced   there is another topic of this name now
 +-- RecordConflict      a record of the metadata is not as the change expects it
 +-- TransactionNotOpen  committed, or never begun
 +-- CommitUnfinished    decided, will appear; something keeps it from being finished now
 |    +-- CommitWaits     ... another transaction, which must be finished first
 +-- DecisionUnknown     decided or not: the metadata gave no answer that can be trusted
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


class CorruptLog(LogError):
    def __init__(
        self, path: str, position: int, reason: str, first_offset: int, next_offset: int
    ) -> None:
        super().__init__(path, position, reason, first_offset, next_offset)
        self.path = path
        self.position = position
        self.reason = reason
        self.first_offset = first_offset
        self.next_offset = next_offset

    def __str__(self) -> str:
        return (
            f"log damaged: {self.path} at byte {self.position}: {self.reason}; "
            f"offsets {self.first_offset} to {self.next_offset - 1} cannot be read"
        )


class StagingDamaged(CorruptLog):
    """`rolled_back`: the transaction was given up for it, and left nothing behind."""

    def __init__(self, path: str, position: int, reason: str, *, rolled_back: bool = False) -> None:
        super().__init__(path, position, reason, 0, 0)
        self.rolled_back = rolled_back

    def after_rollback(self) -> "StagingDamaged":
        return StagingDamaged(self.path, self.position, self.reason, rolled_back=True)

    def __str__(self) -> str:
        return f"staged records are damaged: {self.path} at byte {self.position}: {self.reason}"


class KeyUnknown(CorruptLog):
    def __str__(self) -> str:
        return f"{self.path} at byte {self.position}: {self.reason}"


class OffsetOutOfRange(LogError):
    def __init__(self, offset: int, earliest: int, latest: int) -> None:
        super().__init__(offset, earliest, latest)
        self.offset = offset
        self.earliest = earliest
        self.latest = latest

    def __str__(self) -> str:
        return (
            f"offset out of range: requested {self.offset}, "
            f"earliest {self.earliest}, latest {self.latest}"
        )


class AppendFailed(LogError):
    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"append to {self.path} failed, nothing was stored: {self.reason}"


class StorageFull(AppendFailed):
    """No space is left; appends work again once there is."""


class Overloaded(AppendFailed):
    """More waits to be written than the log may hold in memory."""


class OutcomeUnknown(LogError):
    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"outcome unknown: flushing {self.path} failed: {self.reason}"


class PartitionStopped(LogError):
    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path} takes no appends until restart: {self.reason}"


class TooLarge(LogError):
    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(what, size, limit)
        self.what = what
        self.size = size
        self.limit = limit

    def __str__(self) -> str:
        return f"{self.what} of {self.size} bytes is over the limit of {self.limit}"


class FencedProducer(LogError):
    def __init__(self, producer_id: int, epoch: int, current_epoch: int) -> None:
        super().__init__(producer_id, epoch, current_epoch)
        self.producer_id = producer_id
        self.epoch = epoch
        self.current_epoch = current_epoch

    def __str__(self) -> str:
        return (
            f"producer {self.producer_id} epoch {self.epoch} is fenced "
            f"by epoch {self.current_epoch}"
        )


class SequenceGap(LogError):
    def __init__(self, producer_id: int, sequence: int, expected: int) -> None:
        super().__init__(producer_id, sequence, expected)
        self.producer_id = producer_id
        self.sequence = sequence
        self.expected = expected

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
    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def __str__(self) -> str:
        return f"no topic named {self.topic!r}"


class TopicReplaced(UnknownTopic):
    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} was deleted and made anew since records were staged for it; "
            "abort the transaction and write it again"
        )


class UnknownPartition(LogError):
    def __init__(self, topic: str, partition: int) -> None:
        super().__init__(topic, partition)
        self.topic = topic
        self.partition = partition

    def __str__(self) -> str:
        return f"topic {self.topic!r} has no partition {self.partition}"


class TopicExists(LogError):
    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def __str__(self) -> str:
        return f"topic {self.topic!r} already exists"


class InvalidSettings(LogError):
    def __init__(self, setting: str, value: object, reason: str) -> None:
        super().__init__(setting, value, reason)
        self.setting = setting
        self.value = value
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.setting} = {self.value!r}: {self.reason}"


class LogClosed(LogError):
    def __str__(self) -> str:
        return "the log is shutting down"


def closed_error(deleted_topic: str | None) -> LogError:
    """Why a closed partition takes nothing: its topic was deleted, or else the log is shutting down."""
    return LogClosed() if deleted_topic is None else UnknownTopic(deleted_topic)


class CommitUnfinished(LogError):
    """Repeating the commit is right, writing the records again is wrong: they would be there twice."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the commit is decided and will appear, but cannot be finished yet: {self.reason}"


class CommitWaits(CommitUnfinished):
    def __init__(self, other_id: int) -> None:
        super().__init__(f"it waits for transaction {other_id}, which holds partitions of it")
        self.args = (other_id,)
        self.other_id = other_id


class DecisionUnknown(LogError):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the decision may be written or not: {self.reason}; repeat the commit"


class TransactionNotOpen(LogError):
    def __init__(self, name: str, state: str) -> None:
        super().__init__(name, state)
        self.name = name
        self.state = state

    def __str__(self) -> str:
        return f"transaction {self.name!r} is {self.state}"


class RecordConflict(LogError):
    """Nothing of the change has happened. Versions as in records.py: 0 means that there is none."""

    def __init__(self, space: str, name: str, expected: int, found: int) -> None:
        super().__init__(space, name, expected, found)
        self.space = space
        self.name = name
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        return f"record {self.name!r} of {self.space} was changed meanwhile; try again"


class InvalidTopicName(PenstockError, ValueError):
    """A name that breaks a rule; `reason` says which."""

    kind: ClassVar[str] = "topic"

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        shown = ascii(self.name[:MAX_CHARS_SHOWN])
        if len(self.name) > MAX_CHARS_SHOWN:
            shown += "..."
        return f"{self.kind} name {shown} is not allowed: {self.reason}"


class InvalidGroupName(InvalidTopicName):
    """Groups are named by the rules of topics."""

    kind: ClassVar[str] = "group"
