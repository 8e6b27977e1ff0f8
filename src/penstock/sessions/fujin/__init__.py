"""Fujin conversations: a session for each stream, and the connection around them."""
