"""A protocol on QUIC for tests: sends back what comes, and does on command what a session can do."""
