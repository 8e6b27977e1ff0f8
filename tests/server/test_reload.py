"""SIGHUP, option by option: what is applied holds from then on, and everything else is named."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.echo_server import make_certificate, run
from kit.listeners import free_listeners
from kit.running_server import Running, running_server

from penstock.server import logs
from penstock.server.assembly import flight_settings
from penstock.server.config.errors import ConfigError
from penstock.server.config.loading import LoadedConfig, load_config
from penstock.server.config.schema import KNOWN_KEYS
from penstock.server.net.address import Address
from penstock.server.reload import reload

# Tried in this order: the first one that the option takes, and that is not what it has already.
VALUES = (
    *(
        "7 s",
        "17",
        "70 KiB",
        "7 MiB",
        "70 MiB",
        "700 MiB",
        "true",
        "debug",
        "json",
        "zstd",
        "compact",
        "interval",
        "none",
        "doc",
        "drop_oldest",
        "1300",
        "binary",
        "on",
        "document",
        "a/b",
        "a/b/c",
        '{ "a" = "block" }',
        '{ "a/b/c" = "block" }',
        '{ "a" = { topic = "b" } }',
    ),
    *("reference", "silent", "key", "sdk", "other.example", "127.0.0.1:0", "off", "/x", "kafka"),
)
# They come together, and are files that must be there.
TLS = (
    "tls.certificate",
    "tls.key",
    "tls.client_ca",
    "tls.client_crl",
    "tls.client_user",
    "tls.client_users",
)
# Keys that must be there: tests/e2e/test_encryption.py.
ENCRYPTION = ("encryption.keys", "encryption.current", "topic_defaults.encryption")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


def base(data: Path) -> dict[str, str]:
    return {"server.data_directory": str(data), **free_listeners({})}


def changed(data: Path, name: str) -> LoadedConfig:
    before = load_config(None, {}, base(data)).config.value(name)
    # The other engine has to be told where Kafka is.
    more = {"kafka.bootstrap": "127.0.0.1:1"} if name == "server.engine" else {}
    for value in VALUES:
        try:
            loaded = load_config(None, {}, {**base(data), **more, name: value})
        except ConfigError:
            continue
        if loaded.config.value(name) != before:
            return loaded
    raise AssertionError(f"no value of this test fits {name}: add one")


def in_use(running: Running) -> object:
    """What the server goes by now. The Flight process is started with the last of these."""
    server = running.server
    assert server.http.api is not None
    return (
        server.hub.limits,
        server.broker.options,
        server.http.names,
        server.http.api.defaults,
        server.config.server.drain_time_us,
        server.config.audit,
        logging.getLogger().level,
        [type(handler.formatter) for handler in logging.getLogger().handlers],
        flight_settings(server.config, Address("127.0.0.1", 1)),
    )


def test_every_option_is_applied_or_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a file of the audit trail is made there
    told: list[str] = []

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())

    logger = logging.getLogger("penstock.server.reload")
    heard = Heard()
    logger.addHandler(heard)

    async def body() -> None:
        async with running_server(tmp_path) as running:
            server = running.server
            unchanged = load_config(None, {}, base(tmp_path))
            logs.configure("info", "text")
            for name in KNOWN_KEYS:
                if name in (*TLS, *ENCRYPTION):
                    continue
                wanted = changed(tmp_path, name)
                before = in_use(running)
                told.clear()
                await reload(server, lambda loaded=wanted: loaded)  # type: ignore[misc]  # bound now
                lines = [line for line in told if f"SIGHUP: {name} = " in line]
                assert len(lines) == 1, (name, told)
                restart = "needs a restart; it stays " in lines[0]
                assert (in_use(running) == before) is restart, lines[0]
                await reload(server, lambda: unchanged)
                assert in_use(running) == before, name

    try:
        run("uvloop", body)
    finally:
        logger.removeHandler(heard)


def test_tls_where_there_was_none_needs_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pem = make_certificate(tmp_path)
    given = {
        "tls.certificate": pem.certificate,
        "tls.key": pem.key,
        "tls.client_ca": pem.certificate,
    }

    async def body() -> None:
        async with running_server(tmp_path / "data") as running:
            flags = {**base(tmp_path / "data"), **free_listeners(given), **given}
            await reload(running.server, lambda: load_config(None, {}, flags))
            assert running.server.certificates.context is None
            assert running.server.config.tls.certificate is None, "else Flight alone would have it"

    run("uvloop", body)
    lines = [record.getMessage() for record in caplog.records]
    for name in given:
        assert any(f"{name} = " in line and "needs a restart" in line for line in lines)


KEY = '[[keys]]\nname = "{0}"\nkey = "secret-{0}"\nrole = "admin"\n'


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (
            "",
            KEY.format("a"),
            "the first [[keys]] need a restart, nobody can log in with them before",
        ),
        (
            KEY.format("a") + KEY.format("b"),
            "",
            "to be without [[keys]] needs a restart; the 2 that there were still work",
        ),
    ],
    ids=["first", "last"],
)
def test_the_first_key_and_the_last_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, before: str, after: str, words: str
) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text(before)
    data = tmp_path / "data"

    async def body() -> None:
        async with running_server(data, config) as running:
            known = await running.call("GET", "/api/v1/topics", key="secret-a")
            config.write_text(after)
            caplog.clear()
            await reload(running.server, lambda: load_config(str(config), {}, base(data)))
            again = await running.call("GET", "/api/v1/topics", key="secret-a")
            assert known.status == again.status == (200 if before else 401)

    run("uvloop", body)
    lines = [record.getMessage() for record in caplog.records if "SIGHUP" in record.getMessage()]
    assert len(lines) == 1 and words in lines[0]
