"""The options of the embedded engine, with their defaults."""

from dataclasses import dataclass

from penstock.log.engine import Keys
from penstock.log.partitions.commit import DEFAULT_THREADS
from penstock.log.settings import TopicSettings
from penstock.log.storage.cache import DEFAULT_CACHE_BYTES
from penstock.log.storage.handles import DEFAULT_OPEN_FILES
from penstock.log.transactions.transactions import DEFAULT_MEMORY_US

# Accepted and not yet durable, over all partitions and doors: past it appends are refused, however many
# partitions share it. Four times what one partition may have queued.
MAX_UNDURABLE_BYTES = 512 * 1024 * 1024
# Retention and compaction need not be prompt: segments are large and rarely become due.
MAINTENANCE_INTERVAL_S = 60.0


@dataclass(frozen=True, slots=True)
class EngineOptions:
    cache_bytes: int = DEFAULT_CACHE_BYTES
    open_files: int = DEFAULT_OPEN_FILES
    commit_threads: int = DEFAULT_THREADS
    defaults: TopicSettings = TopicSettings()
    maintenance_interval_s: float = MAINTENANCE_INTERVAL_S
    undurable_bytes: int = MAX_UNDURABLE_BYTES
    # How long names of committed transactions are remembered; None: for ever.
    transaction_memory_us: int | None = DEFAULT_MEMORY_US
    # In this time every sealed segment is read once, to find damage; None: never.
    scrub_period_us: int | None = None
    # Of encryption.
    keys: Keys = Keys()
