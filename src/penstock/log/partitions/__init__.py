"""One partition: appending, group commit, flushing, sealing, recovery, cleaning."""
