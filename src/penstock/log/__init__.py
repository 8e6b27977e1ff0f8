"""The durable log: batches, segments, partitions, group commit, recovery, retention, compaction.

Nothing here knows a wire protocol or what a message means; that is the broker's room.
"""
