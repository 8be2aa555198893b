"""Settings with which tests reach a broker through our own client."""

from __future__ import annotations

from typing import Any

from penstock.core.client.client_settings import ClientSettings


def settings_of(bootstrap: str, **changes: Any) -> ClientSettings:
    """Return the settings of a client that finds its cluster at these addresses."""
    servers = (each.rsplit(":", 1) for each in bootstrap.split(","))
    return ClientSettings(tuple((host, int(port)) for host, port in servers), **changes)
