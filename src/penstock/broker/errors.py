"""All errors of the broker as one table, and the way from the log's errors to it.

A session maps a code to the code and words of its protocol; HTTP shows number, name and text. The
table knows no protocol and no HTTP status. A number is never given to another error.

BrokerError (a PenstockError)     a code of the table, and what happened this time
"""

from collections.abc import Callable
from enum import Enum, unique
from typing import Any, Final, Self

from penstock.errors import PenstockError
from penstock.log import errors as log
from penstock.log import metadata_errors as metadata
from penstock.log.batch.format import BatchError
from penstock.log.errors import InvalidGroupName, InvalidTopicName


@unique
class Code(Enum):
    """Number, whether the same request may succeed later, text when there is nothing to add."""

    UNKNOWN_TOPIC = (1, False, "no such topic")
    UNKNOWN_PARTITION = (2, False, "no such partition")
    TOPIC_EXISTS = (3, False, "the topic already exists")
    INVALID_TOPIC_NAME = (4, False, "the topic name is not allowed")
    INVALID_SETTINGS = (5, False, "a setting is not allowed")
    OFFSET_OUT_OF_RANGE = (6, False, "the offset was never written or is no longer kept")
    RECORD_TOO_LARGE = (7, False, "the record is too large")
    NOT_AUTHENTICATED = (8, False, "log in first, or with another key")
    NOT_AUTHORIZED = (9, False, "the key does not allow this")
    STORAGE_FULL = (10, True, "no space is left, nothing was stored")
    STORAGE_ERROR = (11, True, "the storage failed, nothing was stored")
    OUTCOME_UNKNOWN = (12, True, "stored or not: the storage gave no answer that can be trusted")
    PARTITION_STOPPED = (13, False, "the partition takes no records until the server restarts")
    OVERLOADED = (14, True, "too much waits to be written, try again later")
    SHUTTING_DOWN = (15, True, "the server is shutting down")
    CORRUPT_LOG = (16, False, "stored data is damaged and cannot be read")
    FENCED_PRODUCER = (17, False, "a newer producer has taken over")
    SEQUENCE_GAP = (18, False, "the producer left out a batch")
    INVALID_REQUEST = (19, False, "the request is not valid")
    INTERNAL = (20, False, "internal error, see the log of the server")
    UNKNOWN_GROUP = (21, False, "no such group")
    UNKNOWN_KEY = (22, False, "no such API key")
    KEY_EXISTS = (23, False, "an API key of this name already exists")
    TRANSACTION_NOT_OPEN = (24, False, "the transaction is not open")
    COMMIT_UNFINISHED = (25, True, "the commit is decided and will appear")
    LIMIT_REACHED = (26, False, "a limit of the server is reached")
    LAST_ADMIN_KEY = (27, False, "without this key nobody could manage keys")
    UNKNOWN_USER = (28, False, "no such user")
    USER_EXISTS = (29, False, "a user of this name already exists")
    UNKNOWN_DEAD_LETTER = (36, False, "message not found")
    REPLAYED_ALREADY = (37, False, "the dead letter was replayed already")
    UNKNOWN_SCHEMA = (30, False, "no such schema")
    INVALID_SCHEMA = (31, False, "the schema is not valid")
    INCOMPATIBLE_SCHEMA = (32, False, "the schema does not fit its older versions")
    SCHEMA_VIOLATION = (33, False, "the message does not fit the schema of the topic")
    SCHEMA_IN_USE = (34, False, "a topic is bound to the schema")
    SCHEMAS_NOT_INSTALLED = (35, False, "schemas need the extra: pip install 'penstock[schemas]'")
    UNKNOWN_DELAYED_MESSAGE = (38, False, "no such delayed message, or it is delivered already")
    UNKNOWN_TENANT = (39, False, "no such tenant, namespace or cache")
    TENANT_EXISTS = (40, False, "the tenant, namespace or cache already exists")
    TENANT_IN_USE = (41, False, "something is in the tenant or namespace")

    # Of routes to other brokers.
    OUTSIDE_UNAVAILABLE = (42, True, "the broker that the route leads to does not answer")
    OUTSIDE_REFUSED = (43, False, "the broker that the route leads to refused it")

    def __init__(self, number: int, retriable: bool, text: str) -> None:
        self.number = number
        self.retriable = retriable
        self.text = text


BY_NUMBER: Final[dict[int, Code]] = {code.number: code for code in Code}


class BrokerError(PenstockError):
    """One failed call. `detail`, when given, is a whole line that says what happened this time."""

    code: Code
    detail: str = ""

    def __str__(self) -> str:
        return self.detail or self.code.text

    def caused_by(self, error: BaseException) -> Self:
        """Itself, with the cause that the server's log shall show."""
        self.__cause__ = error
        return self


class RecordTooLarge(BrokerError):
    """A record of the publish is over the limit of its topic."""

    def __init__(self, limit: int) -> None:
        super().__init__(Code.RECORD_TOO_LARGE, f"a record may have {limit} bytes at most")
        self.args = (limit,)
        self.limit = limit


def from_exception(error: BaseException) -> BrokerError:
    """The entry for any error, with the error itself as its cause.

    The text may go to a peer, so it names no file of this machine; the cause does. An unexpected
    error becomes INTERNAL without a detail: its text is not meant for peers.
    """
    if isinstance(error, BrokerError):
        return error
    for kind in type(error).__mro__:
        if kind in MAPPING:
            code, describe = MAPPING[kind]
            return BrokerError(code, describe(error)).caused_by(error)
    if isinstance(error, OSError):
        return _from_os_error(error)
    return BrokerError(Code.INTERNAL).caused_by(error)


def _from_os_error(error: OSError) -> BrokerError:
    if isinstance(error, TimeoutError):  # of Change.result: the change may still happen
        return BrokerError(Code.OUTCOME_UNKNOWN).caused_by(error)
    full = error.errno in log.NO_SPACE
    code = Code.STORAGE_FULL if full else Code.STORAGE_ERROR
    return BrokerError(code, error.strerror or "").caused_by(error)


def _damaged(error: log.CorruptLog) -> str:
    """With the name of the file alone: enough for the operator, and no path for peers."""
    name = error.path.rpartition("/")[2]
    return (
        f"offsets {error.first_offset} to {error.next_offset - 1} cannot be read: {error.reason}"
        f" ({name} at byte {error.position})"
    )


def _staging_damaged(error: log.StagingDamaged) -> str:
    advice = "rolled back, write it again" if error.rolled_back else "see the log of the server"
    return f"what the transaction has staged is damaged: {error.reason}; {advice}"


def _waits(error: log.CommitWaits) -> str:
    return "the commit is decided and will appear; it waits for another one"


def _unfinished(error: log.CommitUnfinished) -> str:
    return (
        f"the commit is decided and will appear, it cannot be finished yet: {error.reason};"
        " do not write it again"
    )


def _conflict(error: log.RecordConflict) -> str:
    return "somebody else changed the same thing at this moment; try again"


def _not_appended(error: log.AppendFailed) -> str:
    return f"nothing was stored: {error.reason}"


def _unknown(error: log.OutcomeUnknown) -> str:
    return f"outcome unknown, the flush failed: {error.reason}"


def _stopped(error: log.PartitionStopped) -> str:
    return f"the partition takes no records until restart: {error.reason}"


def _not_written(error: metadata.MetadataWriteFailed) -> str:
    return f"the change was not written: {error.reason}"


def _without_detail(error: object) -> str:
    return ""


# The nearest class of an error's ancestors decides. The functions get exactly that class, which
# the type of a dictionary cannot say.
MAPPING: Final[dict[type[BaseException], tuple[Code, Callable[[Any], str]]]] = {
    log.LogError: (Code.INTERNAL, _without_detail),
    log.StoreTrouble: (Code.STORAGE_ERROR, str),
    log.GroupInUse: (Code.INVALID_REQUEST, str),
    log.TooManyGroups: (Code.LIMIT_REACHED, str),
    log.CorruptLog: (Code.CORRUPT_LOG, _damaged),
    log.KeyUnknown: (Code.CORRUPT_LOG, _damaged),
    # Of a start, or of a SIGHUP: no peer ever asked for it.
    log.KeyMissing: (Code.INTERNAL, _without_detail),
    log.KeyWrong: (Code.INTERNAL, _without_detail),
    log.StagingDamaged: (Code.CORRUPT_LOG, _staging_damaged),
    log.OffsetOutOfRange: (Code.OFFSET_OUT_OF_RANGE, str),
    log.AppendFailed: (Code.STORAGE_ERROR, _not_appended),
    log.StorageFull: (Code.STORAGE_FULL, _not_appended),
    log.Overloaded: (Code.OVERLOADED, _not_appended),
    log.OutcomeUnknown: (Code.OUTCOME_UNKNOWN, _unknown),
    log.PartitionStopped: (Code.PARTITION_STOPPED, _stopped),
    log.TooLarge: (Code.RECORD_TOO_LARGE, str),
    log.FencedProducer: (Code.FENCED_PRODUCER, str),
    log.SequenceGap: (Code.SEQUENCE_GAP, str),
    log.StagingGap: (Code.SEQUENCE_GAP, str),
    log.UnknownTopic: (Code.UNKNOWN_TOPIC, str),
    log.TopicReplaced: (Code.UNKNOWN_TOPIC, str),
    log.UnknownPartition: (Code.UNKNOWN_PARTITION, str),
    log.TopicExists: (Code.TOPIC_EXISTS, str),
    log.InvalidSettings: (Code.INVALID_SETTINGS, str),
    log.CommitUnfinished: (Code.COMMIT_UNFINISHED, _unfinished),
    log.CommitWaits: (Code.COMMIT_UNFINISHED, _waits),
    log.DecisionUnknown: (Code.OUTCOME_UNKNOWN, str),
    log.RecordConflict: (Code.OVERLOADED, _conflict),
    log.TransactionNotOpen: (Code.TRANSACTION_NOT_OPEN, str),
    log.LogClosed: (Code.SHUTTING_DOWN, _without_detail),
    metadata.MetadataError: (Code.STORAGE_ERROR, _without_detail),
    metadata.MetadataTooNew: (Code.STORAGE_ERROR, _without_detail),
    metadata.MetadataMissing: (Code.STORAGE_ERROR, _without_detail),
    metadata.MetadataDamaged: (Code.CORRUPT_LOG, _without_detail),
    metadata.MetadataUnavailable: (Code.STORAGE_ERROR, _without_detail),
    metadata.MetadataWriteFailed: (Code.STORAGE_ERROR, _not_written),
    metadata.MetadataOverloaded: (Code.OVERLOADED, _without_detail),
    metadata.MetadataClosed: (Code.SHUTTING_DOWN, _without_detail),
    # The database's own text for a wrong statement of the engine: not meant for peers.
    metadata.MetadataRefused: (Code.INTERNAL, _without_detail),
    InvalidTopicName: (Code.INVALID_TOPIC_NAME, str),
    InvalidGroupName: (Code.INVALID_REQUEST, str),
    BatchError: (Code.INVALID_REQUEST, lambda error: f"not a batch: {error.reason}"),
}
