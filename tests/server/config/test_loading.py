"""Configuration: sources and their order, refusals that name the place, texts that load again."""

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.server.assembly import topic_defaults
from penstock.server.config.errors import BadValue, ConfigError, ConfigFileError, UnknownKey
from penstock.server.config.kinds import TopicRequest
from penstock.server.config.loading import MAX_FILE_BYTES, LoadedConfig, load_config
from penstock.server.config.schema import KNOWN_KEYS, SECTIONS, Config
from penstock.server.config.text import render_init, render_show
from penstock.server.net.address import Address
from penstock.server.protocols import BlipmqConfig, quic_rows

Load = Callable[..., LoadedConfig]

MIB = 1024 * 1024


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "penstock.toml"


@pytest.fixture
def load(path: Path) -> Load:
    def write_and_load(content: str | bytes, **environment: str) -> LoadedConfig:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return load_config(str(path), environment, {})

    return write_and_load


def refusal(error: type[ConfigError], action: Callable[[], object]) -> str:
    """The text of the expected error, which must be one line."""
    with pytest.raises(error) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_nothing_given_is_the_default_configuration() -> None:
    loaded = load_config(None, {}, {})
    assert loaded.config == Config()
    assert {str(source) for source in loaded.sources.values()} == {"default"}
    assert set(loaded.sources) == set(KNOWN_KEYS)


def test_the_promised_defaults() -> None:
    config = Config()
    assert config.server.data_directory == "./penstock-data"
    assert config.server.drain_time_us == 10_000_000
    assert config.listeners.tcp == Address("127.0.0.1", 9092)
    assert config.listeners.of("blipmq") == Address("127.0.0.1", 5555)
    assert config.listeners.http == Address("127.0.0.1", 8080)
    assert config.listeners.of("rustlog") is None
    assert config.limits.prelogin_frame_bytes == 64 * 1024
    assert config.limits.buffered_bytes_per_connection > 2 * (16 * MIB + 4)
    assert config.limits.idle_time_us is None
    assert config.log.record_bytes == 16 * MIB
    assert config.topic_defaults.retention_age_us == 7 * 86_400_000_000
    assert config.topic_defaults.retention_bytes is None
    assert config.of(BlipmqConfig).message_ttl_us == 60_000_000
    assert (config.of(BlipmqConfig).capacity_messages, config.of(BlipmqConfig).drops) == (
        65_536,
        "counted",
    )


def test_flags_win_over_environment_over_file_over_default(path: Path) -> None:
    path.write_text(
        "# a comment\n[limits]\nconnections = 1_000\nfailed_logins = 3\n\nlogin_time=5\n"
    )
    environment = {"PENSTOCK__LIMITS__CONNECTIONS": "2000", "PENSTOCK__LIMITS__FAILED_LOGINS": "4"}
    loaded = load_config(str(path), environment, {"limits.connections": "3_000"})
    limits = loaded.config.limits
    assert (limits.connections, limits.failed_logins, limits.login_time_us) == (3000, 4, 5_000_000)
    sources = {key.partition(".")[2]: str(source) for key, source in loaded.sources.items()}
    assert sources["connections"] == "flag limits.connections"
    assert sources["failed_logins"] == "environment PENSTOCK__LIMITS__FAILED_LOGINS"
    assert sources["login_time"] == f"{path}:6"
    assert sources["idle_time"] == "default"


@pytest.mark.parametrize("key", sorted(KNOWN_KEYS))
def test_every_key_can_be_given_by_file_environment_and_flag(path: Path, key: str) -> None:
    default = load_config(None, {}, {})
    section, _, name = key.partition(".")
    written = KNOWN_KEYS[key].literal(effective(default, key))
    text = written.strip('"[]')
    path.write_text(f"[{section}]\n{name} = {written}\n")
    variable = f"PENSTOCK__{section}__{name}".upper()
    for loaded, source in [
        (load_config(str(path), {}, {}), f"{path}:2"),
        (load_config(None, {variable: text}, {}), f"environment {variable}"),
        (load_config(None, {}, {key: text}), f"flag {key}"),
    ]:
        assert loaded.config == default.config
        assert str(loaded.sources[key]) == source


def effective(loaded: LoadedConfig, key: str) -> object:
    section, _, name = key.partition(".")
    struct = loaded.config.section(section)
    return getattr(struct, name) if hasattr(struct, name) else getattr(struct, f"{name}_us")


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("server.insecure", "yes", True),
        ("server.insecure", "0", False),
        ("server.log_level", "DEBUG", "debug"),
        ("listeners.tcp", "off", None),
        ("listeners.http", "[::1]:0", Address("::1", 0)),
        ("limits.idle_time", "5 min", 300_000_000),
        ("limits.buffered_bytes_total", "10 GB", 10**10),
        ("log.cache_bytes", "0", 0),
        ("log.transaction_memory", "1 h", 3_600_000_000),
        ("log.transaction_memory", "off", None),
        ("limits.flight_batch_bytes", "1 MiB", 1024**2),
        ("topic_defaults.retention_bytes", "1 TiB", 1024**4),
        ("blipmq.message_ttl", "0", None),
        ("blipmq.message_ttl", "0 ms", None),
        ("blipmq.message_ttl", "off", None),
        (
            "rustlog.topics",
            "orders, events:4,a:b",
            (TopicRequest(name="orders"), TopicRequest(name="events", partitions=4),
             TopicRequest(name="a:b")),
        ),
        ("rustlog.topics", "", ()),
    ],
)  # fmt: skip
def test_values_from_text(key: str, text: str, expected: object) -> None:
    assert effective(load_config(None, {}, {key: text}), key) == expected


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("server.insecure", "maybe", "true or false"),
        ("server.log_level", "loud", 'one of "debug", "info", "warning", "error"'),
        ("server.drain_time", "ten", 'a time such as "250 ms"'),
        ("server.drain_time", "0 s", "at least 1 ms"),
        ("listeners.tcp", "9092", "host:port such as"),
        ("listeners.tcp", "", 'or "off"'),
        ("limits.connections", "0", "a whole number from 1 up"),
        ("limits.connections", "1.5", "a whole number"),
        ("limits.connections", "off", "a whole number"),
        ("limits.connections", "9" * 5000, "a whole number"),
        ("limits.idle_time", "0", 'at least 1 ms, or "off"'),
        ("log.flush_threads", "65", "from 1 to 64"),
        ("log.record_bytes", "128 MiB", "at most 64 MiB"),
        ("log.transaction_memory", "59 min", 'at least 1 h, or "off"'),
        ("limits.flight_writes", "0", "a whole number from 1 up"),
        ("limits.flight_batch_bytes", "1 kB", "at least 1 MiB"),
        ("limits.flight_batch_bytes", "2 GiB", "at most 1 GiB"),
        ("log.segment_bytes", "12 parsec", "units: B, kB"),
        ("topic_defaults.partitions", "10001", "from 1 to 10000"),
        ("topic_defaults.retention_bytes", "0", 'or "off"'),
        ("rustlog.topics", "a:0", '"name:partitions"'),
        ("rustlog.topics", ":3", '"name:partitions"'),
        ("rustlog.topics", "a,a:2", "every name once"),
        ("rustlog.principal", " ", "a text that is not empty"),
        ("tls.key", "a\0b", "a path"),
        ("server.data_directory", "\udcff", "valid UTF-8"),
    ],
)
def test_wrong_values_name_key_value_source_and_what_is_expected(
    key: str, value: str, expected: str
) -> None:
    variable = "PENSTOCK__" + key.replace(".", "__").upper()
    for environment, flags, source in [
        ({variable: value}, {}, f"environment {variable}: {key} = "),
        ({}, {key: value}, f"flag {key}: {key} = "),
    ]:
        text = refusal(BadValue, lambda e=environment, f=flags: load_config(None, e, f))  # type: ignore[misc]  # bound now
        assert text.startswith(source)
        assert "expected " in text
        assert expected in text
        text.encode()  # can be printed


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("log.record_bytes", ("1 KiB", "16 MiB", "64 MiB", "65 MiB", "128 MiB", "1 GiB")),
        ("log.segment_bytes", ("1 B", "4 KiB", "1 TiB", "4096 TiB", "4097 TiB", str(2**63 - 1))),
        ("topic_defaults.flush_interval", ("1 ms", "1 h", "61 min", "9000 d", str(2**62))),
        ("topic_defaults.retention_age", ("1 s", "9000 d", "52124995 d", "106751991 d")),
        ("topic_defaults.retention_bytes", ("1 B", "4096 TiB", "4097 TiB", str(2**63 - 1))),
    ],
)
def test_whatever_the_configuration_accepts_the_log_accepts(
    key: str, values: tuple[str, ...]
) -> None:
    accepted = 0
    for value in values:
        try:
            config = load_config(None, {}, {"limits.buffered_bytes_per_connection": "900 MiB",
                                            key: value}).config  # fmt: skip
        except BadValue:
            continue
        topic_defaults(config).check()
        accepted += 1
    assert 2 <= accepted < len(values), "both sides of the limit were tried"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("connections = true", "limits.connections = true: expected a whole number"),
        ("connections = 1.0", "limits.connections = 1.0: expected a whole number"),
        ("connections = []", "limits.connections = []: expected a whole number"),
        ("connections = {a = 1}", "limits.connections = a table: expected a whole number"),
        ("connections = -1", "limits.connections = -1: expected a whole number"),
        ("login_time = inf", "limits.login_time = inf: expected a time"),
        ("login_time = 1979-05-27", "limits.login_time = datetime.date(1979, 5, 27): expected a"),
        (f"connections = 0x{'f' * 9000}", "limits.connections = a huge number: expected a whole"),
        (f"login_time = 0x{'f' * 9000}", "limits.login_time = a huge number: expected a time"),
        ('login_time = "a\\nb"', "limits.login_time = 'a\\nb': expected a time"),
    ],
)
def test_wrong_toml_types_name_the_line(path: Path, load: Load, line: str, text: str) -> None:
    found = refusal(BadValue, lambda: load(f"\n[limits]\n{line}\n"))
    assert found.startswith(f"{path}:3: {text}")


@pytest.mark.parametrize(
    ("content", "line", "key", "nearest"),
    [
        ("[limits]\nconections = 1", 2, '"limits.conections"', "limits.connections"),
        ("[limits]\nmax_connections = 1", 2, '"limits.max_connections"', "limits.connections"),
        ("[server]\ndurability = 1", 2, '"server.durability"', "topic_defaults.durability"),
        ("[limit]\nconnections = 1", 1, '"[limit]"', "[limits]"),
        ("[key]\nname = 'a'", 1, '"[key]"', "[keys]"),
        ("insecure = true", 1, '"insecure"', "server.insecure"),
        ("blipmq.message_tl = 1", 1, '"blipmq.message_tl"', "blipmq.message_ttl"),
        ("[log]\ndrain_time_us = 1", 2, '"log.drain_time_us"', "server.drain_time"),
        ("[[keys]]\nname='a'\nrol='admin'", 3, '"keys[0].rol"', "role"),
    ],
)
def test_unknown_keys_name_the_nearest(
    path: Path, load: Load, content: str, line: int, key: str, nearest: str
) -> None:
    text = refusal(UnknownKey, lambda: load(content))
    assert text == f"{path}:{line}: unknown key {key}; did you mean {nearest}?"


def test_unknown_variables_and_flags_name_the_nearest() -> None:
    environment = {"PENSTOCK__LIMITS__CONECTIONS": "1", "PENSTOCK_PURE": "1", "PATH": "/bin"}
    text = refusal(UnknownKey, lambda: load_config(None, environment, {}))
    assert text.endswith("did you mean PENSTOCK__LIMITS__CONNECTIONS?")
    text = refusal(UnknownKey, lambda: load_config(None, {}, {"listener.tcp": "off"}))
    assert text == 'flag: unknown key "listener.tcp"; did you mean listeners.tcp?'


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[server\n", "not valid TOML: "),
        (b"[server]\ninsecure = true\ninsecure = true\n", "not valid TOML: "),
        (b"a = " + b"[" * 5000, "not valid TOML: "),
        (b"a = " + b"9" * 5000, "not valid TOML: "),
        (b"[server]\n# \xff", "not UTF-8 at byte 11"),
        (b"#" * (MAX_FILE_BYTES + 1), "larger than 1048576 bytes"),
    ],
)
def test_files_that_cannot_be_read_as_toml(
    path: Path, load: Load, content: bytes, reason: str
) -> None:
    assert refusal(ConfigFileError, lambda: load(content)).startswith(f"{path}: ")
    assert reason in refusal(ConfigFileError, lambda: load(content))


def test_files_that_cannot_be_opened(path: Path) -> None:
    missing = refusal(ConfigFileError, lambda: load_config(str(path), {}, {}))
    assert missing == f"{path}: cannot read the file: No such file or directory"
    path.mkdir()
    assert "Is a directory" in refusal(ConfigFileError, lambda: load_config(str(path), {}, {}))


def test_a_section_must_be_a_table(load: Load) -> None:
    assert "expected a table: [server]" in refusal(BadValue, lambda: load("server = 1"))


def test_inline_tables_and_byte_order_marks_are_read(path: Path, load: Load) -> None:
    loaded = load(b"\xef\xbb\xbfserver = { insecure = true }\n")
    assert loaded.config.server.insecure
    assert str(loaded.sources["server.insecure"]) == str(path)  # the line is not known


@pytest.mark.parametrize(
    ("home", "given", "expected", "source"),
    [
        ("/home/x/.data", None, "/home/x/.data/penstock", "default (XDG_DATA_HOME is set)"),
        ("/home/x/.data", "", "/home/x/.data/penstock", "default (XDG_DATA_HOME is set)"),
        ("relative", None, "./penstock-data", "default"),
        ("", "", "./penstock-data", "default"),
        ("/home/x", "/srv/data", "/srv/data", "flag server.data_directory"),
    ],
)
def test_data_directory(home: str, given: str | None, expected: str, source: str) -> None:
    flags = {} if given is None else {"server.data_directory": given}
    loaded = load_config(None, {"XDG_DATA_HOME": home}, flags)
    assert loaded.config.server.data_directory == expected
    assert str(loaded.sources["server.data_directory"]) == source


def test_a_profile_changes_defaults_and_explicit_values_win(path: Path, load: Load) -> None:
    loaded = load('[blipmq]\nprofile = "reference"\n')
    assert (
        loaded.config.of(BlipmqConfig).capacity_messages,
        loaded.config.of(BlipmqConfig).drops,
    ) == (1024, "silent")
    assert str(loaded.sources["blipmq.capacity_messages"]) == f"profile reference ({path}:2)"
    assert f"# profile reference ({path}:2)" in render_show(loaded)
    loaded = load('[blipmq]\nprofile = "reference"\n', PENSTOCK__BLIPMQ__CAPACITY_MESSAGES="9")
    assert (
        loaded.config.of(BlipmqConfig).capacity_messages,
        loaded.config.of(BlipmqConfig).drops,
    ) == (9, "silent")
    assert "expected one of" in refusal(BadValue, lambda: load("[blipmq]\nprofile = 'fast'"))


def uncommented(text: str) -> str:
    """Every setting live: those stand behind a "#" without a space."""
    lines = text.splitlines()
    return "\n".join(line[1:] if line[:1] == "#" and line[1:2] > " " else line for line in lines)


def test_the_written_file_gives_the_defaults(load: Load) -> None:
    assert load(render_init()).config == Config()
    live = uncommented(render_init())
    assert load(live).config == Config()
    written = {f"{section}.{key}" for section, keys in tomllib.loads(live).items() for key in keys}
    assert written == set(KNOWN_KEYS)


def test_the_written_file_explains_every_key() -> None:
    lines = render_init().splitlines()
    assert max(len(line) for line in lines) <= 100
    for number, line in enumerate(lines):
        if line[:1] == "#" and line[1:2] > " ":
            assert lines[number - 1].startswith("# ")


def test_the_shown_values_load_to_the_same(load: Load) -> None:
    environment = {
        "PENSTOCK__LISTENERS__HTTP": "[::1]:0",
        "PENSTOCK__LIMITS__IDLE_TIME": "90 s",
        "PENSTOCK__TOPIC_DEFAULTS__RETENTION_BYTES": "10 GB",
        "PENSTOCK__RUSTLOG__TOPICS": "a,b:3",
        "PENSTOCK__BLIPMQ__PROFILE": "reference",
        "PENSTOCK__RUSTLOG__PRINCIPAL": 'the "guest"\x7f\t\\ \u00fc',
        "XDG_DATA_HOME": "/data home",
    }
    loaded = load_config(None, environment, {"server.insecure": "on"})
    assert loaded.config != Config()
    assert load(render_show(loaded)).config == loaded.config


def test_every_section_is_part_of_the_configuration() -> None:
    config = Config()
    assert all(isinstance(config.section(name), struct) for name, (struct, _) in SECTIONS.items())
    fixed = set(Config.__struct_fields__) - {"protocols", "keys", "users"}
    if not quic_rows():  # without a protocol on QUIC there is nothing to configure
        fixed.remove("quic")
    assert fixed | set(config.protocols) == set(SECTIONS)


@given(st.dictionaries(st.sampled_from(sorted(KNOWN_KEYS)), st.text(max_size=20), max_size=4))
def test_any_text_is_taken_or_refused(flags: dict[str, str]) -> None:
    try:
        loaded = load_config(None, {}, flags)
    except ConfigError as error:
        assert "\n" not in str(error)
    else:
        assert tomllib.loads(render_show(loaded))
