"""TLS to a store's server: what the URI asks for, as the clients want it, and how a refusal is recognised."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from beam_agents.memory.stores.uri import StoreUri

__all__ = ["RootsUnreadable", "is_untrusted", "roots_file", "speaks_no_tls", "tls_context"]


class RootsUnreadable(Exception):
    """The file that ``sslrootcert`` names is missing, may not be read, or holds no certificate."""


def tls_context(uri: StoreUri) -> ssl.SSLContext | None:
    """Return what a client is given for the URI's ``sslmode``; None for no TLS.

    Raises:
        RootsUnreadable: See there.
    """
    options = uri.options
    if options.sslmode in {"", "disable"}:
        return None
    if options.sslmode == "require":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    try:
        context = ssl.create_default_context(cafile=options.sslrootcert or None)
    except OSError:
        raise RootsUnreadable from None
    context.check_hostname = options.sslmode == "verify-full"
    return context


def roots_file(uri: StoreUri) -> str:
    """Return the file of the authorities that a server's certificate may be signed by, as libpq names it."""
    return uri.options.sslrootcert or ssl.get_default_verify_paths().cafile or "system"


def is_untrusted(error: BaseException) -> bool:
    """Tell whether a server's certificate did not verify."""
    return any(isinstance(link, ssl.SSLCertVerificationError) for link in _chain(error))


def speaks_no_tls(error: BaseException) -> bool:
    """Tell whether what answered, answered without TLS."""
    return any(getattr(link, "reason", None) == "WRONG_VERSION_NUMBER" for link in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__
