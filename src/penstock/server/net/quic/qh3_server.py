"""The server's side of a connection by qh3: certificate, first packet, choice of the application. Hot:
compiled by mypyc.
"""

from typing import Any

from qh3 import tls

from penstock.quic import qh3_connection
from penstock.quic.link import Address
from penstock.quic.qh3_link import Qh3Link
from penstock.server.net.quic.hello import watch_hello
from penstock.server.net.quic.packets import long_header
from penstock.server.net.quic.port import Certificate, CertificateRefused, EngineSettings


def configuration(settings: EngineSettings, certificate: Certificate) -> Any:
    """Of the library. Raises CertificateRefused."""
    made = qh3_connection.configuration(settings, is_client=False)
    try:
        made.load_cert_chain(certificate.chain, certificate.key)
    except Exception as error:  # the library raises errors of many kinds for bad PEM
        raise CertificateRefused(str(error) or type(error).__name__) from None
    return made


class Qh3ServerLink(Qh3Link):
    def __init__(
        self,
        serial: int,
        settings: EngineSettings,
        made: Any,
        address: Address,
        now_s: float,
        first_id: bytes,
        retry_id: bytes | None,
    ) -> None:
        self._choose = settings.choose
        super().__init__(serial, settings, made, address, now_s, first_id, retry_id)

    def made_tls(self, context: Any) -> None:
        watch_hello(context, tls, self._choose)

    def shake(self, data: bytes, address: Address, now_s: float) -> None:
        """A datagram of the handshake. The library would pass its packets to the core one by one, and then
        counts only their bytes: a client that pads behind its packet would have too little credit for our
        answer. A server has all keys that it needs when a datagram comes, so the core gets it whole."""
        quic = self._quic
        if self._core is None:
            header = long_header(data)
            assert header is not None, "the engine has read it"
            quic._remote_addr = address
            quic._version = header.version
            quic._create_core(address, header.destination, now_s)
            quic._create_tls(None)
        report = self._core.receive_datagram(data, address, now_s, len(data))
        if report[2]:
            quic._learn_remote_source_cid(data)
        self.take_from_core()
