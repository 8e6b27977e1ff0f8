"""[[users]] of the configuration: what the file may say, and who is there after a start."""

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from conformance.flymq.peer import FlyMQPeer, text
from kit.audit import brief, trail
from kit.listeners import free_listeners
from kit.live_server import LiveServer

from penstock.broker.access import keys
from penstock.cli import main as cli
from penstock.server.config.errors import ConfigError
from penstock.server.config.loading import load_config
from penstock.server.config.text import render_init, render_show
from penstock.server.server import Server


def written(directory: Path, content: str) -> str:
    path = directory / "penstock.toml"
    path.write_text(content)
    return str(path)


class Configured(LiveServer):
    """A live server with a configuration file and variables of the environment."""

    def __init__(self, data: Path, config: str, environment: Mapping[str, str]) -> None:
        super().__init__(data)
        flags = {**free_listeners({}), "server.data_directory": str(data)}
        self.server = Server(load_config(config, {}, flags), environment=environment)


@contextmanager
def started(
    tmp_path: Path, users: str, environment: Mapping[str, str] | None = None
) -> Iterator[LiveServer]:
    config = written(tmp_path, users)
    with Configured(tmp_path / "data", config, environment or {}) as server:
        yield server


def may_log_in(server: LiveServer, user: str, password: str) -> bool:
    with FlyMQPeer(server.port("flymq")) as peer:
        return peer.ask(0x70, text(user) + text(password)).payload[:1] == b"\x01"


ADMIN = '[[users]]\nname = "ops"\nroles = ["admin"]\npassword_file = "{file}"\n'


@pytest.fixture
def admin(tmp_path: Path) -> str:
    file = tmp_path / "ops.password"
    file.write_text("from-a-file\n")
    return ADMIN.format(file=file)


def test_the_first_start_makes_the_administrator(tmp_path: Path, admin: str) -> None:
    """And dev-key is gone from then on."""
    with started(tmp_path, admin) as server:
        assert may_log_in(server, "ops", "from-a-file")
        assert not may_log_in(server, "", "dev-key")
        assert server.server.broker.access.has_admin
        assert brief(trail(server)[0]) == ("user.create", "configuration", "ops", "success")


def test_a_hash_and_a_variable_will_do(tmp_path: Path) -> None:
    users = (
        f'[[users]]\nname = "hashed"\nhash = "{keys.hash_slowly("pw-1")}"\n'
        '[[users]]\nname = "given"\nroles = ["reader", "writer"]\npassword_env = "OPS_PASSWORD"\n'
    )
    with started(tmp_path, users, {"OPS_PASSWORD": "pw-2"}) as server:
        assert may_log_in(server, "hashed", "pw-1") and may_log_in(server, "given", "pw-2")
        assert server.server.broker.access.users.get("given").roles == ("writer", "reader")


def test_later_changes_are_not_undone(tmp_path: Path, admin: str) -> None:
    two = admin + admin.replace('"ops"', '"other"')
    with started(tmp_path, two) as server:
        broker = server.server.broker
        broker.accounts.set_password(broker.access.anonymous, "ops", "changed")
        broker.accounts.delete_user(broker.access.anonymous, "other")
    (tmp_path / "ops.password").unlink()  # needed once
    with started(tmp_path, two) as server:
        assert may_log_in(server, "ops", "changed") and not may_log_in(server, "ops", "from-a-file")
        assert not may_log_in(server, "other", "from-a-file")
        assert list(server.server.broker.access.users.all()) == ["ops"]


def test_a_user_that_was_there_before_stays_as_it_is(
    tmp_path: Path, admin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"first\n")))
    data = str(tmp_path / "data")
    assert cli.main(["user", "create", "ops", "--roles", "reader", "--data", data]) == 0
    with started(tmp_path, admin) as server:
        assert may_log_in(server, "ops", "first")
        assert server.server.broker.access.users.get("ops").roles == ("reader",)
        (made,) = [event for event in trail(server) if event.type == "user.create"]
        assert (made.door, made.resource, made.details["roles"]) == (
            "data directory",
            "ops",
            "reader",
        )
    with started(tmp_path, admin) as server:
        found = [event for event in trail(server) if event.type == "user.create"]
        assert len(found) == 1, "recorded once"


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ('[[users]]\nname = "a"\n', 'users[0] = "no password"'),
        ('[[users]]\nname = "a"\nhash = "x"\npassword_file = "y"\n', "password_file and hash"),
        ('[[users]]\nname = "a"\npassword = "x"\n', 'unknown key "users[0].password"'),
        ('[[users]]\nname = "a"\nhash = "x"\nroles = ["boss"]\n', "roles of admin, writer"),
        ('[[users]]\nname = ""\nhash = "x"\n', "users[0].name"),
        ('[[users]]\nname = "a"\nhash = "x"\n' * 2, "a name that no other user has"),
        ("[users]\n", "[[users]] tables, one for each user"),
    ],
)
def test_what_the_file_may_not_say(tmp_path: Path, tables: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(written(tmp_path, tables), {}, {})
    text = str(caught.value)
    assert words in text and "penstock.toml" in text and "\n" not in text


@pytest.mark.parametrize(
    ("secret", "words"),
    [
        ('password_file = "/nowhere"', "a readable file"),
        ('password_env = "NOT_SET"', "a password of 1 to 1024 bytes there"),
        ('hash = "plain"', "is no argon2id hash"),
    ],
)
def test_a_password_that_is_not_there_refuses_the_start(
    tmp_path: Path, secret: str, words: str
) -> None:
    users = f'[[users]]\nname = "ops"\n{secret}\n'
    with pytest.raises(Exception, match=words), started(tmp_path, users):
        pass


def test_users_are_shown_without_their_hashes(tmp_path: Path, admin: str) -> None:
    users = admin + '[[users]]\nname = "b"\nhash = "$argon2id$secret"\n'
    shown = render_show(load_config(written(tmp_path, users), {}, {}))
    assert 'name = "ops"' in shown and "ops.password" in shown and "penstock.toml:1" in shown
    assert "secret" not in shown and "$argon2id" not in shown
    assert "[[users]]" in render_init()


@pytest.mark.parametrize("name", ["users", "users[0].name", "PENSTOCK__USERS"])
def test_users_come_from_the_file_alone(name: str) -> None:
    variables = {name: "x"} if name.isupper() else {}
    flags = {} if variables else {name: "x"}
    with pytest.raises(ConfigError, match="users in the file only"):
        load_config(None, variables, flags)
