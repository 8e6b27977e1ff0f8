"""Sizes and times with units: reading, refusing, writing."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.server.config.units import (
    MAX_VALUE,
    UnitError,
    format_bytes,
    format_time_us,
    is_off,
    parse_bytes,
    parse_time_us,
)

Parse = Callable[[object], int]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("64 MiB", 64 * 1024**2),
        ("64MiB", 64 * 1024**2),
        ("  64   mib ", 64 * 1024**2),
        ("10 GB", 10**10),
        ("1 kB", 1000),
        ("1 KB", 1000),
        ("1.5 GiB", 3 * 1024**3 // 2),
        ("2 TiB", 2 * 1024**4),
        ("0", 0),
        ("512", 512),
        (512, 512),
        ("7 B", 7),
        (MAX_VALUE, MAX_VALUE),
        (str(MAX_VALUE), MAX_VALUE),
    ],
)
def test_sizes(written: object, expected: int) -> None:
    assert parse_bytes(written) == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("250 ms", 250_000),
        ("30 s", 30_000_000),
        ("30", 30_000_000),
        (30, 30_000_000),
        (0.1, 100_000),
        ("0.5 s", 500_000),
        ("5 min", 300_000_000),
        ("12 h", 43_200_000_000),
        ("7 d", 604_800_000_000),
        ("3 us", 3),
        ("0 s", 0),
    ],
)
def test_times(written: object, expected: int) -> None:
    assert parse_time_us(written) == expected


@pytest.mark.parametrize("parse", [parse_bytes, parse_time_us])
@pytest.mark.parametrize(
    "written",
    [
        "", " ", "MiB", "s", "-1", "- 1 s", "1e3", "1,5 s", "1 2", "0x10", "inf", "nan", "1.", ".5",
        "1 s s", "1 parsec", "1_0", "\u0661 s", "1 \u212aB", "off", "9" * 20, "9223372036854775808",
        "1000000000 TiB", "999999999999999 d", "9" * 100_000, "1." + "0" * 100_000,
        True, False, None, [], {}, b"1", -1, -1.0, 1 << 64, -(1 << 64), float("inf"), float("nan"),
        1e300, 1e-9,
    ],
)  # fmt: skip
def test_what_is_no_quantity(parse: Parse, written: object) -> None:
    with pytest.raises(UnitError, match=r"a (size|time) such as") as caught:
        parse(written)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("parse", [parse_bytes, parse_time_us])
@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_of_thousands_of_digits(parse: Parse, sign: int) -> None:
    with pytest.raises(UnitError, match="from 0 to"):
        parse(sign * 10**5000)  # Python itself refuses to turn it into text


@pytest.mark.parametrize(
    ("parse", "written", "hint"),
    [
        (parse_bytes, "1 M", "units: B, kB, KiB, MB, MiB"),
        (parse_time_us, "1 m", "units: us, ms, s, min, h, d"),
        (parse_bytes, "0.5 B", "in whole B"),
        (parse_time_us, "0.5 us", "in whole us"),
        (parse_bytes, "9000000 TiB", "from 0 to"),
    ],
)
def test_refusals_say_what_would_do(parse: Parse, written: str, hint: str) -> None:
    with pytest.raises(UnitError) as caught:
        parse(written)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"), (1, "1 B"), (1000, "1 kB"), (1024, "1 KiB"), (1025, "1025 B"),
        (64 * 1024**2, "64 MiB"), (10**10, "10 GB"), (3 * 1024**3 // 2, "1536 MiB"),
    ],
)  # fmt: skip
def test_size_text(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("time_us", "text"),
    [
        (0, "0 s"), (1, "1 us"), (250_000, "250 ms"), (10_000_000, "10 s"), (90_000_000, "90 s"),
        (60_000_000, "1 min"), (604_800_000_000, "7 d"),
    ],
)  # fmt: skip
def test_time_text(time_us: int, text: str) -> None:
    assert format_time_us(time_us) == text


@given(st.integers(0, MAX_VALUE))
def test_text_parses_to_the_same_number(value: int) -> None:
    assert parse_bytes(format_bytes(value)) == value
    assert parse_time_us(format_time_us(value)) == value


@given(st.text() | st.floats() | st.integers())
def test_anything_parses_or_is_refused(value: object) -> None:
    for parse in (parse_bytes, parse_time_us):
        try:
            assert 0 <= parse(value) <= MAX_VALUE
        except UnitError:
            continue


@pytest.mark.parametrize(
    ("value", "expected"),
    [("off", True), (" OFF ", True), ("no", False), ("", False), (0, False), (False, False)],
)
def test_off(value: object, expected: bool) -> None:
    assert is_off(value) is expected
