"""The plugin ``prometheus``: an HTTP endpoint in each worker process that Prometheus scrapes."""

from __future__ import annotations

import errno
import logging
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from beam_agents.errors import PluginUnusable
from beam_agents.signals.losses import count_lost
from beam_agents.signals.observer import Observer
from beam_agents.signals.per_process import PerProcess
from beam_agents_telemetry.options import OptionChecks
from beam_agents_telemetry.prometheus_families import new_registry
from beam_agents_telemetry.prometheus_pages import Credentials, Pages, read_password
from beam_agents_telemetry.prometheus_server import BoundedServer
from beam_agents_telemetry.prometheus_targets import TargetFile, remove_abandoned, this_process
from beam_agents_telemetry.prometheus_tls import CertificateFiles

__all__ = ["PrometheusMetrics", "PrometheusObserver"]

_logger = logging.getLogger(__name__)

NAME: Final = "prometheus"
_CHECKS: Final = OptionChecks(NAME)
DEFAULT_PORT: Final = 9464
"""Where OpenTelemetry's Prometheus exporters listen, too: nothing of Prometheus's own does."""

_MAX_PORT: Final = 65_535
_open: PerProcess[set[str]] = PerProcess(set)
"""Where this process's endpoints are."""

_WILDCARDS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - to tell them from addresses that can be reached


@dataclass(frozen=True, slots=True)
class PrometheusMetrics:
    """The plugin ``prometheus``: an endpoint in each worker process that Prometheus scrapes.

    Every option may be given as text, as it comes in ``"prometheus?port=9464"``.

    Attributes:
        port: Where to listen. If it is taken, by another worker process say, the next ones are tried. 0 for
            any port that is free.
        ports: How many further ports are tried.
        address: Where to bind, an IP address or a name of the machine. The default, ``"127.0.0.1"``, can be
            reached from the machine alone; ``"0.0.0.0"`` can be reached from everywhere.
        certfile: A PEM file with the certificate chain, on the worker: the endpoint then speaks TLS alone.
        keyfile: A PEM file with its private key; empty if it is in ``certfile`` too.
        client_cafile: A PEM file with authorities: only clients with a certificate of theirs are let in.
        username: Who is let in, with ``password_file``.
        password_file: A file with the password, on the worker; empty for no basic authentication.
        sd_dir: A folder for Prometheus's file-based service discovery, in which each process writes its
            target; empty for none.
        advertise: The host name or address of this machine that goes there; empty for ``address``, or for
            the machine's own name where it is bound to every address.

    Raises:
        InvalidArgument: An option has a value that it may not have, or does not fit to another.
        InvalidArgumentType: An option is of a type that it may not be of.
    """

    port: int = DEFAULT_PORT
    ports: int = 100
    address: str = "127.0.0.1"
    certfile: str = ""
    keyfile: str = ""
    client_cafile: str = ""
    username: str = NAME
    password_file: str = ""
    sd_dir: str = ""
    advertise: str = ""

    def __post_init__(self) -> None:
        checked: dict[str, object] = {"address": _CHECKS.host("address", self.address)}
        for option in ("port", "ports"):
            checked[option] = _CHECKS.whole(option, getattr(self, option), 0, _MAX_PORT)
        for option in ("certfile", "keyfile", "client_cafile", "password_file", "sd_dir"):
            checked[option] = _CHECKS.path(option, getattr(self, option))
        for option in ("username", "advertise"):
            checked[option] = _CHECKS.text(option, getattr(self, option))
        if checked["advertise"]:
            checked["advertise"] = _CHECKS.host("advertise", self.advertise)
        for option, value in checked.items():
            object.__setattr__(self, option, value)
        for option in ("keyfile", "client_cafile"):
            if getattr(self, option) and not self.certfile:
                raise _CHECKS.problem(f"{option} needs certfile: without it the endpoint does not speak TLS")
        if not self.username or ":" in self.username:
            raise _CHECKS.refused("username", "a text that is not empty and has no colon", self.username)
        if self.username != NAME and not self.password_file:
            raise _CHECKS.problem("username needs password_file: without it everyone is let in")

    @property
    def name(self) -> str:
        """``"prometheus"``."""
        return NAME

    def build(self) -> PrometheusObserver:
        """Start the endpoint.

        Raises:
            PluginUnusable: No port is free, or a file cannot be read, or the password file is empty.
        """
        try:
            return PrometheusObserver(self)
        except (OSError, ValueError) as error:
            # It is told of files and ports, never a secret.
            raise PluginUnusable(f"no endpoint: {error}") from error


class PrometheusObserver(Observer):
    """The endpoint of this process. It measures nothing: it reads what the process has summed up.

    Args:
        plugin: The configuration.

    Attributes:
        url: Where it is, as this process sees it.
        server: What listens.
    """

    reads_aggregates: ClassVar[bool] = True

    def __init__(self, plugin: PrometheusMetrics) -> None:
        credentials = None
        if plugin.password_file:
            read_password(plugin.password_file)
            credentials = Credentials(plugin.username, plugin.password_file)
        tls = None
        if plugin.certfile:
            tls = CertificateFiles(plugin.certfile, plugin.keyfile, plugin.client_cafile)
        pages = Pages(NAME, new_registry(), credentials)
        self.server = _listen(plugin, pages, tls)
        host = f"[{plugin.address}]" if ":" in plugin.address else plugin.address
        self.url = f"{'https' if tls else 'http'}://{host}:{self.server.port}"
        self._target: TargetFile | None = None
        if plugin.sd_dir:
            try:
                self._target = _advertise(plugin, self.server.port)
            except OSError as error:
                # Whoever knows the port can scrape it all the same.
                problem = (
                    f"no target file in {plugin.sd_dir}: {error.strerror}; Prometheus does not find this "
                    f"process, whose metrics are at {self.url}/metrics"
                )
                count_lost(NAME, "discovery", type(error).__name__, problem=problem)
        _logger.info("%s: serving %s/metrics", NAME, self.url)
        others = sorted(_open.value)
        if others:
            _logger.warning(
                "%s: %s and %s are endpoints of one process with the same series, which count twice where "
                "both are scraped: give all pipelines of a process the same options",
                NAME,
                self.url,
                others[0],
            )
        _open.value.add(self.url)

    def close(self, timeout_s: float) -> None:
        """Take the target out of the discovery and free the port, within the bound."""
        _open.value.discard(self.url)
        try:
            if self._target is not None:
                self._target.remove()
        finally:
            self.server.stop(timeout_s)


def _listen(plugin: PrometheusMetrics, pages: Pages, tls: CertificateFiles | None) -> BoundedServer:
    """Listen on the first port of the range that is free."""
    last = min(plugin.port + plugin.ports, _MAX_PORT) if plugin.port else 0
    for port in range(plugin.port, last + 1):
        try:
            return BoundedServer(
                plugin.address,
                port,
                pages.respond,
                tls=tls.context if tls else None,
                on_lost=lambda reason: count_lost(NAME, reason),
            )
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise OSError(
                    error.errno, f"cannot listen on {plugin.address} port {port}: {error.strerror}"
                ) from error
    raise OSError(
        errno.EADDRINUSE,
        f"no port of {plugin.port} to {last} is free on {plugin.address}; set another port, or more ports",
    )


def _advertise(plugin: PrometheusMetrics, port: int) -> TargetFile:
    """Write the target's file, and clean up after processes that could not."""
    folder, me = Path(plugin.sd_dir), this_process()
    everywhere = plugin.address in _WILDCARDS
    host = plugin.advertise or (socket.gethostname() if everywhere else plugin.address)
    target = TargetFile(folder, me, host, port, tls=bool(plugin.certfile))
    remove_abandoned(folder, me)
    return target
