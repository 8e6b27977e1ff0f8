"""The lines of a starting server: as text for fixed and open ports, and its commands on real servers."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from kit.echo_server import make_certificate
from kit.live_server import SOURCES, WAIT_S, LiveServer, ServerProcess

from penstock.broker.access.access import Access, Principal
from penstock.server.banner import (
    FIRST_TOPIC,
    Facts,
    Writing,
    command_here,
    key_state,
    render,
    why_there,
    writing_without_login,
)
from penstock.server.net.address import Address

TCP = ("tcp", Address("127.0.0.1", 9092))
HTTP = ("http", Address("127.0.0.1", 8080))


def facts(*listening: tuple[str, Address], **more: Any) -> Facts:
    told = {"keys": "development", **more}
    told["without_login"] = {"rustlog": told.pop("rustlog", "ready")}
    return Facts(listening, "./penstock-data", "default", **told)


def commands(text: str) -> list[str]:
    return re.findall(r"^\w[\w ]+: +(\S*penstock .*)$", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "address", "line"),
    [
        ("tcp", Address("127.0.0.1", 9092), "Send a message:  penstock pub demo hello"),
        ("tcp", Address("0.0.0.0", 9092), "Send a message:  penstock pub demo hello"),
        ("tcp", Address("::", 7), "Send a message:  penstock pub --server [::1]:7 demo hello"),
        ("blipmq", Address("box", 7), "Send a message:  penstock pub --server box:7 demo hello"),
        ("http", Address("127.0.0.1", 8080), "Read it again:   penstock cat demo"),
        ("http", Address("box", 7), "Read it again:   penstock cat --http http://box:7 demo"),
    ],
)
def test_the_first_commands_find_the_server(name: str, address: Address, line: str) -> None:
    assert render(facts((name, address))).splitlines()[-1] == line


@pytest.mark.parametrize(
    ("listening", "more", "expected"),
    [
        # RustLog makes no topic by itself, and does not need one that is there.
        (["rustlog", "http"], {"rustlog": "no topic"}, ["topic create", "pub RUSTLOG", "cat"]),
        (["rustlog", "http"], {"rustlog": "ready"}, ["pub RUSTLOG", "cat"]),
        (["rustlog"], {"rustlog": "no topic"}, []),
        (["rustlog", "http"], {"rustlog": "not allowed", "keys": "admin"}, ["cat"]),
        (["rustlog", "blipmq"], {"rustlog": "no topic"}, ["pub BLIPMQ"]),
        # Nobody can log in.
        (["tcp", "http"], {"rustlog": "no topic", "keys": "none"}, []),
        (["tcp", "http"], {"rustlog": "ready", "keys": "none"}, ["pub TCP RUSTLOG"]),
        (["blipmq", "http"], {"rustlog": "ready", "keys": "none"}, []),
        # Without TLS where that is possible.
        (["tcp", "blipmq"], {"tls": True, "tls_only": {"tcp"}}, ["pub BLIPMQ"]),
        (["tcp"], {"tls": True, "tls_only": {"tcp"}}, ["pub TCP --tls"]),
        # The command line has no certificate to show.
        (["tcp", "http"], {"tls_only": {"tcp"}, "client_certificates": True}, ["cat"]),
        (["http"], {"tls_only": {"http"}, "client_certificates": True}, []),
        ([], {}, []),
    ],
)
def test_which_commands_there_are(
    listening: list[str], more: Mapping[str, Any], expected: list[str]
) -> None:
    ports = {name: 10 + number for number, name in enumerate(("tcp", "blipmq", "rustlog", "http"))}
    told = render(facts(*[(name, Address("box", ports[name])) for name in listening], **more))
    http = f"--http http://box:{ports['http']}"
    words = {
        "topic create": f"penstock topic create {http} demo",
        "cat": f"penstock cat {http} demo",
        "pub TCP --tls": f"penstock pub --server box:{ports['tcp']} --tls demo hello",
        "pub TCP RUSTLOG": f"penstock pub --server box:{ports['tcp']} --protocol rustlog demo hello",
        "pub BLIPMQ": f"penstock pub --server box:{ports['blipmq']} demo hello",
        "pub RUSTLOG": f"penstock pub --server box:{ports['rustlog']} --protocol rustlog demo hello",
    }
    assert commands(told) == [words[one] for one in expected]


@pytest.mark.parametrize(
    ("more", "name", "row"),
    [
        ({}, "tcp", "box:1  FlyMQ, RustLog and BlipMQ"),
        ({"tls": True}, "tcp", "box:1  FlyMQ, RustLog and BlipMQ, with or without TLS"),
        ({"tls": True, "tls_only": {"tcp"}}, "tcp", "box:1  FlyMQ, RustLog and BlipMQ, TLS only"),
        (
            {"tls": True, "tls_only": {"tcp"}, "client_certificates": True},
            "tcp",
            "box:1  FlyMQ, RustLog and BlipMQ, TLS with a client certificate only",
        ),
        ({"tls": True}, "http", "http://box:1  /healthz /readyz /metrics /api/v1"),
        ({"tls_only": {"http"}}, "http", "https://box:1  /healthz /readyz /metrics /api/v1"),
        ({"tls": True, "tls_only": {"flight"}}, "flight", "grpc+tls://box:1  Arrow Flight"),
        ({}, "flight", "grpc://box:1  Arrow Flight"),
    ],
)
def test_what_a_listener_takes(more: Mapping[str, Any], name: str, row: str) -> None:
    line = render(facts((name, Address("box", 1)), **more)).splitlines()[1]
    assert line == f"  {name:<7} {row}"


NO_ADMIN = (
    "there is no admin key; stop the server and make one:  penstock key create NAME --role admin"
)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("development", ["dev-key  (no API keys yet, and only this machine can connect)"]),
        ("admin", ["needed: set PENSTOCK_KEY to an API key of this server"]),
        (
            "no admin",
            [
                "needed: set PENSTOCK_KEY to an API key of this server",
                f"{NO_ADMIN} --data ./penstock-data",
            ],
        ),
        ("none", [f"{NO_ADMIN} --data ./penstock-data"]),
    ],
)
def test_which_key_one_needs(keys: str, expected: list[str]) -> None:
    lines = render(facts(TCP, HTTP, keys=keys)).splitlines()
    assert [line[10:] for line in lines if line.startswith("  key ")] == expected


def test_what_others_can_reach_is_said() -> None:
    outside = (("tcp", Address("0.0.0.0", 1)), ("http", Address("0.0.0.0", 2)))
    text = render(facts(*outside, tls=True, tls_only={"tcp", "http"}, keys="admin", insecure=True))
    assert "https://0.0.0.0:2" in text
    assert "dev-key" not in text
    assert "insecure: other machines may connect" in text
    assert "  tls     HOST is a name in the certificate; add --ca FILE if" in text
    assert commands(text) == [
        "penstock pub --server HOST:1 --tls demo hello",
        "penstock cat --http https://HOST:2 demo",
    ]


def test_why_the_data_is_there() -> None:
    assert why_there("default", "default") == "default; change it with --data"
    assert why_there("file", "penstock.toml:3") == "from penstock.toml:3"


@pytest.mark.parametrize(
    ("installed", "found", "command"),
    [
        ("env/bin/penstock", "/usr/bin/penstock", "penstock"),
        ("env/bin/penstock", None, "env/bin/penstock"),
        ("my env/bin/penstock", None, "'my env/bin/penstock'"),
        ("../env/bin/penstock", None, "{parent}/env/bin/penstock"),
        (None, None, "{here}/env/bin/python -m penstock"),
    ],
)
def test_the_command_as_it_has_to_be_typed_here(
    installed: str | None,
    found: str | None,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    program = (here / (installed or "env/bin/penstock")).resolve()
    if installed:
        program.parent.mkdir(parents=True)
        program.touch()
    shown = command_here(lambda name: found, str(program.with_name("python")))
    assert shown == command.format(parent=tmp_path, here=here)


def test_the_banner_names_that_command(tmp_path: Path) -> None:
    """Where the tests run, `penstock` is beside the Python that runs them."""
    found = shutil.which("penstock")
    expected = "penstock" if found else f"{Path(sys.executable).parent}/penstock"
    with ServerProcess(tmp_path / "data", {}) as served:
        (first, *_) = commands(served.banner)
        program = first.split()[0]
        assert program == expected or Path(program).resolve() == Path(expected).resolve()


# --- real servers --------------------------------------------------------------------------------


def penstock(
    arguments: Sequence[str], directory: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if "PENSTOCK_" not in name}
    environment = {**kept, "PYTHONPATH": SOURCES, "XDG_CONFIG_HOME": str(directory), **variables}
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", *arguments],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        timeout=WAIT_S,
    )


def try_commands(served: ServerProcess, directory: Path, key: str = "", ca: str = "") -> None:
    """All that the banner shows, by somebody who has the key and knows the certificate."""
    shown = commands(served.banner)
    assert [line.split()[1] for line in shown][-2:] == ["pub", "cat"], served.banner
    for line in shown:
        words = shlex.split(line.replace("HOST", "localhost"))[1:]
        words += ["--ca", ca] if "HOST" in line else []
        done = penstock(words, directory, **({"PENSTOCK_KEY": key} if key else {}))
        assert done.returncode == 0, f"{line}: {done.stderr}"
    assert done.stdout == "hello\n"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"listeners.tcp": "off"},
        {"listeners.tcp": "off", "listeners.blipmq": "off"},
        {"listeners.tcp": "off", "listeners.blipmq": "off", "rustlog.auto_create": "true"},
    ],
    ids=["all", "no tcp", "RustLog alone", "RustLog makes topics"],
)
def test_the_commands_work_as_they_stand(tmp_path: Path, settings: Mapping[str, str]) -> None:
    with ServerProcess(tmp_path / "data", settings) as served:
        try_commands(served, tmp_path)


@pytest.mark.parametrize("http", ["127.0.0.1:0", "0.0.0.0:0"])
def test_the_commands_work_with_a_key_and_tls(tmp_path: Path, http: str) -> None:
    made = penstock(
        ["key", "create", "ops", "--role", "admin", "--data", f"{tmp_path}/data"], tmp_path
    )
    pem = make_certificate(tmp_path)
    settings = {
        "listeners.tcp": "0.0.0.0:0",
        "listeners.blipmq": "off",
        "listeners.http": http,
        "tls.certificate": pem.certificate,
        "tls.key": pem.key,
    }
    with ServerProcess(tmp_path / "data", settings) as served:
        assert "FlyMQ, RustLog and BlipMQ, TLS only" in served.banner
        assert "set PENSTOCK_KEY" in served.banner
        assert "--tls" in served.banner and "no admin key" not in served.banner
        try_commands(served, tmp_path, made.stdout.strip(), pem.certificate)


def test_the_command_that_makes_the_first_admin_key(tmp_path: Path) -> None:
    """For a server that has keys, but nobody who could make another one."""
    data = tmp_path / "the data"
    penstock(["key", "create", "feed", "--role", "writer", "--data", str(data)], tmp_path)
    with ServerProcess(data) as served:
        assert served.stop() == 0
    (line,) = re.findall(r"there is no admin key.*?(penstock key create .*)$", served.banner, re.M)
    made = penstock(shlex.split(line)[1:], tmp_path)
    assert made.returncode == 0, made.stderr
    with ServerProcess(data) as served:
        try_commands(served, tmp_path, made.stdout.strip())


# --- what the server knows of its keys -----------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "revoked", "expected"),
    [
        ([], [], "none"),
        ([("a", "admin", ("*",))], [], "admin"),
        ([("a", "admin", ("*",)), ("w", "writer", ("*",))], ["a"], "no admin"),
        ([("a", "admin", ("orders.*",))], [], "no admin"),
        ([("a", "admin", ("*",))], ["a"], "none"),
    ],
)
def test_the_keys_that_can_log_in(
    tmp_path: Path, made: list[Any], revoked: list[str], expected: str
) -> None:
    with LiveServer(tmp_path / "data") as live:
        assert key_state(live.server.broker.access) == "development"
        nobody = Principal("anonymous", "nobody")
        metadata = live.server.engine.metadata
        access = Access(metadata, (), development_key=False, anonymous=nobody)
        for name, role, topics in made:
            access.create_key(name, role, topics)
        for name in revoked:
            access.revoke_key(name, force=True)
        assert key_state(access) == expected


@pytest.mark.parametrize(("auto_create", "before"), [("false", "no topic"), ("true", "ready")])
def test_whether_rustlog_may_write(tmp_path: Path, auto_create: str, before: str) -> None:
    with LiveServer(tmp_path / "data", {"rustlog.auto_create": auto_create}) as live:
        broker, sections = live.server.broker, live.server.config.protocols

        def state() -> dict[str, Writing]:
            return live.call(lambda: writing_without_login(broker, sections))

        # Felix and Fujin make no topics unless told so.
        without = {"flymq": "ready", "felix": "no topic", "fujin": "no topic"}
        assert state() == {"rustlog": before, **without}
        live.call(lambda: broker.ensure_topic(FIRST_TOPIC, broker.access.anonymous))
        others: dict[str, Writing] = dict.fromkeys(("flymq", "felix", "fujin"), "ready")
        assert state() == {"rustlog": "ready", **others}
        broker.access.act_as("rustlog", Principal("anonymous", "nobody"))
        assert state() == {"rustlog": "not allowed", **others}
