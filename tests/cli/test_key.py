"""`penstock key` on a data directory, and against answers that a server can give."""

import io
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from kit.limits import HANG_S
from kit.logins import authenticate

from penstock.broker.access import keys
from penstock.broker.access.access import DEVELOPMENT_KEY, Access, Principal
from penstock.cli import http
from penstock.cli import main as cli
from penstock.log.embedded import EmbeddedEngine

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs `penstock key ...` in this process; gives exit code, stdout and stderr."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-contexts"))
    for variable in ("SERVER", "HTTP", "KEY", "CONTEXT"):
        monkeypatch.delenv(f"PENSTOCK_{variable}", raising=False)

    def run_command(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(["key", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_command


@contextmanager
def served(directory: Path) -> Iterator[Access]:
    """The keys as a server has them that runs on this directory."""
    engine = EmbeddedEngine(str(directory))
    anonymous = Principal("anonymous", "reader")
    try:
        yield Access(engine.metadata, (), development_key=False, anonymous=anonymous)
    finally:
        engine.close()


def test_a_created_key_is_alone_on_stdout_and_works(run: Run, tmp_path: Path) -> None:
    data = tmp_path / "not" / "yet" / "there"
    code, out, err = run("create", "billing", "--data", str(data), "--role", "writer",
                         "--topics", "orders.*", "--topics", "bills/*")  # fmt: skip
    assert code == 0
    assert re.fullmatch(r"pk_[a-z2-7]{32}\n", out)
    assert "'billing' (writer, topics orders.*, bills/*)" in err and "not shown again" in err
    assert out.strip() not in err
    with served(data) as access:
        principal = authenticate(access, out.strip())
    assert principal is not None
    assert (principal.name, principal.role) == ("billing", "writer")
    assert principal.rules == ("orders.*", "bills/*")


def test_a_key_is_for_all_topics_and_both_ways_by_default(run: Run, tmp_path: Path) -> None:
    _, out, _ = run("create", "a", "--data", str(tmp_path))
    with served(tmp_path) as access:
        principal = authenticate(access, out.strip())
    assert principal is not None
    assert (principal.role, principal.rules) == ("user", ("*",))


def test_a_revoked_key_does_not_work(run: Run, tmp_path: Path) -> None:
    _, gone, _ = run("create", "gone", "--data", str(tmp_path))
    _, kept, _ = run("create", "kept", "--data", str(tmp_path))
    assert run("revoke", "gone", "--data", str(tmp_path)) == (
        0, "", "API key 'gone' is revoked\n",
    )  # fmt: skip
    with served(tmp_path) as access:
        assert authenticate(access, gone.strip()) is None
        assert authenticate(access, kept.strip()) is not None


def test_list_shows_all_but_the_keys(run: Run, tmp_path: Path) -> None:
    secrets = [run("create", name, "--data", str(tmp_path))[1].strip() for name in ("b", "a")]
    run("revoke", "b", "--data", str(tmp_path))
    code, out, err = run("list", "--data", str(tmp_path))
    assert (code, err) == (0, "")
    header, first, second = out.splitlines()
    assert header.split() == ["NAME", "ROLE", "TOPICS", "SINCE", "STATE"]
    assert re.fullmatch(r"a +user +\* +\d{4}-\d\d-\d\d +active", first)
    assert re.fullmatch(r"b +user +\* +\d{4}-\d\d-\d\d +revoked \d{4}-\d\d-\d\d", second)
    assert not [secret for secret in secrets if secret in out]


def test_list_as_json(run: Run, tmp_path: Path) -> None:
    run("create", "a", "--data", str(tmp_path), "--topics", "x")
    _, out, _ = run("list", "--json", "--data", str(tmp_path))
    (key,) = json.loads(out)["keys"]
    assert key.pop("created_us") > 1_600_000_000_000_000
    assert key == {
        "name": "a", "role": "user", "topics": ["x"], "revoked_us": None, "source": "stored",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "exit_code", "text"),
    [
        (["create", "a", "--role", "root"], 1, "role 'root' is unknown"),
        (["create", ""], 1, "a name of 1 to 100"),
        (["create", "a", "--topics", ""], 1, "topic patterns"),
        (["create", "taken"], 1, "an API key named 'taken' already exists"),
        (["revoke", "nobody"], 3, "no API key named 'nobody'"),
    ],
)
def test_wrong_requests_are_one_line(
    run: Run, tmp_path: Path, arguments: list[str], exit_code: int, text: str
) -> None:
    run("create", "taken", "--data", str(tmp_path))
    code, out, err = run(*arguments, "--data", str(tmp_path))
    assert (code, out) == (exit_code, "")
    assert err.startswith("penstock: ") and text in err and err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["list"], ["revoke", "a"]])
def test_a_directory_without_data_is_left_alone(
    run: Run, tmp_path: Path, arguments: list[str]
) -> None:
    code, _, err = run(*arguments, "--data", str(tmp_path))
    assert code == 1
    assert err == (
        f"penstock: {tmp_path} holds no Penstock data; give the server's data directory\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_a_server_uses_is_refused(run: Run, tmp_path: Path) -> None:
    with served(tmp_path):
        code, out, err = run("create", "a", "--data", str(tmp_path))
    assert (code, out) == (1, "")
    assert "is in use by process" in err and "asks the running server" in err
    assert err.count("\n") == 1


def test_a_directory_that_cannot_be_made_is_one_line(run: Run, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    code, out, err = run("create", "a", "--data", str(blocked / "data"))
    assert (code, out) == (1, "")
    assert "is not a directory" in err and err.count("\n") == 1


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_hash_makes_what_the_configuration_takes(
    run: Run, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    set_stdin(monkeypatch, f"s3cret{ending}".encode())
    code, out, err = run("hash")
    assert (code, err) == (0, "")
    assert keys.matches_slow_hash("s3cret", out.rstrip("\n")) and out.count("\n") == 1


@pytest.mark.parametrize("given", [b"", b"\n", b"\xff", b"x" * 1025])
def test_hash_of_no_key(run: Run, monkeypatch: pytest.MonkeyPatch, given: bytes) -> None:
    set_stdin(monkeypatch, given)
    assert run("hash") == (
        1, "", "penstock: give a key of 1 to 1024 bytes of UTF-8 on stdin\n",
    )  # fmt: skip


def set_stdin(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_help_does_not_load_the_log() -> None:
    program = (
        "import sys; from penstock.cli.main import main; main(['key', '--help']);"
        "print([m for m in sys.modules if m.startswith(('penstock.log', 'penstock.broker'))])"
    )
    source = str(Path(__file__).parents[2] / "src")
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        env={"PYTHONPATH": source},
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert "revoke" in done.stdout


# ---- over HTTP: what is sent, and what becomes of the answers ------------------------------------


class Answering(HTTPServer):
    """Answers every request with the same status and body, and keeps what was asked."""

    status = 200
    content = b"{}"
    location: str | None = None

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, str, str | None, bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Answering

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        key = self.headers.get("Authorization")
        self.server.asked.append((self.command, self.path, key, body))
        self.send_response(self.server.status)
        if self.server.location is not None:
            self.send_header("Location", self.server.location)
        self.send_header("Content-Length", str(len(self.server.content)))
        self.end_headers()
        self.wfile.write(self.server.content)

    do_GET = do_POST = do_DELETE = _answer

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[Answering]:
    with Answering() as answering:
        thread = threading.Thread(target=answering.serve_forever, args=(0.01,))
        thread.start()
        yield answering
        answering.shutdown()
        thread.join()


def test_create_over_http(run: Run, server: Answering, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_KEY", "admins-key")
    monkeypatch.setenv("PENSTOCK_HTTP", server.url)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # must not be asked
    server.status = 201
    server.content = b'{"name":"a","role":"reader","topics":["x"],"key":"pk_new"}'
    code, out, err = run("create", "a", "--role", "reader", "--topics", "x")
    assert (code, out) == (0, "pk_new\n")
    assert "pk_new" not in err and "admins-key" not in err
    # The second call looks for a key of an admin; that its answer is none here harms nothing.
    (method, path, key, body), second = server.asked
    assert (method, path, key) == ("POST", "/api/v1/keys", "Bearer admins-key")
    assert json.loads(body) == {"name": "a", "role": "reader", "topics": ["x"]}
    assert second == ("GET", "/api/v1/keys?limit=10000", "Bearer admins-key", b"")
    assert err.count("\n") == 1


def test_a_key_of_an_admin_needs_one_call(run: Run, server: Answering) -> None:
    server.status, server.content = 201, b'{"key":"pk_new"}'
    assert run("create", "a", "--role", "admin", "--http", server.url)[:2] == (0, "pk_new\n")
    assert len(server.asked) == 1


def test_the_first_key_in_a_directory_should_be_an_admins(run: Run, tmp_path: Path) -> None:
    advice = f"penstock key create NAME --role admin --data {tmp_path}\n"
    assert run("create", "a", "--data", str(tmp_path))[2].endswith(advice)
    assert advice not in run("create", "b", "--role", "admin", "--data", str(tmp_path))[2]
    assert advice not in run("create", "c", "--data", str(tmp_path))[2]


def test_a_full_disk_is_one_line(run: Run, tmp_path: Path) -> None:
    """In a process of its own: only there nobody listens to the log."""
    assert run("create", "a", "--data", str(tmp_path))[0] == 0
    program = """
import resource, signal, sys
from penstock.broker.access.key_table import KeyTable
from penstock.cli.main import main

def add(*arguments):
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1))
    return add_really(*arguments)

add_really, KeyTable.add = KeyTable.add, add
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
sys.exit(main(sys.argv[1:]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, "key", "create", "b", "--data", str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        env={"PYTHONPATH": str(Path(__file__).parents[2] / "src")},
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("penstock: ") and done.stderr.count("\n") == 1, done.stderr
    assert "not written" in done.stderr


def test_the_help_of_hash_names_the_place(run: Run) -> None:
    code, out, _ = run("hash", "--help")
    assert code == 0
    assert "for `hash` of a key in the configuration file" in " ".join(out.split())


def test_list_over_http(run: Run, server: Answering) -> None:
    server.content = (
        b'{"keys":[{"name":"a","role":"user","topics":["*"],"created_us":null,'
        b'"revoked_us":null,"source":"configuration","later":1}]}'
    )
    code, out, _ = run("list", "--http", server.url)
    assert code == 0
    assert out.splitlines()[1].split(maxsplit=4) == [
        "a",
        "user",
        "*",
        "-",
        "active (configuration)",
    ]
    assert server.asked == [("GET", "/api/v1/keys?limit=10000", f"Bearer {DEVELOPMENT_KEY}", b"")]


def test_revoke_over_http(run: Run, server: Answering) -> None:
    server.status, server.content = 204, b""
    code, out, err = run("revoke", "a/b ü", "--http", f"{server.url}/")
    assert (code, out, err) == (0, "", "API key 'a/b ü' is revoked\n")
    assert server.asked[0][:2] == ("DELETE", "/api/v1/keys/a%2Fb%20%C3%BC")


@pytest.mark.parametrize(
    ("status", "content", "exit_code", "text"),
    [
        (401, b'{"error":{"number":8,"name":"NOT_AUTHENTICATED","text":"log in first"}}', 5,
         "log in first; give an API key that may do this, with PENSTOCK_KEY or a context"),
        (403, b'{"error":{"number":9,"name":"NOT_AUTHORIZED","text":"not you"}}', 5, "not you"),
        (404, b'{"error":{"number":22,"name":"UNKNOWN_KEY","text":"is not"}}', 3, "is not"),
        (409, b'{"error":{"number":23,"name":"KEY_EXISTS","text":"is there"}}', 1, "is there"),
        (404, b"<html>", 1, "does not answer like Penstock: status 404"),
        (200, b"<html>", 1, "does not answer like Penstock: no JSON"),
        (200, b'{"key":7}', 1, "does not answer like Penstock: an answer of another shape"),
        (200, b"", 1, "does not answer like Penstock: an answer of another shape"),
        (500, b"\xff", 1, "does not answer like Penstock: status 500"),
    ],
)  # fmt: skip
def test_answers_that_are_errors(
    run: Run, server: Answering, status: int, content: bytes, exit_code: int, text: str
) -> None:
    server.status, server.content = status, content
    code, out, err = run("create", "a", "--http", server.url)
    assert (code, out) == (exit_code, "")
    assert text in err and err.count("\n") == 1


def test_a_redirect_does_not_get_the_key(run: Run, server: Answering) -> None:
    server.status, server.location = 302, f"{server.url}/elsewhere"
    code, _, err = run("list", "--http", server.url)
    assert code == 1 and "status 302" in err
    assert len(server.asked) == 1


def test_an_answer_without_end_is_cut(
    run: Run, server: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MAX_REPLY_BYTES", 10)
    server.content = b'{"keys":[]}'
    code, _, err = run("list", "--http", server.url)
    assert code == 1 and "its answer never ends" in err


def test_a_key_that_no_header_can_hold(
    run: Run, server: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_KEY", "two\r\nlines")
    code, _, err = run("list", "--http", server.url)
    assert code == 2 and "lines" not in err and "characters that no key has" in err
    assert server.asked == []


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8080", "ftp://a", "http://", "http://a:port", "http://[::1", "http:///x"]
)
def test_addresses_that_are_none(run: Run, url: str) -> None:
    code, _, err = run("list", "--http", url)
    assert code == 2 and err.count("\n") == 1
    assert f"--http {url!r}: write a URL such as http://127.0.0.1:8080" in err


def test_no_server(run: Run) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: connecting is refused
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        code, _, err = run("list", "--http", url)
    assert code == 4
    assert f"cannot reach {url}: Connection refused" in err and err.count("\n") == 1


def test_a_server_of_something_else(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(b"SSH-2.0-x\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        code, _, err = run("list", "--http", f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread.join()
    assert code == 1 and "does not answer like Penstock: no HTTP" in err


def test_a_context_names_the_server(run: Run, server: Answering) -> None:
    assert cli.main(["context", "add", "here", "--http", server.url, "--key", "clé"]) == 0
    server.content = b'{"keys":[]}'
    assert run("list", "--context", "here")[0] == 0
    (asked,) = server.asked
    assert asked[2] == "Bearer " + "clé".encode().decode("latin-1")
