"""API keys of the file, secrets that stay secret, values that must fit together, and exposure."""

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.server.config.checks import check_exposure, development_key_allowed
from penstock.server.config.errors import BadValue, ConfigConflict, ConfigError
from penstock.server.config.keys import KeyConfig
from penstock.server.config.loading import LoadedConfig, load_config
from penstock.server.config.text import render_show

Load = Callable[[str], LoadedConfig]

KEY = '[[keys]]\nname = "app"\nkey = "s3cret"\nrole = "user"\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "penstock.toml"


@pytest.fixture
def load(path: Path) -> Load:
    def write_and_load(content: str) -> LoadedConfig:
        path.write_text(content)
        return load_config(str(path), {}, {})

    return write_and_load


def test_keys_in_all_three_ways(load: Load, tmp_path: Path) -> None:
    secret_file = tmp_path / "writer.key"
    secret_file.write_text("from the file\r\n")
    loaded = load(
        KEY
        + f'[[keys]]\nname = "w"\nkey_file = "{secret_file}"\nrole = "writer"\ntopics = ["a.*"]\n'
        + '[[keys]]\nname = "r"\nhash = "abc"\nrole = "reader"\n'
    )
    assert loaded.config.keys == (
        KeyConfig(name="app", role="user", topics=("*",), secret="s3cret"),
        KeyConfig(
            name="w", role="writer", topics=("a.*",),
            secret="from the file", key_file=str(secret_file),
        ),
        KeyConfig(name="r", role="reader", topics=("*",), hash="abc"),
    )  # fmt: skip


def test_secrets_are_never_shown(load: Load, tmp_path: Path) -> None:
    secret_file = tmp_path / "k"
    secret_file.write_text("s3cret")
    loaded = load(
        KEY
        + f'[[keys]]\nname = "f"\nkey_file = "{secret_file}"\nrole = "reader"\n'
        + '[[keys]]\nname = "h"\nhash = "s3cret"\nrole = "reader"\n'
    )
    assert "s3cret" not in repr(loaded)
    shown = render_show(loaded)
    assert "s3cret" not in shown
    assert shown.count('"********"') == 2
    assert f"# {tmp_path}/penstock.toml:1\n" in shown


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ('key = "s3cret"\nrole = "user"', ':1: keys[0].name = "missing": expected a text'),
        ('name = ""\nkey = "s3cret"\nrole = "user"', ":2: keys[0].name = "),
        ('name = "a\\u202e"\nkey = "s3cret"\nrole = "user"', "character 1 is U+202E"),
        ('name = "a\\u0007"\nkey = "s3cret"\nrole = "user"', "control character U+0007"),
        ('name = "a"\nrole = "user"', 'keys[0] = "no key": expected one of key, key_file, hash'),
        ('name = "a"\nkey = "s3cret"\nhash = "s3cret"\nrole = "user"', '"key and hash": expected'),
        ('name = "a"\nkey = 5\nrole = "user"', ":3: keys[0].key = "),
        ('name = "a"\nkey = ""\nrole = "user"', ":3: keys[0].key = "),
        (f'name = "a"\nkey = "{"s3cret" * 11000}"\nrole = "user"', "a key of 1 to 65535 bytes"),
        ('name = "a"\nkey = "s3cret"', 'keys[0].role = "missing": expected one of "admin"'),
        ('name = "a"\nkey = "s3cret"\nrole = "king"', ':4: keys[0].role = "king": expected one of'),
        ('name = "a"\nkey = "s3cret"\nrole = "user"\ntopics = []', ":5: keys[0].topics = []"),
        ('name = "a"\nkey = "s3cret"\nrole = "user"\ntopics = "a"', "a list of topic patterns"),
        ('name = "a"\nkey = "s3cret"\nrole = "user"\ntopics = [1]', "a list of topic patterns"),
        ('name = "a"\nkey_file = "/no/such/file"\nrole = "user"', "a readable file (No such file"),
        ('name = "a"\nkey_file = "/dev/null"\nrole = "user"', "a key of 1 to 65535 bytes"),
        ('name = "a"\nkey_file = "/dev/zero"\nrole = "user"', "a key of 1 to 65535 bytes"),
        (f'name = "a"\nkey = "s3cret"\nrole = "user"\n{KEY}{KEY}', "a name that no other key has"),
    ],
)
def test_wrong_keys_are_refused_without_telling_secrets(
    path: Path, load: Load, table: str, expected: str
) -> None:
    with pytest.raises(BadValue) as caught:
        load(f"[[keys]]\n{table}\n")
    text = str(caught.value)
    assert text.startswith(str(path))
    assert expected in text
    assert "s3cret" not in text
    assert "\n" not in text


@pytest.mark.parametrize(
    "content", ["[keys]\nkey = 's3cret'", "keys = 's3cret'", "keys = ['s3cret']"]
)
def test_keys_must_be_an_array_of_tables(load: Load, content: str) -> None:
    with pytest.raises(BadValue, match=r"expected \[\[keys\]\] tables") as caught:
        load(content)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("environment", "flags"),
    [
        ({"PENSTOCK__KEYS__0__KEY": "s3cret"}, {}),
        ({"PENSTOCK__KEYS": "s3cret"}, {}),
        ({}, {"keys": "s3cret"}),
        ({}, {"keys.app": "s3cret"}),
    ],
)
def test_keys_come_from_the_file_only(environment: dict[str, str], flags: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="in the file only") as caught:
        load_config(None, environment, flags)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"tls.certificate": "c.pem"}, "tls.certificate is set (flag tls.certificate) but tls.key"),
        ({"tls.key": "k.pem"}, "tls.key is set (flag tls.key) but tls.certificate is not"),
        ({"tls.client_ca": "ca.pem"}, "tls.client_ca is set (flag tls.client_ca) but"),
        (
            {"listeners.http": "127.0.0.1:9092"},
            "listeners.tcp (default) and listeners.http (flag listeners.http) are both 127.0.0.1",
        ),
        ({"limits.buffered_bytes_per_connection": "8 MiB"}, "must hold at least 16452 KiB"),
        ({"log.record_bytes": "64 MiB"}, "see log.record_bytes"),
        ({"limits.buffered_bytes_total": "32 MiB"}, "must hold at least 33 MiB"),
        ({"blipmq.capacity_bytes": "1 MiB"}, "must hold at least 16 MiB (one largest record"),
    ],
)
def test_values_that_do_not_fit_together(flags: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigConflict) as caught:
        load_config(None, {}, flags)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_values_that_do_fit_together() -> None:
    tls = {"tls.certificate": "c", "tls.key": "k", "tls.client_ca": "ca"}
    free_ports = {"listeners.tcp": "127.0.0.1:0", "listeners.http": "127.0.0.1:0"}
    same_port_other_host = {"listeners.rustlog": "127.0.0.2:5555"}
    config = load_config(None, {}, tls | free_ports | same_port_other_host).config
    assert config.listeners.tcp == config.listeners.http


OUTSIDE = {"listeners.tcp": "0.0.0.0:9092"}
TLS = {"tls.certificate": "c.pem", "tls.key": "k.pem"}


@pytest.mark.parametrize(
    ("flags", "keys", "stored", "reason", "development_key"),
    [
        ({}, "", False, None, True),
        ({"listeners.tcp": "[::1]:1", "listeners.http": "localhost:1"}, "", False, None, True),
        ({"listeners.tcp": "off", "listeners.http": "off", "listeners.blipmq": "off"},
         "", False, None, True),
        ({}, KEY, False, None, False),
        ({}, "", True, None, False),
        (OUTSIDE, "", False, "no API keys ([[keys]] or penstock key create) and no TLS", False),
        (OUTSIDE, KEY, False, "there are no TLS", False),
        (OUTSIDE | TLS, "", False, "there are no API keys", False),
        (OUTSIDE | TLS, KEY, False, None, False),
        (OUTSIDE | TLS, "", True, None, False),
        (OUTSIDE | {"server.insecure": "true"}, "", False, None, False),
        ({"listeners.http": "broker.example.com:80"}, KEY, False, "listeners.http", False),
        ({"listeners.rustlog": "[::]:1"}, KEY, False, "listeners.rustlog ([::]:1) can be", False),
    ],
)  # fmt: skip
def test_exposure_and_the_development_key(
    path: Path, flags: dict[str, str], keys: str, stored: bool, reason: str | None,
    development_key: bool,
) -> None:  # fmt: skip
    path.write_text(keys)
    config = load_config(str(path), {}, flags).config
    found = check_exposure(config, stored_keys=stored)
    if reason is None:
        assert found is None
    else:
        assert found is not None
        assert reason in found
        assert "--insecure" in found
        assert "\n" not in found
    assert development_key_allowed(config, stored_keys=stored) is development_key
