"""The log of a run, and SIGHUP: what it changes, what it names, and what it leaves alone."""

import http.client
import json
import os
import signal
import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from cli.test_serve import Served, ask, serving
from cryptography.x509 import load_der_x509_certificate
from kit.echo_server import make_certificate
from kit.limits import HANG_S

from penstock.cli import serve
from penstock.wire.rustlog import frames as rustlog


class Log:
    """The stderr of a server, line by line."""

    def __init__(self, served: Served) -> None:
        assert served.process.stderr is not None
        self._lines = served.process.stderr
        self._served = served
        self.seen: list[str] = []

    def until(self, words: str) -> list[str]:
        """The lines up to the first one with these words."""
        hang = threading.Timer(HANG_S, self._served.process.kill)
        hang.start()
        found = []
        for line in self._lines:
            found.append(line.rstrip())
            if words in line:
                hang.cancel()
                return found
        raise AssertionError(f"the log ended without {words!r}: {found}")

    def reload(self, words: str) -> list[str]:
        self._served.process.send_signal(signal.SIGHUP)
        return self.until(words)


def test_a_run_in_its_log(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        ask(served.ports["tcp"], rustlog.CreateTopic("t", 2))
        assert call(served, "DELETE", "/api/v1/topics/t", "dev-key") == 204
        for _ in range(3):
            assert login(served, "wrong") == 401
        served.process.send_signal(signal.SIGTERM)
        code, text = served.end_with_log()
    assert code == 0
    messages = [line.split(": ", 1)[1] for line in text.splitlines()]
    assert messages[0].startswith("started: Penstock ")
    assert f"tcp 127.0.0.1:{served.ports['tcp']}" in messages[0]
    assert messages[0].endswith(f"data in {tmp_path}/penstock-data")
    assert messages[1:] == [
        "topic 't' was made, 2 partition(s), by anonymous",
        "topic 't' was deleted by dev-key",
        "127.0.0.1 (HTTP): a login with a wrong key failed",
        "stopping",
        "stopped",
    ]


def test_a_run_in_json(tmp_path: Path) -> None:
    with serving(tmp_path, "--set", "server.log_format=json") as served:
        served.process.send_signal(signal.SIGTERM)
        _, text = served.end_with_log()
    messages = [json.loads(line)["message"] for line in text.splitlines()]
    assert messages[0].startswith("started: ") and messages[1:] == ["stopping", "stopped"]


def test_another_system_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(serve.NotLinux) as caught:
        serve.serve({})
    assert str(caught.value) == "the server runs on Linux, and this is darwin; clients run here too"


def login(served: Served, key: str) -> int:
    return call(served, "GET", "/api/v1/topics", key)


def call(served: Served, method: str, path: str, key: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", served.ports["http"], timeout=HANG_S)
    try:
        connection.request(method, path, headers={"Authorization": f"Bearer {key}"})
        return connection.getresponse().status
    finally:
        connection.close()


KEYS = '[[keys]]\nname = "{0}"\nkey = "secret-{0}"\nrole = "admin"\n'


def test_sighup_applies_what_can_change_and_names_the_rest(tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text(KEYS.format("old"))
    with serving(tmp_path, "--config", str(config)) as served:
        log = Log(served)
        log.until("started: ")
        assert login(served, "secret-old") == 200
        assert any("SIGHUP: nothing has changed" in line for line in log.reload("SIGHUP"))
        config.write_text(
            "[limits]\nconnections_per_address = 7\nfailed_logins = 3\n"
            '[topic_defaults]\npartitions = 4\n[server]\nlog_format = "json"\n' + KEYS.format("new")
        )
        told = log.reload("topic_defaults.partitions")
        shown = [line.partition("SIGHUP: ")[2] for line in told]
        assert "[[keys]] were read again, there are 1 now" in shown
        assert "limits.connections_per_address = 7 (it was 1000)" in shown
        assert "limits.failed_logins = 3 needs a restart; it stays 10" in shown
        assert 'server.log_format = "json" (it was "text")' in shown
        assert login(served, "secret-old") == 401
        assert login(served, "secret-new") == 200
        ask(served.ports["tcp"], rustlog.CreateTopic("t", 1))
        config.write_text("[limits]\nconnections_per_address = 0\n")
        (line,) = [json.loads(text)["message"] for text in log.reload("SIGHUP")[-1:]]
        assert line.startswith("SIGHUP: nothing is changed: ")
        assert f"{config}:2: limits.connections_per_address = 0" in line
        assert login(served, "secret-new") == 200
        config.write_text("[limits")
        assert "not valid TOML" in log.reload("nothing is changed")[-1]
        assert served.http("/readyz")[0] == 200


def serial_of(port: int) -> int:
    """Of the certificate that the server shows."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", port), timeout=HANG_S) as plain,
        context.wrap_socket(plain) as encrypted,
    ):
        content = encrypted.getpeercert(binary_form=True)
    assert content is not None
    return load_der_x509_certificate(content).serial_number


@pytest.mark.timeout(300)
def test_sighup_reads_the_certificate_again(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    first, second = make_certificate(tmp_path), make_certificate(tmp_path / "other")
    flags = ["--set", f"tls.certificate={first.certificate}", "--set", f"tls.key={first.key}"]
    with serving(tmp_path, *flags, "--flight", "127.0.0.1:0") as served:
        log = Log(served)
        log.until("started: ")
        before = {name: serial_of(served.ports[name]) for name in ("tcp", "flight")}
        assert len(set(before.values())) == 1
        os.replace(second.key, first.key)
        assert "nothing is changed" in log.reload("SIGHUP")[-1]
        os.replace(second.certificate, first.certificate)
        told = log.reload("the Flight process is started anew")
        assert any("the certificates were read again" in line for line in told)
        after = serial_of(served.ports["tcp"])
        assert after not in before.values()
        # Between the two processes nobody listens.
        found = None
        while found != after:
            with suppress(OSError):
                found = serial_of(served.ports["flight"])
        served.process.send_signal(signal.SIGTERM)
        assert served.end()[0] == 0
