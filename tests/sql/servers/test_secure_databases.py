"""Databases reached over TLS: the settings in an address decide which server is trusted."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cluster import LocalMariaDB, LocalPostgres
from penstock.cluster.kafka.secure_listeners import make_secure_access
from penstock.cluster.servers.local_server import LocalDatabase
from penstock.core.errors import OffsetStoreError
from penstock.core.options.storage_addresses import parse_place
from penstock.stores.loss_ledger import open_loss_ledger
from penstock.stores.sql.connections.sql_sessions import Database

pytestmark = pytest.mark.sql


class SecureFiles(LocalDatabase):
    """Creates certificates for the server; those for its clients are beside them."""

    def prepare(self, password: str) -> None:
        super().prepare(password)
        self.access = make_secure_access(self.folder / "secure")
        shutil.copy(self.access.server_keystore_path, self.pem)
        self.give_to_server(self.pem)

    @property
    def pem(self) -> Path:
        return self.folder / "server.pem"


class SecurePostgres(SecureFiles, LocalPostgres):
    def command(self) -> list[str]:
        files = ["-c", f"ssl_cert_file={self.pem}", "-c", f"ssl_key_file={self.pem}"]
        return [*super().command(), "-c", "ssl=on", *files]


class SecureMariaDB(SecureFiles, LocalMariaDB):
    def command(self) -> list[str]:
        plain = [word for word in super().command() if word != "--skip-ssl"]
        return [*plain, f"--ssl-cert={self.pem}", f"--ssl-key={self.pem}"]


@pytest.fixture(scope="module", params=[SecurePostgres, SecureMariaDB], ids=lambda kind: kind.__name__)
def secure(request: pytest.FixtureRequest) -> Iterator[SecureFiles]:
    with request.param() as server:
        yield server


def believe(server: SecureFiles, authority: Path, host: str = "127.0.0.1") -> str:
    name = "sslmode=verify-full&sslrootcert" if server.scheme == "postgresql" else "ssl_ca"
    return f"{server.url.replace('127.0.0.1', host)}?{name}={authority}"


def test_a_server_that_proves_itself_is_used_over_tls(secure: SecureFiles) -> None:
    place = open_loss_ledger(believe(secure, secure.access.ca_pem_path)).place
    question = (
        "SELECT 'Ssl_cipher', cipher FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
        if secure.scheme == "postgresql"
        else "SHOW STATUS LIKE 'Ssl_cipher'"
    )
    ((_, cipher),) = Database(place).run(lambda session: session.execute(question))
    assert cipher


def test_a_server_that_another_authority_vouches_for_is_not_believed(secure: SecureFiles) -> None:
    with pytest.raises(OffsetStoreError, match=r"DATABASE_UNREACHABLE.*certificate"):
        open_loss_ledger(believe(secure, secure.access.other_ca_pem_path))


def test_a_server_under_another_name_is_not_believed(secure: SecureFiles) -> None:
    with pytest.raises(OffsetStoreError, match=r"DATABASE_UNREACHABLE.*certificate"):
        open_loss_ledger(believe(secure, secure.access.ca_pem_path, host="localhost"))


def test_a_server_without_tls_is_refused_when_tls_is_asked_for(
    postgres: LocalPostgres, mariadb: LocalMariaDB, secure: SecureFiles
) -> None:
    plain: LocalDatabase = postgres if secure.scheme == "postgresql" else mariadb
    setting = believe(secure, secure.access.ca_pem_path).partition("?")[2]
    with pytest.raises(OffsetStoreError, match="DATABASE_UNREACHABLE"):
        open_loss_ledger(f"{plain.url}?{setting}")


def test_an_authority_file_that_is_missing_is_told(secure: SecureFiles, tmp_path: Path) -> None:
    address = believe(secure, tmp_path / "no.pem")
    assert parse_place(address)
    with pytest.raises(OffsetStoreError, match="DATABASE_UNREACHABLE") as caught:
        open_loss_ledger(address)
    assert "ssl settings" in caught.value.hint
