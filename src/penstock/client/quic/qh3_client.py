"""The client's side of a connection by qh3: the first packet, and whether the server is trusted.

The library would take no self-signed certificate of a server as its own authority, so it checks only that
the server has the key of its certificate; whether that one is trusted is decided here, before anything is
sent on a stream.
"""

import ipaddress
import ssl
from typing import Any, Final

from qh3 import tls

from penstock.client.quic.trust import Anchors
from penstock.quic import qh3_connection
from penstock.quic.events import OPENED, LinkSettings
from penstock.quic.qh3_link import Qh3Link

# CRYPTO_ERROR and the TLS alert bad_certificate (RFC 9001 section 4.8).
BAD_CERTIFICATE: Final = 0x100 + 42


class Qh3ClientLink(Qh3Link):
    """`distrusted`: why the server's certificate was not accepted, once that is known."""

    def __init__(
        self,
        settings: LinkSettings,
        application: str | None,
        anchors: Anchors,
        address: tuple[Any, ...],
        now_s: float,
    ) -> None:
        made = qh3_connection.configuration(settings, is_client=True)
        made.alpn_protocols = None if application is None else [application]
        made.verify_mode = ssl.CERT_NONE
        # TLS names hosts only (RFC 6066 section 3).
        name = anchors.server_name
        made.server_name = None if _is_address(name) else name
        self._anchors = anchors
        self.distrusted: str | None = None
        super().__init__(0, settings, made, address, now_s)
        self._quic.connect((address[0], address[1]), now_s)

    def shake(self, data: bytes, address: tuple[Any, ...], now_s: float) -> None:
        self._quic.receive_datagram(data, address, now_s)
        refused = self._quic._close_event
        if refused is not None:  # no version in common, which the core does not know of
            self.add_end(int(refused.error_code), str(refused.reason_phrase).encode())
        if self.opened and any(event[0] == OPENED for event in self.events):
            self.distrusted = self._flaw_of_certificate()
            if self.distrusted is not None:
                self.events = [event for event in self.events if event[0] != OPENED]

    def _flaw_of_certificate(self) -> str | None:
        anchors, shown = self._anchors, self._quic.get_peercert()
        if anchors.insecure:
            return None
        if shown is None:
            return "it has none"
        if shown.public_bytes() in anchors.own:
            return None
        try:
            tls.verify_certificate(
                shown,
                list(self._quic.get_issuercerts()),
                cadata=anchors.pem,
                server_name=anchors.server_name,
            )
        except tls.Alert as error:
            return str(error) or "it is not trusted"
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
