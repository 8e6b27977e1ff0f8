"""What the rows of Fujin share."""

from kit.live_server import LiveServer

SETTINGS = {
    "fujin.routes": (
        '{ pub = { topic = "t" }, work = { topic = "t", group = "billing" }, gone = { topic = "x" },'
        ' first = { topic = "t", group = "first", start = "earliest" },'
        ' again = { topic = "t", group = "again" },'
        ' shared = { topic = "v", group = "shared" }, shared2 = { topic = "v", group = "second" } }'
    ),
    "fujin.ping_interval": "100 ms",
    "fujin.fetch_max_wait": "100 ms",
}
BEGIN, COMMIT, ROLLBACK = (bytes([opcode, 0, 0, 0, 9]) for opcode in (4, 5, 6))
DISCONNECT = b"\x0a"
CONNECTED = b"\1\0"
LOST = b"\1\0\0\0\x0dmsg not found"


def end(live: LiveServer, topic: str) -> int:
    """The offset behind the last message that can be seen."""
    return live.call(lambda: live.server.broker.offsets(topic, 0))[1]
