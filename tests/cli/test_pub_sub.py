"""`penstock pub` and `penstock sub` against servers that are not ours, in this process."""

import io
import os
from collections.abc import Iterator
from typing import Any

import pytest
from client.peer import BlipMQPeer, JsonServer, Peer, closes, silent

from penstock.cli import main as cli
from penstock.cli.outbox import CONFIRM_S, REQUEST_RECORDS, BlipMQOutbox, requests
from penstock.cli.pub import MessageTooLong, lines, repeated, whole
from penstock.client.blocking import LoopThread
from penstock.client.tally import Tally
from penstock.wire.blipmq import frames as wire


@pytest.fixture(autouse=True)
def no_contexts(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_KEY", "secret")


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.stop()


class Served:
    """A peer on a loop of its own, while the command runs in this thread."""

    def __init__(self, thread: LoopThread, peer: Peer) -> None:
        self._thread = thread
        self.peer = peer

    def __enter__(self) -> str:
        self._thread.run(self.peer.__aenter__())
        return self.peer.address

    def __exit__(self, *_: object) -> None:
        self._thread.run(self.peer.__aexit__(None, None, None))


class Stdin:
    """What the command reads instead of the terminal."""

    def __init__(self, data: bytes | io.BufferedReader) -> None:
        self.buffer = io.BytesIO(data) if isinstance(data, bytes) else data

    def isatty(self) -> bool:
        return False


def test_messages_from_the_command_line(thread: LoopThread) -> None:
    blipmq = BlipMQPeer()
    with Served(thread, Peer(blipmq.script)) as server:
        assert cli.main(["pub", "demo", "hi", "--server", server]) == 0
        assert cli.main(["pub", "demo", "x", "-n", "2500", "--qos", "0", "--server", server]) == 0
    assert blipmq.published == [("demo", 1, b"hi")] + [("demo", 0, b"x")] * 2500


def test_messages_from_stdin_and_files(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    blipmq = BlipMQPeer()
    with Served(thread, Peer(blipmq.script)) as server:
        monkeypatch.setattr("sys.stdin", Stdin(b"one\n\ntwo\r\nlast"))
        assert cli.main(["pub", "demo", "--server", server]) == 0
        monkeypatch.setattr("sys.stdin", Stdin(b"all\nof it\n"))
        assert cli.main(["pub", "demo", "-", "--raw", "--server", server]) == 0
        with open(f"{tmp_path}/input", "wb") as file:
            file.write(b"from a file\n")
        assert cli.main(["pub", "demo", "-f", f"{tmp_path}/input", "--server", server]) == 0
    values = [b"one", b"", b"two\r", b"last", b"all\nof it\n", b"from a file"]
    assert [value for _, _, value in blipmq.published] == values


@pytest.mark.parametrize(("code", "exit_code"), [(500, 1), (401, 5)])
def test_a_refused_message_is_a_failure(
    thread: LoopThread, capsys: pytest.CaptureFixture[str], code: int, exit_code: int
) -> None:
    blipmq = BlipMQPeer()
    blipmq.refused[b"bad"] = wire.Nack(code, "not this one")
    with Served(thread, Peer(blipmq.script)) as server:
        assert cli.main(["pub", "demo", "bad", "--server", server]) == exit_code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("penstock: ")
    assert "not this one" in captured.err
    assert captured.err.count("\n") == 1


@pytest.fixture
def open_pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The end to write to; the command reads from the other one, and it never ends."""
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as reader:
        monkeypatch.setattr("sys.stdin", Stdin(reader))
        monkeypatch.setattr("penstock.cli.pub.CONFIRM_S", 0.05)
        yield write_end
    os.close(write_end)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (b"bad\n", "0 confirmed, 1 refused, the rest not sent"),
        (b"a\nb\nbad\nc\n", "3 confirmed, 1 refused, the rest not sent"),
    ],
)
def test_a_refusal_is_told_while_the_input_goes_on(
    thread: LoopThread,
    open_pipe: int,
    capsys: pytest.CaptureFixture[str],
    given: bytes,
    words: str,
) -> None:
    blipmq = BlipMQPeer()
    blipmq.refused[b"bad"] = wire.Nack(500, "the disk is full")
    os.write(open_pipe, given)
    with Served(thread, Peer(blipmq.script)) as server:
        assert cli.main(["pub", "demo", "--server", server]) == 1
    err = capsys.readouterr().err
    assert "the disk is full" in err and err.endswith(f"; {words}\n") and err.count("\n") == 1


def test_a_key_that_is_revoked_while_the_input_goes_on(
    thread: LoopThread, open_pipe: int, capsys: pytest.CaptureFixture[str]
) -> None:
    blipmq = BlipMQPeer()
    blipmq.refused[b"after"] = wire.UNAUTHENTICATED
    blipmq.refuses_pings_after = b"after"
    os.write(open_pipe, b"after\n")
    with Served(thread, Peer(blipmq.script)) as server:
        assert cli.main(["pub", "demo", "--server", server]) == 5
    assert capsys.readouterr().err == (
        "penstock: PUBLISH to demo was refused: unauthenticated (code 401);"
        " 0 confirmed, 1 refused, the rest not sent\n"
    )


def test_at_the_end_nothing_is_left_to_send(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blipmq = BlipMQPeer()
    blipmq.refused[b"bad"] = wire.Nack(500, "no")
    monkeypatch.setattr("sys.stdin", Stdin(b"a\nbad\nb\n"))
    with Served(thread, Peer(blipmq.script)) as server:
        assert cli.main(["pub", "demo", "--server", server]) == 1
    assert capsys.readouterr().err.endswith("(code 500); 2 confirmed, 1 refused\n")


def test_what_rustlog_took_before_the_disk_was_full(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", Stdin(b"x\n" * (2 * REQUEST_RECORDS + 7)))
    server = JsonServer()
    server.room = REQUEST_RECORDS + 100
    with Served(thread, Peer(server.script)) as address:
        assert cli.main(["pub", "demo", "--protocol", "rustlog", "--server", address]) == 1
    # Three requests: the second has no room, the last is small enough.
    assert capsys.readouterr().err == (
        "penstock: Produce to demo/0 was refused: no space is left, nothing was stored;"
        " 5007 confirmed, 5000 refused, the rest not sent\n"
    )
    assert len(server.log) == REQUEST_RECORDS + 7


def test_a_message_that_no_frame_holds_and_the_others(
    thread: LoopThread, tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    server = JsonServer()
    with open(f"{tmp_path}/input", "wb") as file:
        file.write(b"first\n" + b"x" * 6_000_000 + b"\nlast\n")
    with Served(thread, Peer(server.script)) as address:
        options = ["-f", f"{tmp_path}/input", "--protocol", "rustlog", "--server", address]
        assert cli.main(["pub", "demo", *options]) == 1
    assert capsys.readouterr().err == (
        "penstock: a message of 6000000 bytes does not fit a RustLog frame of 10485760 bytes where"
        " each byte is written as a number; up to 2620416 bytes always fit;"
        " 1 confirmed, the rest not sent; go on from line 2\n"
    )


def test_wrong_input_behind_good_lines(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("penstock.cli.pub.MAX_MESSAGE_BYTES", 10)
    monkeypatch.setattr("penstock.cli.pub.READ_BYTES", 20)
    monkeypatch.setattr("sys.stdin", Stdin(b"one\ntwo\n" + bytes(100)))
    blipmq = BlipMQPeer()
    with Served(thread, Peer(blipmq.script)) as server:
        assert cli.main(["pub", "demo", "--server", server]) == 1
    assert capsys.readouterr().err.endswith(
        "holds it; 2 confirmed, the rest not sent; go on from line 3\n"
    )


class CountingClient:
    """A blocking BlipMQ client as far as an outbox needs one."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.flushes = 0

    def publish_many(self, topic: str, values: list[bytes], qos: int) -> None:
        self.tally.published += len(values)

    def flush(self) -> None:
        self.flushes += 1
        self.tally.confirmed = self.tally.published


def test_when_an_outbox_asks_for_a_confirmation() -> None:
    now_s = [100.0]
    client: Any = CountingClient()
    outbox = BlipMQOutbox(client, "demo", 1, lambda: now_s[0])
    now_s[0] += 10 * CONFIRM_S
    outbox.look()
    assert client.flushes == 0  # nothing was sent
    outbox.send([b"x"])
    assert client.flushes == 1
    now_s[0] += 0.9 * CONFIRM_S
    outbox.send([b"x"])
    assert client.flushes == 1  # not so soon again
    now_s[0] += 0.2 * CONFIRM_S
    outbox.look()
    outbox.look()
    outbox.confirm()
    assert client.flushes == 2
    outbox.send([bytes(3 * 1024 * 1024)])
    outbox.send([bytes(3 * 1024 * 1024)])
    assert client.flushes == 3
    outbox.send([b"x"])
    client.tally.refused = 1
    outbox.look()
    assert client.flushes == 4  # a refusal has arrived: why wait


def test_a_connection_that_ends_before_the_confirmation(
    thread: LoopThread, capsys: pytest.CaptureFixture[str]
) -> None:
    blipmq = BlipMQPeer()
    blipmq.cut_at.add(b"cut")
    with Served(thread, Peer(blipmq.script)) as server:
        assert cli.main(["pub", "demo", "cut", "--server", server]) == 4
    assert "1 messages were not confirmed" in capsys.readouterr().err


def test_wrong_key_no_server_no_answer(
    thread: LoopThread, capsys: pytest.CaptureFixture[str]
) -> None:
    with Served(thread, Peer(BlipMQPeer().script)) as server:
        assert cli.main(["pub", "demo", "hi", "--server", server, "--key", "wrong"]) == 5
        assert cli.main(["sub", "demo", "--server", server, "--key", "wrong"]) == 5
    assert cli.main(["pub", "demo", "hi", "--server", server]) == 4
    for script in (silent, closes()):
        with Served(thread, Peer(script)) as server:
            arguments = ["pub", "demo", "hi", "--server", server, "--timeout", "0.1"]
            assert cli.main(arguments) == 4
    assert capsys.readouterr().err.count("\n") == 5


def test_rustlog_with_the_nearest_topic(
    thread: LoopThread, capsys: pytest.CaptureFixture[str]
) -> None:
    server = JsonServer()
    with Served(thread, Peer(server.script)) as address:
        options = ["--protocol", "rustlog", "--server", address]
        assert cli.main(["pub", "demo", "hi", "-n", "3", *options]) == 0
        assert (
            cli.main(["sub", "demo", "--from", "1", "-n", "2", "--format", r"%o:%v\n", *options])
            == 0
        )
        assert cli.main(["sub", "demo", "-g", "g", "--from", "earliest", "-n", "1", *options]) == 0
        assert capsys.readouterr().out == "1:hi\n2:hi\nhi\n"
        assert server.committed == {"g": 1}
        # This server has no ListTopics: the error stands alone.
        assert cli.main(["pub", "no", "hi", *options]) == 3
    assert "partition not found: topic=no, partition=0" in capsys.readouterr().err
    assert server.log == [b"hi"] * 3


def test_sub_ends_when_nothing_comes(
    thread: LoopThread, capsys: pytest.CaptureFixture[str]
) -> None:
    with Served(thread, Peer(BlipMQPeer().script)) as server:
        assert cli.main(["sub", "demo", "--idle", "0.05", "--server", server, "--create"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "subscribed to demo with QoS 1; Ctrl-C ends\n")


@pytest.mark.parametrize("http", [None, "http://127.0.0.1:1"])
def test_sub_makes_no_topic_where_nobody_can_be_asked(
    thread: LoopThread, capsys: pytest.CaptureFixture[str], http: str | None
) -> None:
    """SUBSCRIBE would; the HTTP API that stands by default may be another server's."""
    blipmq = BlipMQPeer()
    named = [] if http is None else ["--http", http]
    with Served(thread, Peer(blipmq.script)) as server:
        assert cli.main(["sub", "demo", "--idle", "0.05", "--server", server, *named]) == 1
    assert not blipmq.queues
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(
        f"penstock: whether {server} has a topic 'demo' cannot be asked: "
    )
    assert captured.err.endswith("; --create asks nobody, and makes it if it is not there\n")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["pub"],
        ["pub", "demo", "hi", "--qos", "2"],
        ["pub", "demo", "hi", "--raw"],
        ["pub", "demo", "hi", "--file", "x"],
        ["pub", "demo", "--count", "2"],
        ["pub", "demo", "hi", "--protocol", "smtp"],
        ["pub", "demo", "hi", "--server", "a:b"],
        ["pub", "demo", "hi", "-p", "0", "--protocol", "blipmq"],
        ["sub", "demo", "-p", "3"],
        ["pub", "demo", "hi", "--timeout", "0"],
        ["sub", "demo", "--from", "earliest"],
        ["sub", "demo", "--protocol", "rustlog", "--from", "2026-01-01"],
        ["sub", "demo", "--json", "--format", "%v"],
        ["sub", "demo", "--create", "--protocol", "rustlog"],
        ["sub", "demo", "--create", "--protocol", "http"],
        ["sub", "demo", "--format", "%q"],
        ["cat", "demo", "--from", "soon"],
        ["cat", "demo", "--http", "ftp://x"],
        ["topic", "set", "demo"],
        ["group", "reset", "g", "--topic", "t", "--to", "-5"],
    ],
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("penstock: ")
    assert captured.err.count("\n") == 1


# ---- the input ----


class Dripping(io.BytesIO):
    """A pipe that gives three bytes at a time."""

    def read1(self, size: int | None = -1, /) -> bytes:
        return super().read1(3)


@pytest.mark.parametrize("kind", [io.BytesIO, Dripping])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", []),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\n\nlonger line\nend", [b"a", b"", b"longer line", b"end"]),
        (b"\n", [b""]),
    ],
)
def test_lines(kind: type[io.BytesIO], text: bytes, expected: list[bytes]) -> None:
    assert [line for chunk in lines(kind(text)) for line in chunk] == expected


def test_input_that_no_frame_holds() -> None:
    big = io.BytesIO(b"ok\n" + bytes(17 * 1024 * 1024))
    with pytest.raises(MessageTooLong, match="message 2 is longer"):
        list(lines(big))
    big.seek(0)
    with pytest.raises(MessageTooLong, match="message 1 is longer"):
        list(whole(big))


def test_pieces() -> None:
    assert [len(chunk) for chunk in repeated(b"x", 2500)] == [1000, 1000, 500]
    assert [len(chunk) for chunk in repeated(bytes(3 * 1024 * 1024), 2)] == [1, 1]
    small = list(requests([b"x"] * (REQUEST_RECORDS + 1)))
    assert [len(piece) for piece in small] == [REQUEST_RECORDS, 1]
    large = list(requests([bytes(700_000)] * 3))
    assert [len(piece) for piece in large] == [1, 1, 1]
    assert list(requests([])) == []
