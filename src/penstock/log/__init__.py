"""The durable log: batches, segments, partitions, group commit, recovery, retention, compaction.

Knows no wire protocol and gives messages no meaning; the broker does that.
"""
