"""QUIC as a part of the server: its listeners, the engine that they run on, their certificate, its renewal.

The libraries are imported when the first listener starts, so that a server without one does without them.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace

from penstock.server.net.hub import Hub
from penstock.server.net.quic.certificates import (
    CERTIFICATE_FILE,
    configured_certificate,
    fingerprint,
    kept_certificate,
)
from penstock.server.net.quic.connection import MakeConnectionSession
from penstock.server.net.quic.listener import QuicListener
from penstock.server.net.quic.port import Certificate, EngineSettings, Statistics
from penstock.server.net.tls import TlsFileError


class QuicHost:
    """`paths`: of the configured certificate and its key; None: one of our own making, in `directory`."""

    def __init__(self, paths: tuple[str, str] | None, directory: str) -> None:
        self.listeners: list[QuicListener] = []
        self.engine_name = ""
        self._paths = paths
        self._directory = directory
        self._certificate: Certificate | None = None

    async def start(
        self,
        hub: Hub,
        settings: EngineSettings,
        make_sessions: Mapping[str, MakeConnectionSession],
    ) -> None:
        """Raises TlsFileError, CertificateUnusable, CertificateRefused or OSError."""
        from penstock.server.net.quic.python_engine import PythonEngine

        certificate = await asyncio.to_thread(self._read, self._paths)
        settings = replace(settings, certificate=certificate)
        for listener in self.listeners:
            listener.listen(hub, PythonEngine, settings, make_sessions)
        self.engine_name = PythonEngine.name
        self._certificate = certificate

    def _read(self, paths: tuple[str, str] | None) -> Certificate:
        if paths is None:
            return kept_certificate(self._directory, time.time())
        try:
            return configured_certificate(*paths)
        except OSError as error:
            raise TlsFileError(" and ".join(paths), error.strerror or str(error)) from error

    def trusted_by(self) -> str | None:
        """What a client of a self-signed certificate has to trust, for the banner."""
        if self._certificate is None or self._paths is not None:
            return None
        return f"{CERTIFICATE_FILE} in the data directory, SHA-256 {fingerprint(self._certificate)}"

    async def renew(self, paths: tuple[str, str] | None) -> bool:
        """Reads the certificate again, for connections to come; whether it has changed. On an error,
        which is raised as by `start`, nothing changes."""
        if self._certificate is None or (paths is None) != (self._paths is None):
            return False  # with a certificate or without: that is a matter of the start
        certificate = await asyncio.to_thread(self._read, paths)
        if certificate == self._certificate:
            return False
        for listener in self.listeners:
            listener.use_certificate(certificate)
        self._paths, self._certificate = paths, certificate
        return True

    def statistics(self) -> list[Statistics]:
        return [one.engine.statistics() for listener in self.listeners for one in listener.served]

    def stop(self) -> None:
        for listener in self.listeners:
            listener.shut()
