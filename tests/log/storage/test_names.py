"""Topic names and their directories."""

import pickle
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.log.errors import InvalidTopicName
from penstock.log.storage.names import (
    MAX_DIRECTORY_NAME_CHARS,
    check_topic_name,
    directory_name,
    topic_name_of,
)
from penstock.names import MAX_NAME_BYTES

ALLOWED = st.text(
    st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=MAX_NAME_BYTES
).filter(lambda name: len(name.encode()) <= MAX_NAME_BYTES)

# Names that are likely to meet: few letters, both cases, everything that escaping uses.
CLOSE = st.text("aA.%~2eE/_-é", min_size=1, max_size=5)

LONG = st.text("aA%~", min_size=60, max_size=MAX_NAME_BYTES)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        ("a" * 250, "250 bytes"),
        ("é" * 125, "250 bytes"),
        ("a\nb", "U\\+000A"),
        ("\0", "U\\+0000"),
        ("\x1f", "U\\+001F"),
        ("del\x7f", "character 3 .* U\\+007F"),
        ("\x80", "U\\+0080"),
        ("\x9f", "U\\+009F"),
        ("ab\ud800", "character 2 .* surrogate"),
        ("\udcff" * 1000, "surrogate"),
    ],
)
def test_refused(name: str, reason: str) -> None:
    with pytest.raises(InvalidTopicName, match=reason) as raised:
        check_topic_name(name)
    assert raised.value.name == name
    assert re.search(reason, raised.value.reason)
    text = str(raised.value)
    assert text.isascii() and text.isprintable() and len(text) < 600
    assert isinstance(raised.value, ValueError)
    assert str(pickle.loads(pickle.dumps(raised.value))) == text
    with pytest.raises(InvalidTopicName):
        directory_name(name)


@pytest.mark.parametrize(
    "name", ["a", "a" * 249, "é" * 124, " a ", "..", "/", "a/../b", "~", "名前"]
)
def test_allowed(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (" ", "can be seen"),
        ("\u3000\u00a0", "can be seen"),
        ("\u200b", "can be seen"),
        ("a\u202eb", "character 1 is U\\+202E"),
        ("\u2066a", "U\\+2066"),
        ("a\u200f", "U\\+200F"),
        ("a\u2028b", "U\\+2028"),
    ],
)
def test_refused_for_a_new_topic_and_used_where_it_is_there(name: str, reason: str) -> None:
    with pytest.raises(InvalidTopicName, match=reason):
        check_topic_name(name)
    assert topic_name_of(directory_name(name)) == name


@pytest.mark.parametrize(
    ("name", "directory"),
    [
        ("orders", "orders"),
        ("orders.v2_x-1", "orders.v2_x-1"),
        ("Orders", "%4frders"),
        (".", "%2e"),
        ("..", "%2e."),
        ("a..", "a.."),
        ("/etc/passwd", "%2fetc%2fpasswd"),
        ("tenant/namespace/stream", "tenant%2fnamespace%2fstream"),
        ("%2f", "%252f"),
        ("~", "%7e"),
        ("é", "%c3%a9"),
        ("a b", "a%20b"),
        ("a" * 200, "a" * 200),
    ],
)
def test_directory_name(name: str, directory: str) -> None:
    assert directory_name(name) == directory


@pytest.mark.parametrize("name", ["a" * 201, "A" * 67, "ab" + "é" * 123, "." * 249])
def test_long_names_are_cut_between_escapes(name: str) -> None:
    prefix, tilde, digest = directory_name(name).partition("~")
    assert tilde and re.fullmatch("[0-9a-f]{32}", digest)
    assert re.fullmatch("([a-z0-9_.-]|%[0-9a-f]{2})+", prefix)
    assert MAX_DIRECTORY_NAME_CHARS - 2 <= len(directory_name(name)) <= MAX_DIRECTORY_NAME_CHARS


@settings(deadline=None)
@given(ALLOWED | CLOSE)
def test_every_directory_name_is_safe(name: str) -> None:
    directory = directory_name(name)
    assert re.fullmatch("[a-z0-9_%~-][a-z0-9_%~.-]*", directory)
    assert len(directory) <= MAX_DIRECTORY_NAME_CHARS
    assert directory == directory.lower() == directory_name(name)


@settings(deadline=None)
@given(st.sets(ALLOWED | CLOSE | LONG, min_size=2, max_size=20))
@example({"a" * 201, "a" * 202})
@example({"Orders", "orders", "ORDERS", "%4frders", "%4Frders"})
@example({"..", ".", "%2e", "%2e.", "..."})
def test_different_names_have_different_directories(names: set[str]) -> None:
    assert len({directory_name(name).lower() for name in names}) == len(names)
