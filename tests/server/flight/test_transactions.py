"""Transactions over Arrow Flight, on a real server with its real Flight process."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from kit.engines import embedded
from kit.flight_client import FLIGHT, connect_to
from kit.flight_peer import Peer, values_table
from kit.live_server import WAIT_S, LiveServer, ServerProcess
from pyarrow import flight

from penstock.client.errors import PASSING, CommitUnfinished, Refused, Unavailable
from penstock.client.flight import FlightClient
from penstock.client.flight.client import Begun
from penstock.client.flight.errors import telling
from penstock.log import errors as log
from penstock.log.settings import TopicSettings
from penstock.server.flight.errors import to_flight


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("transactions") / "data", FLIGHT) as server:
        yield server


@pytest.fixture
def peer(running: LiveServer) -> Iterator[Peer]:
    peer = Peer(running.port("flight"))
    yield peer
    peer.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest, running: LiveServer) -> str:
    """A topic of two partitions, named like the test; the transactions have its name too."""
    name = str(request.node.name).replace("[", ".").replace("]", "")
    running.call(lambda: running.server.engine.create_topic(name, 2))
    return name


def other(running: LiveServer, name: str, role: str = "user") -> Peer:
    key = running.server.broker.access.create_key(name, role)
    return Peer(running.port("flight"), key)


# --- the plain way ---------------------------------------------------------------------------------


def test_two_streams_and_a_task_that_is_left_out(peer: Peer, topic: str) -> None:
    assert peer.act("begin", name=topic, timeout_s=60) == {"name": topic, "state": "open"}
    rows = pa.table(
        {"value": pa.array([b"a", b"b", b"c"]), "partition": pa.array([1, 0, 1], pa.int32())}
    )
    start = threading.Barrier(2, timeout=WAIT_S)

    def stage(task: int) -> list[dict[str, object]]:
        start.wait()
        return peer.put({"topic": topic, "transaction": topic, "task": task}, rows)

    with ThreadPoolExecutor(2) as pool:
        for told in pool.map(stage, [7 << 32, 7 << 32 | 1]):
            assert told == [
                {"topic": topic, "partition": 0, "count": 1},
                {"topic": topic, "partition": 1, "count": 2},
            ]
    peer.stage(topic, 3, topic, b"first", partition=0)
    assert peer.read(topic) == peer.read(topic, 1) == []
    done = {"name": topic, "state": "committed"}
    for _ in range(2):
        assert peer.act("commit", name=topic, tasks=[7 << 32 | 1, 3]) == done
        assert peer.read(topic) == [b"first", b"b"]
        assert peer.read(topic, 1) == [b"a", b"c"]
    assert peer.act("begin", name=topic) == done


def test_rows_of_a_stream_keep_their_order(peer: Peer, topic: str) -> None:
    """Many batches of a stream are on their way at the same time."""
    peer.act("begin", name=topic)
    values = [b"%d" % number for number in range(300)]
    peer.stage(topic, 0, topic, *values, partition=0)
    peer.act("commit", name=topic, tasks=[0])
    assert peer.read(topic) == values


def test_across_topics(running: LiveServer, peer: Peer, topic: str) -> None:
    make_other = TopicSettings(durability="none")
    running.call(lambda: running.server.engine.create_topic("other", 1, make_other))
    peer.act("begin", name=topic)
    rows = pa.table({
        "topic": ["other", topic, "other"], "partition": [0, 1, 0], "value": ["1", "2", "3"],
    })  # fmt: skip
    peer.put({"transaction": topic, "task": 1}, rows)
    assert peer.read("other") == []
    peer.act("commit", name=topic, tasks=[1])
    assert peer.read("other") == [b"1", b"3"]
    assert peer.read(topic, 1) == [b"2"]


def test_abort(peer: Peer, topic: str) -> None:
    peer.act("begin", name=topic)
    peer.stage(topic, 1, topic, b"gone")
    for _ in range(2):
        assert peer.act("abort", name=topic) == {"name": topic, "state": "aborted"}
    with pytest.raises(pa.ArrowException, match=r"24 TRANSACTION_NOT_OPEN.*is unknown"):
        peer.act("commit", name=topic, tasks=[1])
    assert peer.read(topic) == peer.read(topic, 1) == []


def test_an_abandoned_one_is_rolled_back(
    running: LiveServer, peer: Peer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = embedded(running.server.engine)
    for name, timeout_s in ((topic, 60), (topic + "2", 600)):
        peer.act("begin", name=name, timeout_s=timeout_s)
        peer.stage(name, 1, topic, b"v", partition=0)
    later_us = engine.clock_us() + 100_000_000
    monkeypatch.setattr(engine.transactions, "_clock_us", lambda: later_us)
    engine.maintain()
    with pytest.raises(pa.ArrowException, match="TRANSACTION_NOT_OPEN"):
        peer.stage(topic, 1, topic, b"late")
    peer.act("commit", name=topic + "2", tasks=[1])
    assert peer.read(topic) == [b"v"]


def test_a_killed_server_finishes_or_forgets(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", FLIGHT) as server:
        peer = Peer(server.ports["flight"])
        for name in ("done", "open"):
            peer.act("begin", name=name)
            command = {"topic": "t", "transaction": name, "task": 1, "create": True}
            peer.put(command, values_table(name.encode()))
        peer.act("commit", name="done", tasks=[1])
        server.kill()
        peer.close()
    with ServerProcess(tmp_path / "data", FLIGHT) as server:
        peer = Peer(server.ports["flight"])
        assert peer.read("t") == [b"done"]
        assert peer.act("begin", name="done")["state"] == "committed"
        for name in ("open", "done", "open"):
            peer.act("commit", name=name, tasks=[1])
        assert peer.read("t") == [b"done", b"open"]
        peer.close()


# --- refusals --------------------------------------------------------------------------------------


def test_not_open_is_a_fault_of_the_peer(peer: Peer, topic: str) -> None:
    """A peer that sees INTERNAL or UNAVAILABLE would try again."""
    with pytest.raises(pa.ArrowInvalid, match=r"^24 TRANSACTION_NOT_OPEN: transaction 'nope' is"):
        peer.act("commit", name="nope", tasks=[1])


def test_a_name_that_nobody_began(peer: Peer, topic: str) -> None:
    text = f"24 TRANSACTION_NOT_OPEN: transaction '{topic}' is unknown"
    with pytest.raises(pa.ArrowException, match=text):
        peer.act("commit", name=topic, tasks=[1])
    with pytest.raises(pa.ArrowException, match=text):
        peer.stage(topic, 1, topic, b"v")
    peer.act("abort", name=topic)


def test_after_the_commit_nothing_can_be_added(peer: Peer, topic: str) -> None:
    peer.act("begin", name=topic)
    peer.act("commit", name=topic, tasks=[])
    with pytest.raises(pa.ArrowException, match=r"24 TRANSACTION_NOT_OPEN.*is committed"):
        peer.stage(topic, 1, topic, b"late")
    with pytest.raises(pa.ArrowException, match=r"24 TRANSACTION_NOT_OPEN.*is committed"):
        peer.act("abort", name=topic)


@pytest.fixture
def client(running: LiveServer) -> Iterator[FlightClient]:
    with connect_to(running) as client:
        yield client


def test_a_committed_name_tells_its_rows(client: FlightClient, topic: str) -> None:
    assert client.begin_transaction(topic, 60) == Begun(False)
    client.commit_transaction(topic, {}, 12)
    assert client.begin_transaction(topic, 60) == Begun(True, 12)
    # Nothing is told where the commit has told nothing.
    client.begin(f"{topic}-x", 60)
    client.commit_transaction(f"{topic}-x", {})
    assert client.begin_transaction(f"{topic}-x", 60) == Begun(True, None)


def test_an_earlier_run_is_refused_at_begin_and_commit(client: FlightClient, topic: str) -> None:
    client.begin_transaction(f"{topic}-0", 60, (topic, "first"))
    client.begin_transaction(f"{topic}-1", 60, (topic, "second"))
    with pytest.raises(Refused, match="was followed by second") as caught:
        client.begin_transaction(f"{topic}-2", 60, (topic, "first"))
    assert caught.value.code == 17
    with pytest.raises(Refused, match="was followed by second"):
        client.commit_transaction(f"{topic}-0", {}, None, (topic, "first"))
    client.commit_transaction(f"{topic}-0", {}, 0, (topic, "second"))


def test_names_of_others_are_not_seen(running: LiveServer, peer: Peer, topic: str) -> None:
    stranger = other(running, "stranger")
    peer.act("begin", name=topic)
    peer.stage(topic, 1, topic, b"mine", partition=0)
    with pytest.raises(pa.ArrowException, match=r"TRANSACTION_NOT_OPEN.*is unknown"):
        stranger.act("commit", name=topic, tasks=[1])
    with pytest.raises(pa.ArrowException, match=r"TRANSACTION_NOT_OPEN.*is unknown"):
        stranger.stage(topic, 1, topic, b"theirs")
    stranger.act("abort", name=topic)
    assert stranger.act("begin", name=topic)["state"] == "open"
    stranger.stage(topic, 1, topic, b"theirs", partition=1)
    peer.act("commit", name=topic, tasks=[1])
    assert (peer.read(topic), peer.read(topic, 1)) == ([b"mine"], [])
    stranger.close()


def test_a_slash_in_a_name_makes_nobody_somebody_else(running: LiveServer, topic: str) -> None:
    one, two = other(running, "team"), other(running, "team/spark")
    one.act("begin", name=f"spark/{topic}")
    with pytest.raises(pa.ArrowException, match="TRANSACTION_NOT_OPEN"):
        two.act("commit", name=topic, tasks=[])
    one.close()
    two.close()


def test_who_may_not_write_may_not_stage(running: LiveServer, topic: str) -> None:
    reader = other(running, "reads-only", "reader")
    with pytest.raises(flight.FlightUnauthorizedError, match="NOT_AUTHORIZED"):
        reader.act("begin", name=topic)
    with pytest.raises(flight.FlightUnauthorizedError, match="NOT_AUTHORIZED"):
        reader.stage(topic, 1, topic, b"v")
    reader.close()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ({"producer": {"id": 1, "epoch": 0, "sequence": 0}}, "a transaction needs no producer"),
        ({"task": -1}, "task"),
        ({"task": 1 << 63}, "task"),
        ({"transaction": ""}, "transaction"),
        ({"partition": 2}, "no partition 2"),
    ],
)
def test_bad_commands(peer: Peer, topic: str, command: dict[str, object], words: str) -> None:
    peer.act("begin", name=topic)
    wrong = {"topic": topic, "transaction": topic, "partition": 0, **command}
    with pytest.raises((pa.ArrowInvalid, pa.ArrowKeyError), match=words):
        peer.put(wrong, values_table(b"v"))
    peer.act("commit", name=topic, tasks=[0, 1])
    assert peer.read(topic) == []


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("begin", {}), ("begin", {"name": "x", "timeout_s": 0}), ("begin", {"name": "x" * 501}),
        ("commit", {"name": "x"}), ("commit", {"name": "x", "tasks": [1 << 63]}),
        ("commit", {"name": "x", "tasks": [-1]}), ("abort", {"name": ""}),
    ],
)  # fmt: skip
def test_bad_bodies(peer: Peer, kind: str, body: dict[str, object]) -> None:
    with pytest.raises(pa.ArrowInvalid, match=f"19 INVALID_REQUEST: body of {kind}"):
        peer.act(kind, **body)


def test_a_record_over_the_limit_is_refused_when_it_is_staged(
    running: LiveServer, peer: Peer, topic: str
) -> None:
    small = TopicSettings(record_bytes=1024)
    running.call(lambda: running.server.engine.create_topic("small", 1, small))
    peer.act("begin", name=topic)
    with pytest.raises(pa.ArrowInvalid, match="7 RECORD_TOO_LARGE"):
        peer.stage(topic, 1, "small", b"v" * 2000)


def test_a_topic_that_is_gone_is_heard_of(running: LiveServer, peer: Peer, topic: str) -> None:
    peer.act("begin", name=topic)
    peer.stage(topic, 1, topic, b"v")
    running.delete_topic(topic)
    with pytest.raises(pa.ArrowKeyError, match="1 UNKNOWN_TOPIC"):
        peer.act("commit", name=topic, tasks=[1])
    peer.act("abort", name=topic)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (log.CommitUnfinished("No space left on device"), CommitUnfinished),
        (log.CommitWaits(7), CommitUnfinished),
        (log.DecisionUnknown("disk I/O error"), Unavailable),
    ],
)
def test_a_commit_that_is_decided_is_told_as_such(
    error: log.LogError, kind: type[Unavailable]
) -> None:
    """From the log to the client: it repeats the commit, and does not write again."""
    with pytest.raises(kind) as told, telling("server", "commit"):
        raise to_flight(error)
    assert type(told.value) is kind and isinstance(told.value, PASSING)
    assert "nothing" not in str(told.value)
