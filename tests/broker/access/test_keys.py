"""The secrets behind API keys."""

import re

import pytest

from penstock.broker.access import keys

SALT = b"s" * keys.SALT_BYTES


def test_a_key_has_its_shape_and_all_the_randomness() -> None:
    asked: list[int] = []

    def random_bytes(count: int) -> bytes:
        asked.append(count)
        return bytes(range(count))

    key = keys.make_key(random_bytes)
    assert re.fullmatch(r"pk_[a-z2-7]{32}", key)
    assert asked == [20] and asked[0] * 8 >= 128


def test_different_randomness_gives_different_keys() -> None:
    made = {keys.make_key(bytes([first]).__mul__) for first in range(9)}
    assert len(made) == 9


def test_a_digest_depends_on_key_and_salt() -> None:
    condensed = keys.condense("secret")
    digest = keys.salted_digest(condensed, SALT)
    assert len(digest) == keys.DIGEST_BYTES
    assert digest == keys.salted_digest(keys.condense("secret"), SALT)
    assert digest != keys.salted_digest(condensed, b"t" * keys.SALT_BYTES)
    assert digest != keys.salted_digest(keys.condense("secres"), SALT)


@pytest.mark.parametrize("key", ["", "x" * 65_535, "\ud800", "schlüssel", "nul\0"])
def test_any_text_is_condensed(key: str) -> None:
    assert len(keys.condense(key)) == 64
    assert keys.condense(key) != keys.condense(key + "x")


def test_slow_hashes() -> None:
    text = keys.hash_slowly("secret")
    assert text.startswith("$argon2id$") and "secret" not in text
    assert text != keys.hash_slowly("secret"), "the salt must differ"
    assert keys.is_slow_hash(text)
    assert keys.matches_slow_hash("secret", text)
    assert not keys.matches_slow_hash("Secret", text)
    assert not keys.matches_slow_hash("\ud800", text)


def test_a_key_too_long_for_the_slow_hash_never_matches() -> None:
    longest = "x" * keys.MAX_SLOW_KEY_BYTES
    assert keys.matches_slow_hash(longest, keys.hash_slowly(longest))
    assert not keys.matches_slow_hash(longest + "x", keys.hash_slowly(longest + "x"))


@pytest.mark.parametrize(
    "text",
    ["", "abc", "$argon2id$", "$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHQ$", "$2b$12$abcdefgh",
     "$argon2id$v=19$m=x,t=1,p=1$c2FsdHNhbHQ$aGFzaGhhc2g"],
)  # fmt: skip
def test_what_is_no_slow_hash(text: str) -> None:
    assert not keys.is_slow_hash(text)


def test_a_slow_hash_that_fails_is_not_a_wrong_key() -> None:
    # The library refuses a salt this short, as it would report that memory is missing.
    broken = "$argon2id$v=19$m=8,t=1,p=1$c2E$aGFzaGhhc2hoYXNoaGFzaGhhc2g"
    with pytest.raises(keys.SlowHashFailed, match="could not be computed") as caught:
        keys.matches_slow_hash("secret", broken)
    assert "secret" not in str(caught.value) and "secret" not in repr(caught.value)
