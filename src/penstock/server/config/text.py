"""The configuration as text for people: `penstock config show` and `penstock config init`.

Both texts are TOML that loads again, with secrets masked in the first.
"""

import textwrap
from collections.abc import Iterator
from typing import Final

from penstock.server.config.keys import KeyConfig
from penstock.server.config.kinds import Key, quote
from penstock.server.config.loading import LoadedConfig, variable_name
from penstock.server.config.schema import KNOWN_KEYS, SECTIONS
from penstock.server.config.tables import MASK
from penstock.server.config.users import UserConfig

_WIDTH: Final = 96
# Comments stand in one column, unless a value is longer than this.
_COMMENT_COLUMN: Final = 48

# Defaults that depend on the environment, as they are written.
_AUTOMATIC: Final = {"server.data_directory": '""'}

_INIT_HEAD: Final = f"""\
# Configuration of Penstock. Every setting stands here with its default, as a comment without a
# space behind the "#": remove the "#" to change it. Sizes: "64 MiB", "10 GB" or a number of bytes.
# Times: "250 ms", "30 s", "5 min", "12 h", "7 d" or a number of seconds. Relative paths start at
# the working directory.
#
# An environment variable wins over this file, and a flag over both. The variable of a setting is
# {variable_name("section.key")}, for example {variable_name("limits.connections")}=500.
# `penstock config show` prints what takes effect, and from where.
"""

_INIT_KEYS: Final = """\
# API keys, in this file only. With none at all, the key "dev-key" works, on this machine only.
# Give each exactly one of key, key_file (a file with the key in it) or hash. Roles: "admin",
# "user" (reads and writes), "writer", "reader". Without topics the key is good for all.
#
#   [[keys]]
#   name = "billing"
#   key_file = "/etc/penstock/billing.key"
#   role = "writer"
#   topics = ["orders.*"]
#
# Users that the first start makes, when there is none of this name and never was. Give each exactly
# one of password_file, password_env (a variable of the environment) or hash (penstock key hash).
# Later changes are made with `penstock user`, and nothing here undoes them.
#
#   [[users]]
#   name = "ops"
#   roles = ["admin"]
#   password_file = "/etc/penstock/ops.password"
"""


def render_show(loaded: LoadedConfig) -> str:
    """All effective values, each with where it came from."""
    blocks = []
    for section in SECTIONS:
        lines = [f"[{section}]"]
        for name, short, key in _keys(section):
            setting = f"{short} = {key.literal(loaded.config.value(name))}"
            lines.append(f"{setting:<{_COMMENT_COLUMN}} # {loaded.sources[name]}")
        blocks.append("\n".join(lines) + "\n")
    for number, api_key in enumerate(loaded.config.keys):
        head = f"{'[[keys]]':<{_COMMENT_COLUMN}} # {loaded.sources[f'keys[{number}]']}"
        blocks.append("\n".join([head, *_key_lines(api_key)]) + "\n")
    for number, user in enumerate(loaded.config.users):
        head = f"{'[[users]]':<{_COMMENT_COLUMN}} # {loaded.sources[f'users[{number}]']}"
        blocks.append("\n".join([head, *_user_lines(user)]) + "\n")
    return "\n".join(blocks)


def render_init() -> str:
    """A file with every key, its default and its meaning, all commented out."""
    blocks = [_INIT_HEAD]
    for section, (_struct, words) in SECTIONS.items():
        lines = [*_comment(words), f"[{section}]"]
        for name, short, key in _keys(section):
            default = _AUTOMATIC.get(name) or key.literal(key.default)
            lines += ["", *_comment(key.meaning), f"#{short} = {default}"]
        blocks.append("\n".join(lines) + "\n")
    return "\n".join([*blocks, _INIT_KEYS])


def _keys(section: str) -> Iterator[tuple[str, str, Key]]:
    """Full name, name within the section, key."""
    for name, key in KNOWN_KEYS.items():
        of, _, short = name.partition(".")
        if of == section:
            yield name, short, key


def _comment(words: str) -> list[str]:
    return textwrap.wrap(words, _WIDTH, initial_indent="# ", subsequent_indent="# ")


def _user_lines(user: UserConfig) -> Iterator[str]:
    yield f"name = {quote(user.name)}"
    yield f"roles = {quote(user.roles)}"
    for field in ("password_file", "password_env"):
        if (place := getattr(user, field)) is not None:
            yield f"{field} = {quote(place)}"
    if user.hash is not None:
        yield f"hash = {quote(MASK)}"


def _key_lines(key: KeyConfig) -> Iterator[str]:
    yield f"name = {quote(key.name)}"
    if key.key_file is not None:
        yield f"key_file = {quote(key.key_file)}"
    else:
        yield f"{'key' if key.hash is None else 'hash'} = {quote(MASK)}"
    yield f"role = {quote(key.role)}"
    yield f"topics = {quote(key.topics)}"
