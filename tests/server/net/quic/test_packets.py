"""QUIC packets without keys: headers whole, cut off and with trailing bytes, and the tokens of Retry."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.quic_peer import QuicPeer

from penstock.server.net.quic.packets import (
    TOKEN_TIME_S,
    LongHeader,
    RetryTokens,
    long_header,
    version_negotiation,
)

# An Initial of version 1: destination 8 bytes, source 4 bytes, a token of 3.
INITIAL = bytes.fromhex("c0 00000001 08 0102030405060708 04 0a0b0c0d 03 746f6b 4005")
EXPECTED = LongHeader(1, True, bytes(range(1, 9)), b"\x0a\x0b\x0c\x0d", b"tok")


@pytest.mark.parametrize("trailing", [b"", b"\x00", bytes(1200)])
def test_an_initial(trailing: bytes) -> None:
    assert long_header(INITIAL + trailing) == EXPECTED


def test_every_cut_is_none_until_the_token_is_whole() -> None:
    whole = len(INITIAL) - 2
    assert [long_header(INITIAL[:size]) for size in range(whole)] == [None] * whole
    assert long_header(INITIAL[:whole]) == EXPECTED


def test_ids_of_version_1_have_a_limit_and_those_of_others_have_none() -> None:
    body = b"\x15" + bytes(21) + b"\x00"
    assert long_header(b"\xc0\x00\x00\x00\x01" + body + b"\x00") is None
    found = long_header(b"\xc0\x1a\x2a\x3a\x4a" + body)
    assert found == LongHeader(0x1A2A3A4A, False, bytes(21), b"", b"")


def test_a_client_of_a_library_is_read() -> None:
    with QuicPeer(9, empty_id=True, library="aioquic") as peer:
        header = long_header(peer.quic.datagrams_to_send(0.0)[0][0])
    assert header is not None
    assert (header.version, header.initial, header.source, header.token) == (1, True, b"", b"")


@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_not(data: bytes) -> None:
    found = long_header(data)
    assert found is None or len(found.destination) + len(found.source) < len(data)


def test_version_negotiation_swaps_the_ids() -> None:
    answer = version_negotiation(EXPECTED, 0x2A)
    assert answer == bytes.fromhex("aa 00000000 04 0a0b0c0d 08 0102030405060708 00000001")


class TestTokens:
    def setup_method(self) -> None:
        self.now_s = 100.0
        self.tokens = RetryTokens(b"secret", lambda: self.now_s)
        self.token = self.tokens.make("127.0.0.1 5", b"first", b"retry")

    def test_a_token_gives_the_first_id_back(self) -> None:
        assert self.tokens.first_id(self.token, "127.0.0.1 5", b"retry") == b"first"

    @pytest.mark.parametrize(
        ("address", "retry_id"), [("127.0.0.1 6", b"retry"), ("127.0.0.1 5", b"other")]
    )
    def test_of_another_address_or_id_it_is_none(self, address: str, retry_id: bytes) -> None:
        assert self.tokens.first_id(self.token, address, retry_id) is None

    def test_it_ends(self) -> None:
        self.now_s += TOKEN_TIME_S + 0.1
        assert self.tokens.first_id(self.token, "127.0.0.1 5", b"retry") is None

    def test_no_bit_of_it_may_change(self) -> None:
        for place in range(len(self.token)):
            wrong = bytearray(self.token)
            wrong[place] ^= 1
            assert self.tokens.first_id(bytes(wrong), "127.0.0.1 5", b"retry") is None
        for cut in range(len(self.token)):
            assert self.tokens.first_id(self.token[:cut], "127.0.0.1 5", b"retry") is None
