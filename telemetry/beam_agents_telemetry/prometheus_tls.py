"""TLS for the endpoint, from files that may be replaced while it runs: certificates are renewed."""

from __future__ import annotations

import logging
import ssl
import threading
from pathlib import Path

__all__ = ["CertificateFiles"]

_logger = logging.getLogger(__name__)


class CertificateFiles:
    """Makes contexts of PEM files, a new one whenever the files have changed.

    Args:
        certfile: The certificate chain.
        keyfile: Its private key; empty if it is in ``certfile`` too.
        client_cafile: Authorities of clients; empty to let in clients without a certificate.

    Raises:
        OSError: The files cannot be loaded.
    """

    def __init__(self, certfile: str, keyfile: str, client_cafile: str) -> None:
        self._certfile = certfile
        self._keyfile = keyfile
        self._client_cafile = client_cafile
        self._files = [Path(each) for each in (certfile, keyfile, client_cafile) if each]
        self._lock = threading.Lock()
        self._stamps = self._read_stamps()
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """Return the context of the moment; files that do not load leave the last one in use."""
        with self._lock:
            stamps = self._read_stamps()
            if stamps != self._stamps:
                # Noted either way: one change is tried, and told of, once.
                self._stamps = stamps
                try:
                    self._context = self._load()
                except OSError as error:
                    _logger.warning("prometheus: the certificate in use stays: %s", error)
            return self._context

    def _read_stamps(self) -> list[tuple[int, int] | None]:
        stamps: list[tuple[int, int] | None] = []
        for file in self._files:
            try:
                found = file.stat()
            except OSError:
                stamps.append(None)
            else:
                stamps.append((found.st_mtime_ns, found.st_ino))
        return stamps

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # A key that is encrypted fails with the empty password, instead of asking at a terminal.
            context.load_cert_chain(self._certfile, self._keyfile or None, password=lambda: "")
            if self._client_cafile:
                context.load_verify_locations(self._client_cafile)
                context.verify_mode = ssl.CERT_REQUIRED
        except OSError as error:
            files = ", ".join(map(str, self._files))
            kind = type(error).__name__
            raise OSError(error.errno, f"cannot load the PEM files {files}: {kind}") from error
        return context
