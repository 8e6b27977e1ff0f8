"""The table of errors, and that every error of the log has its place in it."""

import errno
from collections.abc import Iterator

import pytest

from penstock.broker.errors import BY_NUMBER, MAPPING, BrokerError, Code, from_exception
from penstock.errors import PenstockError
from penstock.log import errors as log
from penstock.log import metadata_errors as metadata
from penstock.log.batch.format import BatchError
from penstock.log.errors import InvalidTopicName

PATH = "/var/lib/penstock/topics/orders/0"

# One of each, with the code it must have and what its text must say.
CASES: list[tuple[Exception, Code, str]] = [
    (log.LogError(), Code.INTERNAL, "internal error"),
    (log.StoreTrouble("Kafka cannot be reached"), Code.STORAGE_ERROR, "Kafka cannot be reached"),
    (log.GroupInUse("group 'g' has members"), Code.INVALID_REQUEST, "group 'g' has members"),
    (
        log.TooManyGroups("g", 5, "kafka.group_clients"),
        Code.LIMIT_REACHED,
        "for 5 groups, the most",
    ),
    (log.CorruptLog(PATH, 7, "checksum", 5, 9), Code.CORRUPT_LOG, "offsets 5 to 8"),
    (log.KeyUnknown(PATH, 7, "encrypted with key 3", 5, 9), Code.CORRUPT_LOG, "with key 3"),
    (log.KeyMissing("orders", 3), Code.INTERNAL, "internal error"),
    (log.KeyWrong("orders", 3), Code.INTERNAL, "internal error"),
    (log.StagingDamaged(PATH, 7, "checksum"), Code.CORRUPT_LOG, "checksum; see the log"),
    (log.StagingDamaged(PATH, 7, "x", rolled_back=True), Code.CORRUPT_LOG, "x; rolled back, write"),
    (log.OffsetOutOfRange(9, 2, 5), Code.OFFSET_OUT_OF_RANGE, "requested 9, earliest 2, latest 5"),
    (log.AppendFailed(PATH, "I/O error"), Code.STORAGE_ERROR, "nothing was stored: I/O error"),
    (log.StorageFull(PATH, "No space left"), Code.STORAGE_FULL, "nothing was stored: No space"),
    (log.Overloaded(PATH, "9 bytes wait"), Code.OVERLOADED, "nothing was stored: 9 bytes wait"),
    (log.OutcomeUnknown(PATH, "I/O error"), Code.OUTCOME_UNKNOWN, "outcome unknown"),
    (log.PartitionStopped(PATH, "flush failed"), Code.PARTITION_STOPPED, "until restart"),
    (log.TooLarge("record", 9, 5), Code.RECORD_TOO_LARGE, "record of 9 bytes"),
    (log.FencedProducer(1, 2, 3), Code.FENCED_PRODUCER, "producer 1 epoch 2"),
    (log.SequenceGap(1, 7, 5), Code.SEQUENCE_GAP, "sequence 7, expected 5"),
    (log.StagingGap("q/1", 3, 7, 5), Code.SEQUENCE_GAP, "task 3 sent batch 7, expected 5"),
    (log.UnknownTopic("orders"), Code.UNKNOWN_TOPIC, "'orders'"),
    (log.TopicReplaced("orders"), Code.UNKNOWN_TOPIC, "'orders' was deleted and made anew"),
    (log.UnknownPartition("orders", 4), Code.UNKNOWN_PARTITION, "partition 4"),
    (log.TopicExists("orders"), Code.TOPIC_EXISTS, "'orders' already exists"),
    (log.InvalidSettings("partitions", 0, "must be 1"), Code.INVALID_SETTINGS, "must be 1"),
    (
        log.CommitUnfinished("No space"),
        Code.COMMIT_UNFINISHED,
        "will appear, it cannot be finished",
    ),
    (log.CommitWaits(3), Code.COMMIT_UNFINISHED, "decided and will appear; it waits for another"),
    (log.DecisionUnknown("disk full"), Code.OUTCOME_UNKNOWN, "may be written or not: disk full"),
    (log.TransactionNotOpen("q/1", "unknown"), Code.TRANSACTION_NOT_OPEN, "'q/1' is unknown"),
    (log.RecordConflict("keys", "a", 1, 2), Code.OVERLOADED, "try again"),
    (log.LogClosed(), Code.SHUTTING_DOWN, "shutting down"),
    (metadata.MetadataError(PATH), Code.STORAGE_ERROR, "storage failed"),
    (metadata.MetadataTooNew(PATH, 9, 1), Code.STORAGE_ERROR, "storage failed"),
    (metadata.MetadataMissing(PATH, 3, "data"), Code.STORAGE_ERROR, "storage failed"),
    (metadata.MetadataDamaged(PATH, "no database"), Code.CORRUPT_LOG, "damaged"),
    (metadata.MetadataUnavailable(PATH, "locked"), Code.STORAGE_ERROR, "storage failed"),
    (metadata.MetadataWriteFailed(PATH, "disk full", 3), Code.STORAGE_ERROR, "disk full"),
    (metadata.MetadataOverloaded(PATH, 9), Code.OVERLOADED, "try again later"),
    (metadata.MetadataClosed(PATH), Code.SHUTTING_DOWN, "shutting down"),
    (InvalidTopicName("", "it is empty"), Code.INVALID_TOPIC_NAME, "it is empty"),
    (BatchError("no records"), Code.INVALID_REQUEST, "no records"),
    (OSError(errno.ENOSPC, "No space left on device", PATH), Code.STORAGE_FULL, "No space left"),
    (OSError(errno.EDQUOT, "Quota exceeded", PATH), Code.STORAGE_FULL, "Quota exceeded"),
    (OSError(errno.EIO, "Input/output error", PATH), Code.STORAGE_ERROR, "Input/output error"),
    (OSError("odd"), Code.STORAGE_ERROR, "storage failed"),
    (TimeoutError("not done after 5 s"), Code.OUTCOME_UNKNOWN, "stored or not"),
    (metadata.MetadataRefused(PATH, f"no such table at {PATH}"), Code.INTERNAL, "internal error"),
    (ZeroDivisionError(PATH), Code.INTERNAL, "internal error"),
]


@pytest.mark.parametrize(
    ("error", "code", "text"), CASES, ids=[type(error).__name__ for error, _, _ in CASES]
)
def test_every_error_has_an_entry(error: Exception, code: Code, text: str) -> None:
    found = from_exception(error)
    assert found.code is code
    assert text in str(found)
    assert found.__cause__ is error
    assert PATH not in str(found), "a peer must not learn paths of this machine"
    assert "\n" not in str(found)


def descendants(kind: type[PenstockError]) -> Iterator[type[PenstockError]]:
    for child in kind.__subclasses__():
        yield child
        yield from descendants(child)


@pytest.mark.parametrize("root", [log.LogError, metadata.MetadataError])
def test_every_class_of_the_log_is_mapped_and_tried(root: type[PenstockError]) -> None:
    # Those of another engine derive from one of these, which tells what peers are told.
    ours = {
        kind
        for kind in descendants(root)
        if kind.__module__.startswith("penstock.")
        and not kind.__module__.startswith("penstock.kafka")
    }
    assert len(ours) > 5
    assert ours - set(MAPPING) == set()
    assert ours - {type(error) for error, _, _ in CASES} == set()


def test_a_new_class_has_the_code_of_its_parent() -> None:
    class NearlyFull(log.StorageFull):
        """Not in the table."""

    assert from_exception(NearlyFull(PATH, "soon")).code is Code.STORAGE_FULL


def test_a_broker_error_stays_itself() -> None:
    error = BrokerError(Code.NOT_AUTHORIZED)
    assert from_exception(error) is error


def test_numbers_are_unique_and_dense() -> None:
    assert sorted(code.number for code in Code) == list(range(1, len(Code) + 1))
    assert all(BY_NUMBER[code.number] is code for code in Code)


def test_numbers_that_clients_know_never_change() -> None:
    fixed = {1: "UNKNOWN_TOPIC", 6: "OFFSET_OUT_OF_RANGE", 9: "NOT_AUTHORIZED", 20: "INTERNAL"}
    assert {number: BY_NUMBER[number].name for number in fixed} == fixed


@pytest.mark.parametrize("code", Code)
def test_every_text_is_one_line_without_a_full_stop(code: Code) -> None:
    assert code.text and "\n" not in code.text and not code.text.endswith(".")


def test_the_text_is_the_detail_or_that_of_the_code() -> None:
    assert str(BrokerError(Code.UNKNOWN_TOPIC)) == "no such topic"
    assert str(BrokerError(Code.UNKNOWN_TOPIC, "no topic named 'a'")) == "no topic named 'a'"


def test_what_may_be_tried_again() -> None:
    assert {code.name for code in Code if code.retriable} == {
        "STORAGE_FULL",
        "STORAGE_ERROR",
        "OUTCOME_UNKNOWN",
        "COMMIT_UNFINISHED",
        "OVERLOADED",
        "SHUTTING_DOWN",
        "OUTSIDE_UNAVAILABLE",
    }
