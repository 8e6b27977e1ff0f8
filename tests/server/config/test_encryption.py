"""Keys of encryption in the configuration: where they come from, and that nothing ever shows one."""

import base64
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.server.config.encryption import KeyUnreadable, read_keys
from penstock.server.config.errors import BadValue, ConfigConflict
from penstock.server.config.loading import LoadedConfig, load_config
from penstock.server.config.text import render_show

KEY = bytes(range(32))
OTHER = bytes(range(1, 33))


def load(tmp_path: Path, text: str) -> LoadedConfig:
    path = tmp_path / "penstock.toml"
    path.write_text(text)
    return load_config(str(path), {}, {})


def key_file(tmp_path: Path, content: str, mode: int = 0o600) -> Path:
    path = tmp_path / "one.key"
    path.write_text(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    "content", [KEY.hex(), KEY.hex().upper() + "\n", base64.b64encode(KEY).decode() + "\r\n"]
)
@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640])
def test_from_a_file(tmp_path: Path, content: str, mode: int) -> None:
    path = key_file(tmp_path, content, mode)
    config = load(tmp_path, f'[encryption]\nkeys = ["7={path}"]').config
    keys = read_keys(config.encryption, {})
    assert (dict(keys.by_id), keys.current) == ({7: KEY}, 7)


def test_from_the_environment(tmp_path: Path) -> None:
    text = '[encryption]\nkeys = ["1=env:FIRST", "2=env:SECOND"]\n'
    environment = {"FIRST": KEY.hex(), "SECOND": OTHER.hex()}
    config = load(tmp_path, text).config
    keys = read_keys(config.encryption, environment)
    assert (dict(keys.by_id), keys.current) == ({1: KEY, 2: OTHER}, 2)
    config = load(tmp_path, text + "current = 1").config
    assert read_keys(config.encryption, environment).current == 1
    given = {"PENSTOCK__ENCRYPTION__KEYS": "1=env:FIRST, 2=env:SECOND"}
    assert load_config(None, given, {}).config.encryption.keys == config.encryption.keys


def test_without_keys() -> None:
    keys = read_keys(load_config(None, {}, {}).config.encryption, {})
    assert (dict(keys.by_id), keys.current) == ({}, 0)


@pytest.mark.parametrize(
    ("mode", "refused"),
    [(0o604, True), (0o620, True), (0o660, True), (0o644, True), (0o440, False)],
)
def test_who_may_read_the_file(tmp_path: Path, mode: int, refused: bool) -> None:
    path = key_file(tmp_path, KEY.hex(), mode)
    config = load(tmp_path, f'[encryption]\nkeys = ["1={path}"]').config.encryption
    if not refused:
        read_keys(config, {})
        return
    with pytest.raises(KeyUnreadable, match="chmod 600") as caught:
        read_keys(config, {})
    assert str(path) in str(caught.value) and "key 1" in str(caught.value)


@pytest.mark.parametrize(
    "content",
    ["", "short", KEY.hex()[:-1], KEY.hex() + "00", "x" * 5000, KEY.hex()[:-2] + "gg"],
    ids=["1", "2", "3", "4", "5", "6"],
)
def test_what_is_no_key(tmp_path: Path, content: str) -> None:
    config = load(tmp_path, f'[encryption]\nkeys = ["1={key_file(tmp_path, content)}"]').config
    with pytest.raises(KeyUnreadable, match="64 hexadecimal digits") as caught:
        read_keys(config.encryption, {})
    assert not content or content not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "words"),
    [("/no/such/file", "No such file"), ("/", "directory"), ("env:NONE", "no such variable")],
)
def test_a_source_that_is_not_there(tmp_path: Path, source: str, words: str) -> None:
    config = load(tmp_path, f'[encryption]\nkeys = ["3={source}"]').config
    with pytest.raises(KeyUnreadable, match=words) as caught:
        read_keys(config.encryption, {})
    assert f"key 3 ({source})" in str(caught.value)


@pytest.mark.parametrize("item", ["x", "0=/a", "4294967296=/a", "1=", "=/a", "-1=/a"])
def test_what_is_no_source(tmp_path: Path, item: str) -> None:
    with pytest.raises(BadValue, match="id=path"):
        load(tmp_path, f'[encryption]\nkeys = ["{item}"]')


def test_an_id_comes_once(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="each once"):
        load(tmp_path, '[encryption]\nkeys = ["1=/a", "1=/b"]')


@pytest.mark.parametrize("key", [KEY.hex(), base64.b64encode(KEY).decode()])
def test_a_key_in_the_place_of_its_file_is_not_shown(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigConflict, match="key 1 stands there itself") as caught:
        load(tmp_path, f'[encryption]\nkeys = ["1={key}"]')
    assert key not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[encryption]\nkeys = ["1=/a"]\ncurrent = 2', "current = 2"),
        ("[encryption]\ncurrent = 2", "there are none"),
        ("[topic_defaults]\nencryption = true", "set encryption.keys"),
    ],
)
def test_what_does_not_fit_together(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(PenstockError, match=words):
        load(tmp_path, text)


def test_config_show_has_the_sources_and_no_key(tmp_path: Path) -> None:
    path = key_file(tmp_path, KEY.hex())
    shown = render_show(load(tmp_path, f'[encryption]\nkeys = ["1={path}", "2=env:NAME"]'))
    assert f'keys = ["1={path}", "2=env:NAME"]' in shown
    assert KEY.hex() not in shown
