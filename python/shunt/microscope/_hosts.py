"""Under which names the page is served.

Any page of the web can make a name of its own mean this machine (DNS rebinding); to a browser what is served there is then that page's own, to be read. So
only what nobody else can give out is answered: addresses, ``localhost``, the name that was asked for, and, if all addresses are served, this machine's names.
"""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit


class Hosts:
    """The names of a server that is bound to ``host``."""

    def __init__(self, host: str) -> None:
        self._names = {"localhost", _plain(host)}
        if host in ("", "0.0.0.0", "::"):
            self._names |= {_plain(socket.gethostname()), _plain(socket.getfqdn())}
        self._names.discard("")

    def allow(self, header: str | None) -> bool:
        """Whether a request with this ``Host`` is answered."""
        try:
            name = urlsplit(f"//{header or ''}").hostname or ""
        except ValueError:
            return False
        return _is_address(name) or _plain(name) in self._names


def _plain(name: str) -> str:
    return name.rstrip(".").lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
