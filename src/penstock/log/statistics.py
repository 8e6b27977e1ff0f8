"""The counters of an engine, for metrics and lists: values only, read on demand."""

from collections.abc import Mapping
from dataclasses import dataclass, field


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
    # Segments that were encrypted with another key, or for the first time, and their bytes.
    reencrypted_segments: int = 0
    reencrypted_bytes: int = 0
    # Topics whose files may be encrypted with a key, by the id of the key.
    topics_by_key: Mapping[int, int] = field(default_factory=dict)
    # Read since start to find damage.
    scrubbed_bytes: int = 0
