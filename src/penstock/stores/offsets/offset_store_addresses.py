"""Opens an offset store by its address, a single text that can name a store of any kind.

    memory:                                         in this process
    offsets/    file:///var/lib/shop/offsets        a folder of files
    shop.db     sqlite:///var/lib/shop.db           a SQLite file (ends in .db, .sqlite or .sqlite3)
    postgresql://user:password@host:port/database   PostgreSQL
    mysql://user:password@host:port/database        MySQL or MariaDB
    kafka://host:port,host:port/group               what a consumer group has committed
    zookeeper://host:port,host:port/prefix          ZooKeeper
    checkpoint:folder                               a Spark query's checkpoint, to read and to move
    sink:postgresql://...    sink:results.db        a SQL sink's offsets, to read and to move

A SQL address may end in `?namespace=NAME`. Rule: an error about an address never repeats it, because
it may hold a password.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import OptionError
from penstock.core.offsets.offset_store_contract import OffsetStore
from penstock.core.options.storage_addresses import parse_place

_SQLITE_ENDS = (".db", ".sqlite", ".sqlite3")
_SQL = ("sqlite", "postgresql", "postgres", "mysql", "mariadb")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_FORMS = (
    "Write memory:, a folder or file:///folder, a file that ends in .db or sqlite:///file.db, "
    "postgresql://user:password@host:port/database, mysql://..., kafka://host:port/group, "
    "zookeeper://host:port/prefix, checkpoint:folder, or sink: and "
    "a database."
)


def open_offset_store(
    address: str, *, create: bool = True, client: ClientSettings | None = None
) -> OffsetStore:
    """Return the store at an address. Without `create` a missing store is an error, not an empty store.

    `client` has the logins for a Kafka cluster; the hosts come from the address.
    """
    address = address.strip()
    found = _SCHEME.match(address)
    scheme = found[1].lower() if found else ""
    if address == "memory:":
        from penstock.stores.offsets.memory_store import MemoryOffsetStore

        return MemoryOffsetStore()
    if address.startswith("checkpoint:") and not scheme:
        from penstock.stores.offsets.checkpoint_store import CheckpointOffsetStore

        return CheckpointOffsetStore(address.removeprefix("checkpoint:"))
    if address.startswith("sink:"):
        from penstock.stores.offsets.sink_ledger_store import SinkOffsetStore

        return SinkOffsetStore(parse_place(address.removeprefix("sink:")))
    if scheme in _SQL or (not scheme and address.endswith(_SQLITE_ENDS) and not Path(address).is_dir()):
        return _open_sql(address, create)
    if scheme == "kafka":
        from penstock.stores.offsets.kafka_store import KafkaOffsetStore

        hosts, group = _split_hosts(address)
        servers = tuple(_split_port(each) for each in hosts.split(","))
        settings = ClientSettings(servers) if client is None else replace(client, bootstrap_servers=servers)
        return KafkaOffsetStore(settings, group=group)
    if scheme == "zookeeper":
        from penstock.stores.offsets.zookeeper_store import ZooKeeperOffsetStore

        hosts, path = _split_hosts(address)
        return ZooKeeperOffsetStore(hosts, prefix=f"/{path}", create=create)
    if scheme in ("", "file"):
        return _open_folder(address, bool(scheme), create)
    raise _invalid(f"The address begins with {scheme}://, which is not a place for offsets")


def _open_sql(address: str, create: bool) -> OffsetStore:
    from penstock.stores.offsets.sql_store import SqlOffsetStore

    plain, _, query = address.partition("?")
    if not _SCHEME.match(address):
        plain, query = address, ""  # a path may have a question mark
    settings = parse_qsl(query, keep_blank_values=True)
    namespaces = [value for name, value in settings if name == "namespace"]
    rest = urlencode([(name, value) for name, value in settings if name != "namespace"])
    place = parse_place(plain + (f"?{rest}" if rest else ""))
    if len(namespaces) > 1:
        raise _invalid("The address has two namespaces")
    return SqlOffsetStore(place, namespace=namespaces[0] if namespaces else "default", create=create)


def _open_folder(address: str, is_url: bool, create: bool) -> OffsetStore:
    from penstock.stores.offsets.file_store import FileOffsetStore

    if is_url:
        parts = urlsplit(address)
        if parts.netloc or parts.query or parts.fragment or parts.path in ("", "/"):
            raise _invalid("The file address must be file:///folder, with nothing after it")
        return FileOffsetStore(unquote(parts.path), create=create)
    if not address or "\0" in address or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", address):
        raise _invalid("The address is blank" if not address else "The address has no known form")
    return FileOffsetStore(address, create=create)


def _split_hosts(address: str) -> tuple[str, str]:
    """Return the hosts with ports, and the rest of the address without its slash."""
    scheme, _, rest = address.partition("://")
    hosts, _, path = rest.partition("/")
    if "@" in hosts:
        raise _invalid(f"The {scheme} address has a login, but takes none")
    if not hosts or not all(
        re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\s]+):[0-9]{1,5}", each) for each in hosts.split(",")
    ):
        raise _invalid(f"The {scheme} address must name its hosts as host:port,host:port")
    if not path:
        raise _invalid(f"The {scheme} address names nothing after the hosts")
    return hosts, unquote(path)


def _split_port(host: str) -> tuple[str, int]:
    name, _, port = host.rpartition(":")
    return name.strip("[]"), int(port)


def _invalid(what: str) -> OptionError:
    return OptionError("PLACE_INVALID", f"{what}.", hint=_FORMS)
