"""Files and what lies in them: segments, indexes, the cache, reading. No offsets are given here."""
