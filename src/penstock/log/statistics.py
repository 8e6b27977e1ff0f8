"""The counters of an engine, for metrics and lists: values only, read on demand."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """What happened to records since start."""

    appended_batches: int = 0
    appended_records: int = 0
    appended_bytes: int = 0
    repeated_batches: int = 0
    failed_appends: int = 0
    flushes: int = 0
    cut_bytes: int = 0
    damages: int = 0


@dataclass(frozen=True, slots=True)
class Statistics:
    """An engine as a whole. The sums of offsets are over all partitions."""

    log: Counters
    topics: int
    partitions: int
    partitions_stopped: int
    start_offsets: int
    end_offsets: int
    # Decided transactions that could not be finished yet, and how often such were tried again.
    transactions_unfinished: int
    transaction_retries: int
    # Durable writes of the metadata, and the changes in them.
    metadata_commits: int
    metadata_changes: int
    # Accepted and not yet complete, over all partitions and doors.
    undurable_bytes: int
    # How far the wall clock jumped ahead, while the jump is not trusted.
    clock_step_us: int = 0
    # Read since start to find damage.
    scrubbed_bytes: int = 0
