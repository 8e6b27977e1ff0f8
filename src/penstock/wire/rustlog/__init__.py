"""RustLog: bytes to requests and replies, in its binary and its JSON dialect."""
