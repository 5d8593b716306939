"""TLS of the exporter: certificate, key, and the authority of clients that must have a certificate."""

from __future__ import annotations

import contextlib
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vramtop.estimator.common.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(slots=True)
class TlsFiles:
    """Files in PEM. A renewed certificate is used from the next connection on.

    Raises:
        InputError: they cannot be read, or the key is not that of the certificate.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None
    """Clients need a certificate of this authority; None: they need none."""
    _context: ssl.SSLContext = field(init=False)
    _loaded: tuple[float, float] = field(init=False)
    """Modification times of certificate and key."""

    def __post_init__(self) -> None:
        context = self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            self._loaded = self._times()
            context.load_cert_chain(self.certificate, self.key, password=lambda: "")  # never asks on the terminal
        except OSError as error:
            reason = (
                "they are not a certificate and its key in PEM" if isinstance(error, ssl.SSLError) else error.strerror
            )
            raise InputError(f"--tls-cert {self.certificate}, --tls-key {self.key}: {reason}") from None
        if self.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(self.client_ca)
            except OSError as error:
                reason = "no certificates in PEM" if isinstance(error, ssl.SSLError) else error.strerror
                raise InputError(f"--client-ca {self.client_ca}: {reason}") from None

    def context(self) -> ssl.SSLContext:
        """Return the context for the next connection."""
        with contextlib.suppress(OSError):  # half-written or gone: the one before goes on
            if (times := self._times()) != self._loaded:
                ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                    self.certificate, self.key, password=lambda: ""
                )
                self._context.load_cert_chain(self.certificate, self.key, password=lambda: "")
                self._loaded = times
        return self._context

    def _times(self) -> tuple[float, float]:
        return self.certificate.stat().st_mtime, self.key.stat().st_mtime
