"""The commands against a real server process, as a person at a shell uses them."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.conftest import TIMEOUT_S, Done, RunningServer
from kit.echo_server import make_certificate

from penstock.client.blipmq import connect_blipmq
from penstock.client.errors import NotAuthorized


def lines(done: Done) -> list[str]:
    assert (done.returncode, done.stderr) == (0, b""), done
    return done.stdout.decode().splitlines()


def failed(done: Done, exit_code: int) -> str:
    """The one line on stderr of a command that failed as expected."""
    assert done.returncode == exit_code, done
    assert done.stdout == b""
    text = done.stderr.decode()
    assert text.startswith("penstock: ") and text.count("\n") == 1, text
    return text


def test_published_with_blipmq_and_read_back(running_server: RunningServer) -> None:
    run = running_server.penstock
    assert lines(run("pub", "demo", "hello")) == []
    assert lines(run("pub", "demo", stdin=b"two\nthree\n")) == []
    assert lines(run("cat", "demo")) == ["hello", "two", "three"]
    assert lines(run("cat", "demo", "--from", "1", "-n", "1", "--format", r"%o %v\n")) == ["1 two"]
    assert lines(run("cat", "demo", "--from=-1")) == ["three"]
    assert lines(run("cat", "demo", "--from", "latest")) == []
    assert lines(run("cat", "demo", "--from", "2000-01-01T00:00:00Z", "-n", "1")) == ["hello"]
    assert lines(run("cat", "demo", "--from", "2999-01-01T00:00:00Z")) == []
    first = json.loads(lines(run("cat", "demo", "-n", "1", "--json"))[0])
    assert (first["topic"], first["offset"], first["value"]) == ("demo", 0, "hello")


def test_published_with_one_protocol_and_read_with_the_other(running_server: RunningServer) -> None:
    run = running_server.penstock
    lines_in = [f"line {number}" for number in range(5_000)]
    text = "".join(line + "\n" for line in lines_in).encode()
    assert lines(run("pub", "demo", stdin=text)) == []
    read = run("sub", "demo", "--protocol", "rustlog", "--from", "earliest", "-n", "5000")
    assert read.returncode == 0, read
    assert read.stdout.decode().splitlines() == lines_in

    with running_server.start("sub", "demo", "-n", "2", "--json") as subscriber:
        assert subscriber.stderr is not None
        assert subscriber.stderr.readline().startswith(b"subscribed to demo")
        assert lines(run("pub", "demo", stdin=b"a\nb\n", **{"PENSTOCK_KEY": "dev-key"})) == []
        output, _ = subscriber.communicate(timeout=TIMEOUT_S)
        assert subscriber.returncode == 0
    assert [json.loads(line)["value"] for line in output.splitlines()] == ["a", "b"]
    assert lines(run("pub", "demo", "by rustlog", "--protocol", "rustlog")) == []
    assert lines(run("cat", "demo", "--from=-1")) == ["by rustlog"]


def test_ctrl_c_ends_a_live_subscription(running_server: RunningServer) -> None:
    with running_server.start("sub", "demo", "--create") as subscriber:
        assert subscriber.stderr is not None
        subscriber.stderr.readline()
        subscriber.send_signal(signal.SIGINT)
        output, errors = subscriber.communicate(timeout=TIMEOUT_S)
    assert (subscriber.returncode, output, errors) == (130, b"", b"")


def test_topics(running_server: RunningServer) -> None:
    run = running_server.penstock
    made = run("topic", "create", "orders/eu", "-p", "3", "--json")
    assert made.returncode == 0, made
    assert json.loads(made.stdout)["partitions"] == 3
    assert "exists" in failed(run("topic", "create", "orders/eu"), 1)
    header, row = lines(run("topic", "ls"))
    assert header.split() == ["NAME", "PARTITIONS", "RECORDS", "BYTES"]
    assert row.split() == ["orders/eu", "3", "0", "0"]
    described = json.loads(lines(run("topic", "describe", "orders/eu", "--json"))[0])
    assert [one["partition"] for one in described["partition_details"]] == [0, 1, 2]
    assert "orders/eu" in lines(run("topic", "describe", "orders/eu"))[0]
    name, value = next(iter(described["settings"].items()))
    assert run("topic", "set", "orders/eu", f"{name}={json.dumps(value)}").returncode == 0
    failed(run("topic", "set", "orders/eu", "no_such_setting=1"), 1)
    assert run("topic", "delete", "orders/eu", "--yes").returncode == 0
    assert lines(run("topic", "ls", "--json")) == ["[]"]


@pytest.mark.parametrize(
    "command",
    [
        ("cat", "ordres"),
        ("topic", "describe", "ordres"),
        ("topic", "delete", "ordres", "-y"),
        ("pub", "ordres", "x", "--protocol", "rustlog"),
        ("group", "reset", "g", "-t", "ordres", "--to", "earliest"),
    ],
)
def test_a_misspelt_topic_names_the_nearest(
    running_server: RunningServer, command: tuple[str, ...]
) -> None:
    assert running_server.penstock("topic", "create", "orders").returncode == 0
    assert "did you mean orders?" in failed(running_server.penstock(*command), 3)


def test_groups(running_server: RunningServer) -> None:
    run = running_server.penstock
    assert lines(run("pub", "demo", "x", "-n", "10")) == []
    options = ("--protocol", "rustlog", "--from", "earliest", "-g", "billing", "-n", "4")
    assert run("sub", "demo", *options).returncode == 0
    assert lines(run("group", "ls"))[1].split()[:5] == ["billing", "1", "1", "0", "6"]
    assert lines(run("group", "describe", "billing"))[1].split() == ["demo", "0", "4", "10", "6"]
    reset = lines(run("group", "reset", "billing", "-t", "demo", "--to", "latest"))
    assert reset[1].split() == ["demo", "0", "10", "10", "0"]
    assert "did you mean billing?" in failed(run("group", "describe", "biling"), 3)


def test_keys_contexts_and_who_may_not(running_server: RunningServer) -> None:
    run = running_server.penstock
    failed(run("pub", "demo", "x", PENSTOCK_KEY="wrong"), 5)
    failed(run("topic", "ls", PENSTOCK_KEY="wrong"), 5)
    assert (
        run("context", "add", "here", "--server", running_server.tcp, "--key", "wrong").returncode
        == 0
    )
    failed(run("pub", "demo", "x", "--context", "here"), 5)
    assert lines(run("pub", "demo", "x", "--context", "here", "--key", "dev-key")) == []


def test_the_life_of_a_key(running_server: RunningServer) -> None:
    run = running_server.penstock
    made = run("key", "create", "billing", "--role", "writer", "--topics", "orders.*")
    assert made.returncode == 0, made
    secret = made.stdout.decode().strip()
    assert "exists" in failed(run("key", "create", "billing"), 1)
    _, row = lines(run("key", "list"))
    assert row.split()[:3] == ["billing", "writer", "orders.*"]
    assert secret not in row
    assert lines(run("pub", "orders.new", "x", PENSTOCK_KEY=secret)) == []
    failed(run("pub", "other", "x", PENSTOCK_KEY=secret), 5)
    failed(run("cat", "orders.new", PENSTOCK_KEY=secret), 5)
    failed(run("key", "list", PENSTOCK_KEY=secret), 5)
    with (
        pytest.raises(NotAuthorized, match="unauthenticated"),
        connect_blipmq(running_server.tcp, key=secret) as client,
    ):
        client.publish("orders.new", b"before")
        client.flush()
        assert run("key", "revoke", "billing").returncode == 0
        client.publish("orders.new", b"after")
        client.flush()
    failed(run("pub", "orders.new", "x", PENSTOCK_KEY=secret), 5)
    failed(run("key", "revoke", "billing"), 3)
    assert lines(run("cat", "orders.new")) == ["x", "before"]


def test_messages_survive_a_kill(serve: Callable[..., RunningServer]) -> None:
    first = serve()
    assert lines(first.penstock("pub", "demo", "x", "-n", "1000")) == []
    first.kill()
    failed(first.penstock("pub", "demo", "x", "--timeout", "5"), 4)
    failed(first.penstock("topic", "ls", "--timeout", "5"), 4)
    second = serve()
    assert lines(second.penstock("cat", "demo", "--format", r"%o\n")) == [
        str(number) for number in range(1000)
    ]
    assert second.stop() == 0


def test_a_reader_that_goes_away_ends_cat(running_server: RunningServer) -> None:
    assert lines(running_server.penstock("pub", "demo", "x" * 100, "-n", "20000")) == []
    with running_server.start("cat", "demo") as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"x" * 100 + b"\n"
        reader.stdout.close()
        reader.stdout = None
        _, errors = reader.communicate(timeout=TIMEOUT_S)
    assert errors == b""
    assert reader.returncode == 0


def test_over_tls_on_the_same_port(serve: Callable[..., RunningServer], tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    server = serve(
        "--set", f"tls.certificate={certificate.certificate}", "--set", f"tls.key={certificate.key}"
    )
    trusted = ("--tls", "--ca", str(certificate.certificate))
    assert lines(server.penstock("pub", "demo", "secret", *trusted)) == []
    assert lines(server.penstock("pub", "demo", "r", "--protocol", "rustlog", *trusted)) == []
    assert lines(server.penstock("cat", "demo")) == ["secret", "r"]
    text = failed(server.penstock("pub", "demo", "x", "--tls"), 4)
    assert "its certificate was not accepted" in text
    assert server.stop() == 0
