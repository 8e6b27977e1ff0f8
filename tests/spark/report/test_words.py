"""Numbers and times for people; foreign texts that stay texts."""

import html
import re

import pytest
from kit.report_facts import HOSTILE

from penstock.spark.report import words

THIN = "\N{NO-BREAK SPACE}"


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0"), (1234, "1,234"), (9_999_999, "9,999,999"), (12_345_678, f"12.3{THIN}M")],
)
def test_counts(number: int, shown: str) -> None:
    assert words.count(number) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0"),
        (0.25, "0.25"),
        (3.14159, "3.1"),
        (42.5, "42.5"),
        (1234.4, "1,234"),
        (45_600, f"45.6{THIN}k"),
        (2_000_000, f"2{THIN}M"),
        (7.5e12, f"7.5{THIN}T"),
    ],
)
def test_rates(number: float, shown: str) -> None:
    assert words.scaled(number) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (5 << 30, "5 GiB")],
)
def test_sizes(number: int, shown: str) -> None:
    assert words.size(number) == shown.replace(" ", THIN)


@pytest.mark.parametrize(
    ("part", "whole", "shown"),
    [
        (0, 10, "0 %"),
        (0, 0, "0 %"),
        (1, 3, "33.3 %"),
        (10, 10, "100 %"),
        (1, 10**6, "&lt; 0.1 %"),
        (10**6 - 1, 10**6, "100.0 %"),
    ],
)
def test_shares(part: int, whole: int, shown: str) -> None:
    assert words.share(part, whole) == shown.replace(" ", THIN)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.2, "under a second"), (59, "59 s"), (125, "2 min 5 s"), (7_500, "2 h 5 min"), (90_000, "1 d 1 h")],
)  # fmt: skip
def test_durations(seconds: float, shown: str) -> None:
    assert words.duration(seconds).replace(THIN, " ") == shown


def test_times_are_utc_and_every_number_has_one() -> None:
    assert words.moment(1_700_000_000_000_000) == "2023-11-14 22:13:20 UTC"
    assert words.moment((1 << 63) - 1).startswith("9999-")


@pytest.mark.parametrize("foreign", HOSTILE)
def test_a_foreign_text_stays_one(foreign: str) -> None:
    """No markup, no control or direction character, bounded, and isolated."""
    shown = words.text(foreign)
    found = re.fullmatch(r'<bdi(?: title="([^"<>]*)")?>([^<>]*)</bdi>', shown)
    assert found is not None, shown
    for part in (found[1] or "", found[2], words.plain(foreign)):
        assert all(one.isprintable() for one in html.unescape(part))
        part.encode()
    assert len(html.unescape(found[2])) <= words.SHOWN_CHARACTERS
    assert len(html.unescape(found[1] or "")) <= words.HINT_CHARACTERS


def test_what_cannot_be_seen_is_shown_by_its_number() -> None:
    assert words.visible("a\u202eb\x00\U000e0001") == r"a\u202eb\x00\U000e0001"
    assert words.text("") == "<bdi>(empty)</bdi>"
    assert words.visible("שלום") == "שלום"


@pytest.mark.parametrize(("key", "shown"), [(b"k", "k"), (b"\xff\x00", "0xff00"), (b"", "")])
def test_keys(key: bytes, shown: str) -> None:
    assert words.of_key(key) == shown
