"""Tables of routes: what they take, where passwords are, and that nobody sees them."""

from pathlib import Path

import pytest

from penstock.server.config.errors import BadValue
from penstock.server.config.loading import load_config
from penstock.server.config.text import render_show
from penstock.server.connectors.routes import BadRoute, ExtraMissing, Routes
from penstock.server.connectors.settings import (
    KafkaRoute,
    NatsRoute,
    Outside,
    RedisRoute,
    RouteConfig,
    login_of,
    masked,
)


def routes_of(table: str) -> dict[str, RouteConfig]:
    config = load_config(None, {}, {"fujin.routes": table}).config
    found: dict[str, RouteConfig] = config.protocols["fujin"].routes  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ('{ a = { nats = { stream = "s" } } }', "missing required field `subject`"),
        (
            '{ a = { nats = { stream = "s", subject = "s", topik = "t" } } }',
            "unknown field `topik`",
        ),
        ('{ a = { nats = { stream = "", subject = "s" } } }', "length >= 1"),
        ('{ a = { redis = { stream = "s", ack_time = "3 weeks" } } }', "a time such as"),
        ('{ a = { topic = "t", redis = { stream = "s" } } }', "exactly one"),
        ("{ a = {} }", "exactly one"),
        ('{ a = { group = "g", redis = { stream = "s" } } }', "stand in the table redis"),
        ("{ a = { amqp = {} } }", "queue, routing_key or exchange is missing"),
        ('{ a = { mqtt = { topic = "t", qos = 2 } } }', "Invalid enum value"),
        (
            '{ a = { redis = { stream = "s", password_file = "f", password_env = "E" } } }',
            "both given",
        ),
    ],
)
def test_tables_that_are_wrong(table: str, reason: str) -> None:
    with pytest.raises(BadValue) as caught:
        routes_of(table)
    assert reason in str(caught.value) and "; a: " in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://u:p4ss@h:1", "nats://u:********@h:1"),
        ("redis://:p4ss@h", "redis://:********@h"),
        ("amqp://u:p%40ss@h/v", "amqp://u:********@h/v"),
        ("amqp://u:p4@4ss@h/v", "amqp://u:********@h/v"),
        ("amqp://u:p:4ss@h/v@x", "amqp://u:********@h/v@x"),
        ("nats://u:p@h,nats://v:p4ss@i", "nats://u:********@h,nats://v:********@i"),
        ("redis://h/0?Password=p4ss@&db=1", "redis://h/0?Password=********&db=1"),
        ("mqtt://h:1883", "mqtt://h:1883"),
        ("mqtt://user@h:1883", "mqtt://user@h:1883"),
    ],
)
def test_passwords_are_hidden(url: str, shown: str) -> None:
    assert masked(url) == shown
    table = RedisRoute(url=url, stream="s")
    assert table.shown() == {"url": shown, "stream": "s"}
    assert "ss@" not in repr(table)


def test_nobody_sees_a_password() -> None:
    table = (
        '{ a = { nats = { url = "nats://u:p4ssword@h", stream = "s", subject = "s" } },'
        ' b = { kafka = { brokers = "h", topic = "t",'
        ' options = { "sasl.password" = "p4ssword", "linger.ms" = 5 } } } }'
    )
    loaded = load_config(None, {}, {"fujin.routes": table})
    shown = render_show(loaded)
    assert "p4ssword" not in shown and "linger.ms" in shown
    assert "p4ssword" not in repr(loaded.config)
    with pytest.raises(BadValue) as caught:
        routes_of(table.replace("stream", "strim"))
    assert "p4ssword" not in str(caught.value)


def test_passwords_from_elsewhere(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("from a file\n")
    assert RedisRoute(stream="s", password_file=str(secret)).password({}) == "from a file"
    secret.write_text("changed")  # it is read each time
    assert RedisRoute(stream="s", password_file=str(secret)).password({}) == "changed"
    named = RedisRoute(stream="s", password_env="SECRET")
    assert named.password({"SECRET": "from a variable"}) == "from a variable"
    with pytest.raises(ValueError, match="the variable SECRET is not set"):
        named.password({})
    with pytest.raises(ValueError, match="No such file"):
        RedisRoute(stream="s", password_file=str(tmp_path / "none")).password({})
    assert RedisRoute(stream="s").password({}) is None


@pytest.mark.parametrize(
    ("url", "given", "expected"),
    [
        ("nats://u:p%40s@h:1", None, ("nats://h:1", "u", "p@s")),
        ("nats://u:p@h:1", "other", ("nats://h:1", "u", "other")),
        ("nats://u@h:1", "other", ("nats://h:1", "u", "other")),
        ("nats://h:1", None, ("nats://h:1", None, None)),
    ],
)
def test_logins(url: str, given: str | None, expected: tuple[str, ...]) -> None:
    assert tuple(login_of(url, given)) == expected


def test_a_missing_password_is_told_at_the_start() -> None:
    table = NatsRoute(stream="s", subject="s", password_env="NOT_SET")
    with pytest.raises(BadRoute, match=r"fujin\.routes\.orders\.nats: password_env: the variable"):
        Routes().add_all({"orders": table}, {})


def test_a_missing_extra_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "confluent_kafka", None)
    monkeypatch.delitem(
        __import__("sys").modules, "penstock.server.connectors.kafka", raising=False
    )
    wanted: dict[str, Outside] = {"orders": KafkaRoute(brokers="h", topic="t")}
    with pytest.raises(ExtraMissing) as caught:
        Routes().add_all(wanted, {})
    assert str(caught.value) == (
        "fujin.routes.orders.kafka needs the module confluent_kafka, which is not installed:"
        " pip install 'penstock[kafka]'"
    )
