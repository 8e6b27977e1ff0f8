"""The secrets behind API keys: making them, hashing them, comparing them.

Two kinds of hash, because there are two kinds of key:

* A key that we make has 160 random bits. Nobody can guess it, however fast the hash, so it is stored
  as salted BLAKE2b: 1 us per login. A slow hash would add nothing but work.
* A key that a person chose may be a word. Where only its hash is written down (`hash` in the
  configuration file) that is argon2id, which makes each guess cost tens of milliseconds and 19 MiB.

A key that the configuration gives in plain is hashed in memory with a salt of this process only. It
never leaves memory, so the fast hash is right for it too.

Knows no names, roles, rules or storage: see access.py.
"""

import base64
import hmac
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

import argon2

from penstock.errors import PenstockError

RandomBytes = Callable[[int], bytes]

# A prefix by which people and secret scanners recognise a key.
KEY_PREFIX: Final = "pk_"
# 160 bits: over the 128 that nobody can search, and 32 characters of base32 without padding.
KEY_RANDOM_BYTES: Final = 20

# The most that BLAKE2b takes.
SALT_BYTES: Final = 16
DIGEST_BYTES: Final = 32
# Keeps our digests apart from those that another program makes of the same key.
_PERSON: Final = b"penstock-api-key"

# OWASP's first choice for argon2id. One verification at a time, so this is all the memory it takes.
_ARGON2: Final = argon2.PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)
ARGON2_PREFIX: Final = "$argon2id$"
# Logins wait for a slow hash with their key in memory: 10,000 connections are 10 MiB with this.
MAX_SLOW_KEY_BYTES: Final = 1024


class SlowHashFailed(PenstockError):
    """The slow hash could not be computed, for example for lack of memory."""

    reason: str

    line = "argon2id could not be computed: {reason}"


def make_key(random_bytes: RandomBytes) -> str:
    """A new key, such as pk_q2x4... with 32 characters after the prefix."""
    return KEY_PREFIX + base64.b32encode(random_bytes(KEY_RANDOM_BYTES)).decode().lower()


def condense(key: str) -> bytes:
    """64 bytes for a key of any length, so that a long one costs no more against many candidates.

    Half surrogate pairs, which a careless decoder may leave, are bytes like any other here.
    """
    return blake2b(key.encode("utf-8", "surrogatepass")).digest()


def salted_digest(condensed: bytes, salt: bytes) -> bytes:
    """What is stored of a key whose condensed form is given."""
    return blake2b(condensed, digest_size=DIGEST_BYTES, salt=salt, person=_PERSON).digest()


def same(one: bytes, other: bytes) -> bool:
    """Equality in constant time."""
    return hmac.compare_digest(one, other)


def hash_slowly(key: str) -> str:
    """The argon2id text for `hash` in the configuration. Takes tens of milliseconds."""
    return _ARGON2.hash(key.encode())


def is_slow_hash(text: str) -> bool:
    """Whether a text is an argon2id hash that can be verified."""
    if not text.startswith(ARGON2_PREFIX):
        return False
    try:
        argon2.extract_parameters(text)
        _ARGON2.verify(text, b"")
    except argon2.exceptions.VerifyMismatchError:
        return True
    except (argon2.exceptions.Argon2Error, argon2.exceptions.InvalidHashError):
        return False
    return True


def matches_slow_hash(key: str, text: str) -> bool:
    """Whether argon2id of the key is the given hash. Slow: not on an event loop."""
    secret = key.encode("utf-8", "surrogatepass")
    if len(secret) > MAX_SLOW_KEY_BYTES:
        return False
    try:
        return _ARGON2.verify(text, secret)
    except argon2.exceptions.VerifyMismatchError:
        return False
    except argon2.exceptions.Argon2Error as error:
        raise SlowHashFailed(str(error)) from error
