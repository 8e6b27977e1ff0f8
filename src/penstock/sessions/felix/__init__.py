"""Felix conversations: a session for each stream, event streams, and the connection around them."""
