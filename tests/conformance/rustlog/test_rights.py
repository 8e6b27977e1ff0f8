"""RustLog over a socket: who may do what. The protocol has no login; its connections act as one user.

No row of the table: the existing broker lets everybody do everything. On a server of this machine alone,
without keys, Penstock does so too; the other tests rely on it.
"""

from pathlib import Path

import pytest
from conformance.rustlog.peer import (
    BINARY,
    JSON,
    Dialect,
    Talker,
    both,
    live,
    text,
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Has the topics "open" and "secret" and two keys, so that strangers may do nothing."""
    with live(tmp_path) as running, Talker(running.port()) as peer:
        for topic in ("open", "secret"):
            assert peer.ask(JSON.create(topic, 1)) == JSON.created()
            assert peer.ask(JSON.produce(topic, 0, [b"x"])) == JSON.produced(0, 1)
        running.server.broker.access.create_key("looker", "reader", ("open*",))
        running.server.broker.access.create_key("scribe", "writer", ("open*",))
    return tmp_path


def refused(dialect: Dialect, code: int, prefix: str, words: str) -> bytes:
    return dialect.error(code, (prefix if dialect is BINARY else "") + words)


@both
def test_strangers_may_do_nothing_where_keys_are(data: Path, dialect: Dialect) -> None:
    with live(data) as running, Talker(running.port()) as peer:
        for topic in ("open", "no-topic"):  # nobody learns which of them exists

            def words(doing: str, right: str, topic: str = topic) -> str:
                on = f"that needs the right {right} on the topic"
                return f"anonymous may not {doing} topic '{topic}': {on}"

            for request, expected in (
                (
                    dialect.produce(topic, 0, [b"x"]),
                    refused(dialect, 500, "Failed to write record: ", words("publish to", "write")),
                ),
                (
                    dialect.produce(topic, 0, []),
                    refused(dialect, 500, "Failed to write record: ", words("publish to", "write")),
                ),
                (
                    dialect.fetch(topic, 0, 0, 9),
                    refused(dialect, 4, "Failed to fetch records: ", words("read", "read")),
                ),
                (
                    dialect.fetch(topic, 0, 0, 9, "g"),
                    refused(dialect, 4, "Failed to fetch records: ", words("read", "read")),
                ),
                (
                    dialect.commit("g", topic, 0, 1),
                    refused(
                        dialect,
                        5,
                        "Failed to commit offset: ",
                        words("commit offsets of groups on", "read"),
                    ),
                ),
                (
                    dialect.offset_fetch("g", topic, 0),
                    refused(dialect, 500, "", words("read offsets of groups on", "read")),
                ),
                (
                    dialect.create(topic, 1),
                    refused(dialect, 500, "Failed to create topic: ", words("create", "write")),
                ),
            ):
                assert peer.ask(request) == expected
        assert peer.ask(dialect.list_topics()) == dialect.topics([])
        assert peer.ask(dialect.ping()) == dialect.pong()


def test_a_description_is_as_if_the_topic_did_not_exist(data: Path) -> None:
    with live(data) as running, Talker(running.port()) as peer:
        words = "DescribeTopic failed: Topic 'open' not found"
        assert peer.ask(b"\x07" + text("open")) == BINARY.error(13, words)
        words = "DescribePartition failed: Partition 0 not found in topic 'open'"
        assert peer.ask(b"\x08" + text("open") + bytes(4)) == BINARY.error(14, words)


@both
def test_a_reader_reads_its_topics(data: Path, dialect: Dialect) -> None:
    with live(data, rustlog__principal="looker") as running, Talker(running.port()) as peer:
        assert peer.ask(dialect.fetch("open", 0, 0, 9)) == dialect.fetched(0, [b"x"], 1)
        assert peer.ask(dialect.commit("g", "open", 0, 1)) == dialect.committed()
        assert peer.ask(dialect.list_topics()) == dialect.topics([("open", 1)])
        assert b"may not read" in peer.ask(dialect.fetch("secret", 0, 0, 9))
        assert b"may not publish" in peer.ask(dialect.produce("open", 0, [b"y"]))


@both
def test_a_writer_writes_and_makes_its_topics(data: Path, dialect: Dialect) -> None:
    settings = {"rustlog__principal": "scribe", "rustlog__auto_create": "true"}
    with live(data, **settings) as running, Talker(running.port()) as peer:
        assert peer.ask(dialect.produce("open", 0, [b"y"])) == dialect.produced(1, 1)
        assert peer.ask(dialect.create("open-2", 1)) == dialect.created()
        assert peer.ask(dialect.produce("open-3", 0, [b"y"])) == dialect.produced(0, 1)
        assert b"may not read" in peer.ask(dialect.fetch("open", 0, 0, 9))
        assert b"may not publish" in peer.ask(dialect.produce("secret-2", 0, [b"y"]))
        assert running.call(lambda: running.server.engine.topic("secret-2")) is None


@both
def test_a_revoked_key_stops_working_on_an_open_connection(data: Path, dialect: Dialect) -> None:
    with live(data, rustlog__principal="looker") as running, Talker(running.port()) as peer:
        assert peer.ask(dialect.fetch("open", 0, 0, 9)) == dialect.fetched(0, [b"x"], 1)
        running.server.broker.access.revoke_key("looker")
        assert b"the key 'looker' is revoked" in peer.ask(dialect.fetch("open", 0, 0, 9))


@both
def test_strangers_cannot_make_the_server_hold_large_frames(data: Path, dialect: Dialect) -> None:
    """They would need no right for it: the beginning of a frame is held until its end is there."""
    length = 9 * 1024 * 1024
    words = {
        "J": f"max frame size exceeded: {length} bytes (max: 65536)",
        "B": f"Frame error: frame too large: {length} bytes (max: 65536)",
    }
    first = dialect.produce("open", 0, [b"x"])[:1]
    with live(data) as running:
        for _ in range(20):
            with Talker(running.port()) as peer:
                peer.send(length.to_bytes(4, "big") + first)
                assert peer.hear() == dialect.error(1, words[dialect.name])
                assert peer.at_end()
        with Talker(running.port()) as peer:
            topic = "t" * (65_536 - len(dialect.produce("", 0, [])))
            peer.send(len(dialect.produce(topic, 0, [])).to_bytes(4, "big"))
            peer.send(dialect.produce(topic, 0, []))
            assert b"may not publish" in peer.hear(), "up to the limit they get the usual answer"
        assert running.call(lambda: running.server.hub.held_bytes) == 0


def test_who_has_a_right_may_send_large_frames(data: Path) -> None:
    with live(data, rustlog__principal="scribe") as running, Talker(running.port()) as peer:
        assert peer.ask(BINARY.produce("open", 0, [bytes(1 << 20)])) == BINARY.produced(1, 1)
