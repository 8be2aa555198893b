"""Finds the process behind a connection, such as the Python worker that waits for the broker right now."""

from __future__ import annotations

from pathlib import Path

from penstock.testing.proxy import FaultProxy


def waiting_ports(proxy: FaultProxy, api_key: int) -> list[int]:
    """Return the client ports of the connections on which such a request is still unanswered."""
    return [
        link.to_client.get_extra_info("peername")[1]
        for link in list(proxy._links)
        if api_key in list(link._api_keys.values())
    ]


def find_process(local_port: int) -> int:
    """Return the process that holds the connection from this port on the loopback."""
    inode = next(
        fields[9]
        for fields in map(str.split, Path("/proc/net/tcp").read_text().splitlines()[1:])
        if int(fields[1].rpartition(":")[2], 16) == local_port and fields[3] == "01"
    )
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if any(each.readlink().name == f"socket:[{inode}]" for each in (folder / "fd").iterdir()):
                return int(folder.name)
        except OSError:
            continue  # ended meanwhile, or somebody else's
    raise LookupError(f"nobody holds port {local_port}")
