"""RustLog over a socket: consumer groups and offsets in both dialects, rows 31 to 45."""

import tracemalloc

import pytest
from conformance.rustlog.peer import (
    BINARY,
    DIALECTS,
    I64_MAX,
    JSON,
    U32_MAX,
    U64_MAX,
    Dialect,
    Talker,
    Topics,
    Way,
    both,
    every_way,
    live,
)

MAX_NAME_BYTES = 249


@pytest.fixture(scope="module")
def long_topic(topics: Topics) -> str:
    """300 records, each says its offset."""
    return topics.holding(*[b"%d" % number for number in range(300)])


def commit(peer: Talker, dialect: Dialect, topic: str, group: str, offset: int) -> None:
    assert peer.ask(dialect.commit(group, topic, 0, offset)) == dialect.committed()


# ---- Fetch with a group --------------------------------------------------------------------------


@pytest.mark.row("rustlog-31")
@both
def test_a_group_without_a_commit(peer: Talker, long_topic: str, dialect: Dialect) -> None:
    """J begins where it was asked to; B gives nothing, and next is 0."""
    reply = peer.ask(dialect.fetch(long_topic, 0, 100, 3, "fresh"))
    expected = {"J": JSON.fetched(100, [b"100"], 101), "B": BINARY.fetched(0, [], 0)}
    assert reply == expected[dialect.name]


@pytest.mark.row("rustlog-31", "rustlog-11")
@both
def test_a_group_at_a_missing_place(peer: Talker, long_topic: str, dialect: Dialect) -> None:
    """J looks the partition up first (section 2, item 15). In B the answer for a group without a
    commit comes before that, and hides it."""
    for topic, partition in (("no-topic", 0), (long_topic, 1), (long_topic, U32_MAX)):
        reply = peer.ask(dialect.fetch(topic, partition, 5, 9, "fresh"))
        expected = {"J": JSON.missing(topic, partition), "B": BINARY.fetched(0, [], 0)}
        assert reply == expected[dialect.name]


@pytest.mark.row("rustlog-32", "rustlog-33")
@pytest.mark.parametrize(
    ("requested", "in_json", "in_binary"), [(100, 150, 150), (150, 150, 150), (200, 200, 150)]
)
@both
def test_where_a_group_begins(
    peer: Talker, long_topic: str, dialect: Dialect, requested: int, in_json: int, in_binary: int
) -> None:
    """J: the higher of committed and requested (section 2, item 16). B ignores what is requested."""
    group = f"begin-{dialect.name}"
    commit(peer, dialect, long_topic, group, 150)
    start = in_json if dialect is JSON else in_binary
    reply = peer.ask(dialect.fetch(long_topic, 0, requested, 3, group))
    assert reply == dialect.fetched(start, [b"%d" % start], start + 1)


@pytest.mark.row("rustlog-34", "rustlog-41")
@pytest.mark.parametrize("offset", [301, 5_000, I64_MAX])
@both
def test_a_commit_beyond_the_log_end(
    peer: Talker, long_topic: str, dialect: Dialect, offset: int
) -> None:
    """It is stored. J then reads nothing and is told the log end; B is told what was committed."""
    group = f"beyond-{dialect.name}"
    commit(peer, dialect, long_topic, group, offset)
    assert peer.ask(dialect.offset_fetch(group, long_topic, 0)) == dialect.offset(offset)
    next_offset = 300 if dialect is JSON else offset
    reply = peer.ask(dialect.fetch(long_topic, 0, 0, 100, group))
    assert reply == dialect.fetched(0, [], next_offset)


@pytest.mark.row("rustlog-41")
@pytest.mark.parametrize("offset", [I64_MAX + 1, U64_MAX])
@both
def test_a_commit_that_no_log_can_reach_is_refused(
    peer: Talker, long_topic: str, dialect: Dialect, offset: int
) -> None:
    """The existing broker stores any u64. Offsets of our log end at 2^63 - 1: more is a mistake of the
    peer, and is told so."""
    words = f"offset {offset} is above the largest, {I64_MAX}"
    prefix = "Failed to commit offset: " if dialect is BINARY else ""
    reply = peer.ask(dialect.commit("far", long_topic, 0, offset))
    assert reply == dialect.error(5, prefix + words)
    assert peer.ask(dialect.offset_fetch("far", long_topic, 0)) == dialect.offset(None)


@pytest.mark.row("rustlog-35")
@both
def test_a_fetch_does_not_move_the_commit(peer: Talker, long_topic: str, dialect: Dialect) -> None:
    group = f"still-{dialect.name}"
    commit(peer, dialect, long_topic, group, 10)
    first = dialect.fetched(10, [b"10"], 11)
    for _ in range(3):
        assert peer.ask(dialect.fetch(long_topic, 0, 0, 2, group)) == first
    assert peer.ask(dialect.offset_fetch(group, long_topic, 0)) == dialect.offset(10)


@pytest.mark.row("rustlog-36", "rustlog-37")
@pytest.mark.parametrize("group", [None, ""])
@both
def test_no_group(peer: Talker, topics: Topics, dialect: Dialect, group: str | None) -> None:
    """Null, and an empty name (section 2, item 17), mean that nothing is tracked: nobody can commit
    for the empty name."""
    topic = topics.holding(b"a", b"b", b"c")
    assert peer.ask(dialect.commit("", topic, 0, 2)) != dialect.committed()
    assert peer.ask(dialect.fetch(topic, 0, 1, 1, group)) == dialect.fetched(1, [b"b"], 2)
    assert peer.ask(dialect.fetch("no-topic", 0, 1, 1, group)) == dialect.missing("no-topic", 0)


# ---- commit and ask ------------------------------------------------------------------------------


@pytest.mark.row("rustlog-38", "rustlog-40", "rustlog-42", "rustlog-43", "rustlog-58")
@every_way
@both
def test_the_last_commit_counts(peer: Talker, topics: Topics, dialect: Dialect, way: Way) -> None:
    topic = topics.new()
    ask = dialect.offset_fetch("g", topic, 0)
    requests = [ask]
    replies = [dialect.offset(None)]
    for offset in (5, 1_000, 3, 0):
        requests += [dialect.commit("g", topic, 0, offset), ask]
        replies += [dialect.committed(), dialect.offset(offset)]
    assert way(peer, requests) == replies


@pytest.mark.row("rustlog-39", "rustlog-43")
@pytest.mark.parametrize("place", [("never-made", 3), ("", 1)])
def test_a_json_commit_at_a_missing_place_fails(
    peer: Talker, topics: Topics, place: tuple[str, int]
) -> None:
    """Section 2, items 13 and 14. Nothing is kept, so no dialect sees an offset afterwards."""
    topic = place[0] or topics.new()
    reply = peer.ask(JSON.commit("g", topic, place[1], 4))
    assert reply == b'{"OffsetCommit":{"success":false}}'
    for dialect in DIALECTS:
        assert peer.ask(dialect.offset_fetch("g", topic, place[1])) == dialect.offset(None)


@pytest.mark.row("rustlog-39", "rustlog-43")
def test_a_binary_commit_at_a_missing_place_succeeds(peer: Talker, topics: Topics) -> None:
    """As the existing broker does and its tests want. The offset is there for B alone, and a Fetch of
    the group is then told that the place is missing."""
    topic = topics.new()
    for name, partition in (("not-made", 0), (topic, 7)):
        assert peer.ask(BINARY.offset_fetch("g", name, partition)) == BINARY.offset(None)
        assert peer.ask(BINARY.commit("g", name, partition, 4)) == BINARY.committed()
        assert peer.ask(BINARY.offset_fetch("g", name, partition)) == BINARY.offset(4)
        assert peer.ask(JSON.offset_fetch("g", name, partition)) == JSON.offset(None)
        reply = peer.ask(BINARY.fetch(name, partition, 0, 9, "g"))
        assert reply == BINARY.missing(name, partition)


@pytest.mark.row("rustlog-39")
def test_a_binary_commit_before_the_topic_counts_when_it_is_made(peer: Talker) -> None:
    assert peer.ask(BINARY.commit("early", "soon", 0, 1)) == BINARY.committed()
    assert peer.ask(BINARY.create("soon", 1)) == BINARY.created()
    assert peer.ask(BINARY.produce("soon", 0, [b"a", b"b"])) == BINARY.produced(0, 2)
    assert peer.ask(BINARY.fetch("soon", 0, 0, 9, "early")) == BINARY.fetched(1, [b"b"], 2)


@pytest.mark.row("rustlog-43")
@both
def test_nothing_was_committed(peer: Talker, topics: Topics, dialect: Dialect) -> None:
    topic = topics.new()
    for name, partition in ((topic, 0), (topic, 1), ("no-topic", 0), ("n" * 60_000, 0)):
        assert peer.ask(dialect.offset_fetch("nobody", name, partition)) == dialect.offset(None)


@pytest.mark.row("rustlog-44")
@both
def test_commits_are_apart(peer: Talker, topics: Topics, dialect: Dialect) -> None:
    one, two = topics.new(partitions=2), topics.new(partitions=2)
    places = [(g, t, p) for g in ("g", "h") for t in (one, two) for p in (0, 1)]
    for offset, place in enumerate(places, 10):
        assert peer.ask(dialect.commit(*place, offset)) == dialect.committed()
    for offset, place in enumerate(places, 10):
        assert peer.ask(dialect.offset_fetch(*place)) == dialect.offset(offset)


@pytest.mark.row("rustlog-44")
def test_the_dialects_share_their_groups(peer: Talker, topics: Topics) -> None:
    topic = topics.holding(b"a", b"b", b"c")
    commit(peer, JSON, topic, "shared", 1)
    assert peer.ask(BINARY.fetch(topic, 0, 0, 1, "shared")) == BINARY.fetched(1, [b"b"], 2)
    commit(peer, BINARY, topic, "shared", 2)
    assert peer.ask(JSON.fetch(topic, 0, 0, 1, "shared")) == JSON.fetched(2, [b"c"], 3)


@pytest.mark.row("rustlog-45")
@both
def test_commits_survive_a_restart(
    tmp_path_factory: pytest.TempPathFactory, dialect: Dialect
) -> None:
    """Document and broker lose them. Penstock keeps them (section 2, item 19): nothing that a client
    can see speaks against it."""
    data = tmp_path_factory.mktemp("kept")
    with live(data) as running:
        topic = Topics(running).holding(b"a", b"b")
        with Talker(running.port()) as peer:
            commit(peer, dialect, topic, "g", 1)
    with live(data) as running, Talker(running.port()) as peer:
        assert peer.ask(dialect.offset_fetch("g", topic, 0)) == dialect.offset(1)
        assert peer.ask(dialect.fetch(topic, 0, 0, 9, "g")) == dialect.fetched(1, [b"b"], 2)


@pytest.mark.row("rustlog-41", "rustlog-44")
@pytest.mark.parametrize("size", [MAX_NAME_BYTES, MAX_NAME_BYTES + 1, 65_535])
@both
def test_group_names_are_bounded(peer: Talker, topics: Topics, dialect: Dialect, size: int) -> None:
    """The existing broker keeps names of any size. A group lives for good, so its name is bounded."""
    topic = topics.new()
    group = "g" * size
    reply = peer.ask(dialect.commit(group, topic, 0, 1))
    if size <= MAX_NAME_BYTES:
        assert reply == dialect.committed()
        return
    prefix = "Failed to commit offset: " if dialect is BINARY else ""
    words = f"group name of {size} bytes, the most is {MAX_NAME_BYTES}"
    assert reply == dialect.error(5, prefix + words)
    assert peer.ask(dialect.offset_fetch(group, topic, 0)) == dialect.offset(None)


@pytest.mark.row("rustlog-39")
def test_commits_for_missing_topics_cannot_fill_the_memory(peer: Talker) -> None:
    """A thousand commits with names of 65 k: each is refused, none is kept."""
    tracemalloc.start()
    try:
        for number in range(1_000):
            name = f"{number:04}" + "n" * 65_000
            reply = peer.ask(BINARY.commit("g", name, 0, 1))
            assert reply[:3] == b"\xfe\x00\x05"
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 4 * 1024 * 1024
