"""Transactions: staged batches, the commit, and finishing it after a crash."""
