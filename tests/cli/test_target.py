"""Which server a command talks to, contexts and their file, and how records are written."""

import stat
from pathlib import Path
from typing import Any

import pytest
import typer

from penstock.cli import main as cli
from penstock.cli.contexts import BadContexts, Context, Contexts, UnknownContext, load, save
from penstock.cli.output import Record, formatter
from penstock.cli.places import Place, parse_place
from penstock.cli.target import Target, resolve
from penstock.cli.topic import parse_settings


@pytest.fixture
def config_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("SERVER", "HTTP", "KEY", "CONTEXT"):
        monkeypatch.delenv(f"PENSTOCK_{name}", raising=False)
    return tmp_path


def shown(target: Target) -> tuple[str, str, str]:
    return target.server, target.http, target.key


DEFAULTS = ("127.0.0.1:9092", "http://127.0.0.1:8080", "dev-key")
ENVIRONMENT = {"PENSTOCK_SERVER": "env:1", "PENSTOCK_HTTP": "http://env", "PENSTOCK_KEY": "env-key"}


@pytest.mark.parametrize(
    ("flags", "environment", "expected"),
    [
        ({}, {}, ("used:1", "http://used", "used-key")),
        ({}, ENVIRONMENT, ("env:1", "http://env", "env-key")),
        ({"server": "flag:1"}, ENVIRONMENT, ("flag:1", "http://env", "env-key")),
        ({"context": "other"}, ENVIRONMENT, ("other:1", "http://env", "env-key")),
        ({"context": "other"}, {}, ("other:1", *DEFAULTS[1:])),
        ({}, {"PENSTOCK_CONTEXT": "other"}, ("other:1", *DEFAULTS[1:])),
        ({"context": "other", "key": "flag"}, {}, ("other:1", DEFAULTS[1], "flag")),
    ],
)
def test_flags_contexts_environment_defaults(
    config_home: Path, flags: dict[str, Any], environment: dict[str, str], expected: tuple[str, ...]
) -> None:
    used = Context("used:1", "http://used", "used-key")
    save(Contexts({"used": used, "other": Context("other:1")}), "used")
    assert shown(resolve(flags, environment)) == expected


def test_without_anything_the_defaults_hold(config_home: Path) -> None:
    target = resolve({}, {})
    assert shown(target) == DEFAULTS
    assert "dev-key" not in repr(target)


def test_the_commands_on_contexts(config_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config_home / "penstock" / "contexts.toml"
    assert cli.main(["context", "add", "one", "--server", "a:1", "--key", 'q"\\é', "--tls"]) == 0
    assert cli.main(["context", "add", "two", "--http", "http://b"]) == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    contexts, current = load()
    assert contexts.by_name["one"] == Context("a:1", None, 'q"\\é', True, None)
    assert current == "one"
    assert cli.main(["context", "use", "two"]) == 0
    capsys.readouterr()
    assert cli.main(["context", "ls"]) == 0
    table = capsys.readouterr().out
    assert table.splitlines()[0].split() == ["CURRENT", "NAME", "SERVER", "HTTP", "KEY", "TLS"]
    assert table.splitlines()[2].split() == ["yes", "two", "-", "http://b", "-", "no"]
    assert "é" not in table
    assert cli.main(["context", "use", "tow"]) == 3
    assert capsys.readouterr().err == "penstock: no context named 'tow'; did you mean two?\n"
    assert cli.main(["context", "rm", "two"]) == 0
    assert load() == (Contexts({"one": contexts.by_name["one"]}), None)


@pytest.mark.parametrize(
    "command",
    [
        ["pub", "demo", "x", "--server", "127.0.0.1:1", "--tls"],
        ["cat", "demo", "--http", "https://127.0.0.1:1"],
    ],
)
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file or directory"),
        ("import this", "no certificate in PEM form is in it"),
    ],
)
def test_certificates_that_cannot_be_used(
    config_home: Path,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    content: str | None,
    reason: str,
) -> None:
    path = config_home / "ca.pem"
    if content is not None:
        path.write_text(content)
    assert cli.main([*command, "--ca", str(path)]) == 1
    assert capsys.readouterr().err == f"penstock: --ca {path}: {reason}\n"


def test_a_certificate_of_ones_own(config_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It switches TLS on, and makes a key needless unless one is named."""
    target = resolve({"cert": "me.pem", "cert_key": "me.key"}, {})
    assert (target.cert, target.cert_key, target.tls) == ("me.pem", "me.key", True)
    assert target.login_key is None
    assert resolve({"cert": "me.pem"}, {"PENSTOCK_KEY": "k"}).login_key == "k"
    assert resolve({}, {}).login_key == "dev-key"
    add = ["context", "add", "mine", "--server", "a:1", "--cert", "a.pem", "--cert-key", "a.key"]
    assert cli.main(add) == 0
    target = resolve({}, {})
    assert (target.cert, target.cert_key, target.tls) == ("a.pem", "a.key", True)
    # Another certificate has another key.
    assert resolve({"cert": "b.pem"}, {}).cert_key is None
    capsys.readouterr()
    for command in (["context", "add", "x", "--cert-key", "k"], ["topic", "ls", "--cert", ""]):
        assert cli.main(command) == 2
    assert "--cert-key needs --cert" in capsys.readouterr().err
    assert cli.main(["pub", "t", "x", "--cert", str(config_home / "none.pem")]) == 1
    assert "none.pem: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", "a b", "a.b", "x" * 65, "ä"])
def test_names_that_contexts_cannot_have(config_home: Path, name: str) -> None:
    assert cli.main(["context", "add", name, "--server", "a:1"]) == 2
    assert not (config_home / "penstock").exists()


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        'other = "x"',
        "contexts = 3",
        "[contexts.a]\nserver = 3",
        "[contexts.a]\nport = 'x'",
    ],
)
def test_a_damaged_file_is_one_line(config_home: Path, text: str) -> None:
    path = config_home / "contexts.toml"
    path.write_text(text)
    with pytest.raises(BadContexts, match=r"contexts\.toml: "):
        load(str(path))


def test_an_unknown_context_names_the_nearest(config_home: Path) -> None:
    save(Contexts({"production": Context("a:1")}), None)
    with pytest.raises(UnknownContext, match="did you mean production"):
        resolve({"context": "prodution"}, {})


# ---- records as text ----

RECORD = Record("demo", b"v\xff", 2, 7, 1_000, b"k", [("h", b"1"), ("i", b"2")])


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (r"%o %v\n", b"7 v\xff\n"),
        (r"%t/%p@%T %k=%S%%\t\\", b"demo/2@1000 k=2%\t\\"),
        (r"%h\x00\0", b"h=1,i=2\0\0"),
        ("", b""),
        ("é", "é".encode()),
    ],
)
def test_formats(template: str, expected: bytes) -> None:
    assert formatter(False, template)(RECORD) == expected


def test_what_is_not_told_is_empty() -> None:
    assert formatter(False, "%p%o%T%k%h|%v")(Record("demo", b"x")) == b"|x"


@pytest.mark.parametrize("template", ["%q", "100%", "\\", r"\x1", r"\q"])
def test_unknown_tokens_are_an_error(template: str) -> None:
    with pytest.raises(typer.BadParameter, match="--format"):
        formatter(False, template)


def test_json_lines_and_plain_lines() -> None:
    assert formatter(True, None)(RECORD) == (
        b'{"topic":"demo","partition":2,"offset":7,"timestamp_us":1000,"key":"k",'
        b'"value_base64":"dv8=","headers":[{"name":"h","value":"1"},{"name":"i","value":"2"}]}\n'
    )
    assert formatter(True, None)(Record("demo", b"x")) == b'{"topic":"demo","value":"x"}\n'
    assert formatter(False, None)(RECORD) == b"v\xff\n"
    with pytest.raises(typer.BadParameter):
        formatter(True, "%v")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", Place(word="earliest")),
        ("latest", Place(word="latest")),
        ("0", Place(offset=0)),
        ("-5", Place(last=5)),
        ("-90s", Place(time_us=910_000_000)),
        ("-10m", Place(time_us=400_000_000)),
        ("-7 d", Place(time_us=0)),
        ("1970-01-01T00:00:01Z", Place(time_us=1_000_000)),
        ("1970-01-01T01:00:00.5+01:00", Place(time_us=500_000)),
    ],
)
def test_places(text: str, place: Place) -> None:
    assert parse_place(text, "--from", lambda: 1_000_000_000_000) == place


@pytest.mark.parametrize(
    "text", ["", "yesterday", "9223372036854775808", "9" * 5_000, "--5", "1.5", "-5x", "10m"]
)
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="--from"):
        parse_place(text, "--from")


def test_settings_are_json_or_text() -> None:
    texts = ["a=3", "b=true", "c=30 d", "d=", 'e="x"', "f=a=b"]
    parsed = {"a": 3, "b": True, "c": "30 d", "d": "", "e": "x", "f": "a=b"}
    assert parse_settings(texts) == parsed
    units = ["retention_ms=7 d", "segment_bytes=64 MiB", "retention_bytes=off", "retention_ms=off"]
    assert parse_settings(units[:3]) == {
        "retention_ms": 604_800_000,
        "segment_bytes": 67_108_864,
        "retention_bytes": 0,
    }
    assert parse_settings(units[3:]) == {"retention_ms": 0}
    for wrong in ("a", "=3", "retention_ms=soon", "segment_bytes=7 d"):
        with pytest.raises(typer.BadParameter):
            parse_settings([wrong])
