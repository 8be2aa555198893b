"""Real servers for tests: Kafka (one broker, three, with logins), Spark, PostgreSQL, MariaDB, ZooKeeper.

Each server starts when the first test asks for it, is shared by the session and ends with it (`kafka3` and
`proxied_kafka`: with the test file). A test that uses one of these fixtures gets the marker of its family
(`kafka`, `spark`, `sql`, `zookeeper`) automatically, so `-m "not kafka"` just works. For quick runs during
development, set PENSTOCK_TEST_BOOTSTRAP to the address of a running broker, and none is started.
"""

from __future__ import annotations

import itertools
import os
import secrets
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from penstock.cluster.processes.python_launcher import make_launcher
from tests.support.quick_jvm import use_quick_jvms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.cluster import LocalKafka, LocalMariaDB, LocalPostgres, LocalZooKeeper
    from penstock.testing.proxy import FaultProxy
    from tests.support.driver_jvm import DriverJvm
    from tests.support.servers.spark_standalone import LocalSpark

#: Settings that make a test broker do within seconds what it normally does after minutes.
IMPATIENT = {
    "log.retention.check.interval.ms": 1000,
    "log.initial.task.delay.ms": 1000,
    "log.cleaner.backoff.ms": 500,
}

_FAMILIES = {
    "kafka": {"kafka", "kafka3", "secure_kafka", "proxied_kafka", "topic"},
    "spark": {"spark", "spark_standalone", "driver_jvm"},
    "sql": {"postgres", "mariadb"},
    "zookeeper": {"zookeeper"},
}


def pytest_configure() -> None:
    use_quick_jvms()
    # Programs that tests start would otherwise run their workers with the first python3 on the path. For all
    # tests, not only those with a session, because the order of tests must not decide it.
    os.environ["PYSPARK_PYTHON"], os.environ["PYSPARK_DRIVER_PYTHON"] = make_launcher(), sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # A shell that starts tests in the background makes them ignore Ctrl-C, and so does everything they start.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        used = set(getattr(item, "fixturenames", ()))
        for marker, fixtures in _FAMILIES.items():
            if used & fixtures:
                item.add_marker(marker)


@pytest.fixture(scope="session")
def accesslog_data() -> Path:
    """Return the folder of real, labelled logs, which are not ours to ship; skip the test without them."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("PENSTOCK_ACCESSLOG_DATA", beside))
    if not (folder / "labels").is_dir():
        pytest.skip(f"../shared/data is not here ({folder})")
    return folder


@pytest.fixture(scope="session")
def accesslog_kernels() -> None:
    """Compile the kernels here, so that workers do not each compile them while a test waits."""
    from tests.support.accesslog.accesslog_traffic import warm_kernels

    warm_kernels()


@pytest.fixture(scope="session")
def kafka() -> Iterator[LocalKafka | SimpleNamespace]:
    """Start one real broker; `.bootstrap` is its address. Shared: use your own topics, do not stop it."""
    given = os.environ.get("PENSTOCK_TEST_BOOTSTRAP")
    if given:
        yield SimpleNamespace(bootstrap=given)
        return
    from penstock.cluster import LocalKafka

    with LocalKafka(broker_settings=IMPATIENT) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def kafka3() -> Iterator[LocalKafka]:
    """Start three brokers for one test file, whose tests may stop and kill them.

    A test that stops a broker starts it again before it ends.
    """
    from penstock.cluster import LocalKafka

    with LocalKafka(3, broker_settings=IMPATIENT) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def secure_kafka() -> Iterator[LocalKafka]:
    """Start one broker with TLS and logins; see `.secure`. Its plain listener may do everything."""
    from penstock.cluster import LocalKafka

    with LocalKafka(secure=True, broker_settings=IMPATIENT) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def proxied_kafka() -> Iterator[tuple[LocalKafka, FaultProxy]]:
    """Start one broker that clients reach only through a fault proxy, which understands Kafka's frames."""
    from penstock.cluster import LocalKafka
    from penstock.testing.proxy import FaultProxy

    with (
        FaultProxy(kafka=True) as proxy,
        LocalKafka(advertise={0: proxy.address}, broker_settings=IMPATIENT) as cluster,
    ):
        proxy.lead_to(("127.0.0.1", cluster.brokers[0].port))
        yield cluster, proxy


class MakeTopic(Protocol):
    def __call__(
        self, partitions: int = 1, *, factor: int = 1, on: Any = None, name: str = "t", **config: object
    ) -> str: ...


_numbers = itertools.count(1)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> MakeTopic:
    """Return a function that makes a new topic with a unique name and returns that name.

    Examples: `topic(3)`, `topic(on=kafka3, factor=2)`.

    Topic settings are given with underscores: `topic(cleanup_policy="compact")`.
    """

    def make(
        partitions: int = 1, *, factor: int = 1, on: Any = None, name: str = "t", **config: object
    ) -> str:
        from confluent_kafka.admin import AdminClient, NewTopic

        cluster = request.getfixturevalue("kafka") if on is None else on
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        unique = f"{name}-{next(_numbers)}-{secrets.token_hex(4)}"
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        # Many tests write records with old times, which the broker would otherwise delete within a second.
        settings.setdefault("retention.ms", "-1")
        wanted = NewTopic(unique, num_partitions=partitions, replication_factor=factor, config=settings)
        admin.create_topics([wanted])[unique].result(timeout=30)
        _wait_for_leaders(admin, unique, partitions)
        return unique

    return make


def _wait_for_leaders(admin: Any, name: str, partitions: int) -> None:
    import time

    deadline = time.monotonic() + 30
    while True:
        found = admin.list_topics(topic=name, timeout=10).topics[name].partitions.values()
        if len(found) == partitions and all(each.leader >= 0 for each in found):
            return
        assert time.monotonic() < deadline, f"{name} has no leaders"
        time.sleep(0.05)


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """Start a session with two cores. Parity tests also get Spark's JVM connector, needed at the start."""
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[2]")
        .appName("penstock-tests")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
    )
    parity = Path(__file__).parent / "parity"
    if any(parity in item.path.parents for item in request.session.items):
        from penstock.cluster.downloads.jvm_connector import fetch_connector

        builder = builder.config("spark.jars", ",".join(map(str, fetch_connector())))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    gateway: Any = session.sparkContext._gateway
    session.stop()
    # Spark keeps its JVM until the interpreter ends. In these tests nothing may outlive the session.
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout=60)


@pytest.fixture(scope="session")
def spark_standalone() -> Iterator[LocalSpark]:
    """Start a Spark master and two workers; `.master_url` is their address.

    Run your driver as a process of its own: the Python process of a test session can hold only one
    SparkContext, and `spark` is it.
    """
    from tests.support.servers.spark_standalone import LocalSpark

    with LocalSpark() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def driver_jvm() -> Iterator[DriverJvm]:
    """Start a JVM for driver programs, which run one after the other; see `tests.support.driver_jvm`."""
    from tests.support.driver_jvm import DriverJvm

    with DriverJvm() as jvm:
        yield jvm


@pytest.fixture(scope="session")
def postgres() -> Iterator[LocalPostgres]:
    """Start a real PostgreSQL; `.url` is its address. Shared: make your own database, do not stop it."""
    from penstock.cluster import LocalPostgres

    with LocalPostgres() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[LocalMariaDB]:
    """Start a real MariaDB; `.url` is its address. Shared: make your own database, do not stop it."""
    from penstock.cluster import LocalMariaDB

    with LocalMariaDB() as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[LocalZooKeeper]:
    """Start a real ZooKeeper; `.address` is its address. Shared: use your own folder, do not stop it."""
    from penstock.cluster import LocalZooKeeper

    with LocalZooKeeper() as server:
        yield server
