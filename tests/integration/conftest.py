"""A real Kafka for the integration tests: one broker per session, own topics for each test."""

from __future__ import annotations

import gc
import itertools
import re
import subprocess
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from keylane.embedded import EmbeddedKafka, run_java_tool, start_java_tool
from tests.fast_java import start_java_fast

from .keylane_process import KeylaneProcess
from .made_topics import make_topic

if TYPE_CHECKING:
    from .secured_stage import Stage
    from .share_sides import Sides
    from .share_stage import Scene, ShareStage

HERE = Path(__file__).parent
KEPT = {"log.retention.ms": "-1"}
"""A broker looks for what is too old 30 s after its start; some tests write records of 1970."""
SHARE = {
    "group.share.min.heartbeat.interval.ms": "200",
    "group.share.heartbeat.interval.ms": "200",
    "group.share.min.session.timeout.ms": "10000",
    "group.share.session.timeout.ms": "10000",
    "group.share.min.assignment.interval.ms": "0",
    "group.share.assignment.interval.ms": "0",
    "group.share.min.record.lock.duration.ms": "1000",
}
"""Members of a share group get partitions with the next heartbeat, by default after 5 s, lose them
10 s after their last one (45 s), and may have locks of a second; the default lock stays."""


FIRST = frozenset(
    f"test_{name}.py"
    for name in (
        "secured_page", "offset_retention", "exactly_once", "cut_logs", "key_range_assignor",
        "lone_nodes", "node_strangers", "demo", "cluster", "streams",
    )
)  # fmt: skip
"""Modules that take minutes run first, so that at the end no worker waits for another."""


def pytest_configure(config: pytest.Config) -> None:
    """Before workers begin, which inherit it."""
    if not hasattr(config, "workerinput"):
        start_java_fast()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder, so that `-m 'not integration'` leaves all of them out.

    Stock clients leave sockets open when a broker refuses them (aiokafka). The warning comes
    whenever the garbage collector does, in whatever test that is; keylane runs in processes of
    its own here, whose warnings this does not touch.
    """
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.integration)
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
    items.sort(key=lambda item: item.path.name not in FIRST)


@pytest.fixture(scope="module", autouse=True)
def collected() -> Iterator[None]:
    """Collect what clients of a module left; a module of another folder may come next."""
    yield
    collect_silently()


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure() -> None:
    """Collect before pytest does, which ends with an error if a socket was left."""
    collect_silently()


def collect_silently() -> None:
    """Collect sockets that stock clients left, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


class TopicFactory(Protocol):
    """Creates a topic under a new name and returns the name."""

    def __call__(
        self, label: str = ..., *, partitions: int = ..., config: dict[str, str] | None = ...
    ) -> str:
        """`label` starts the name; `config` holds topic configs such as `cleanup.policy`."""
        ...


IMPATIENT_TOOLS = frozenset({"kafka-consumer-groups", "kafka-share-groups"})
PATIENCE_ARGS = ("--timeout", "60000")
"""They give a request up after 5 s, by default, in which the start of a JVM counts."""


class JavaTools:
    """Kafka's own command line tools; those that were started are ended with the test."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []

    def run(
        self, name: str, *args: str | Path, stdin: str = "", timeout_s: float = 300.0
    ) -> subprocess.CompletedProcess[str]:
        """Run `name` ("kafka-topics", or a class) to its end; fails the test if that fails."""
        patience = PATIENCE_ARGS if name in IMPATIENT_TOOLS else ()
        return run_java_tool(name, *args, *patience, stdin=stdin, timeout_s=timeout_s)

    def start(self, name: str, *args: str | Path) -> subprocess.Popen[str]:
        """Start `name`; its stdout is a pipe of lines."""
        process = start_java_tool(name, *args)
        self._started.append(process)
        return process

    def close(self) -> None:
        """End what still runs."""
        for process in self._started:
            process.kill()
            with process:  # closes the pipes, waits
                pass


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """The session's broker itself, for its log and its files. Never stop or kill this one."""
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka"), properties={**KEPT, **SHARE}) as running:
        yield running


@pytest.fixture(scope="session")
def kafka(broker: EmbeddedKafka) -> str:
    """Bootstrap address of the session's broker."""
    return broker.bootstrap


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[EmbeddedKafka]:
    """A running broker that belongs to one test, which may kill it and start it again."""
    with EmbeddedKafka(tmp_path / "kafka", properties={**KEPT, **SHARE}) as running:
        yield running


@pytest.fixture(scope="session")
def admin(kafka: str) -> AdminClient:
    """An admin client that talks to the broker directly."""
    return AdminClient({"bootstrap.servers": kafka})


@pytest.fixture
def topic(admin: AdminClient, request: pytest.FixtureRequest) -> TopicFactory:
    """Factory of topics; names start with the test's, so that a broker log can be read."""
    return make_topic_factory(admin, request.node.name)


@pytest.fixture
def java() -> Iterator[JavaTools]:
    """Kafka's own Java tools."""
    tools = JavaTools()
    yield tools
    tools.close()


class KeylaneFactory(Protocol):
    """Starts a proxy in front of `kafka` (or `bootstrap`) and waits until it is ready."""

    def __call__(
        self,
        *lanes: str,
        bootstrap: str | None = ...,
        args: Sequence[str] = ...,
        workers: int = ...,
        environment: Mapping[str, str] | None = ...,
    ) -> KeylaneProcess:
        """`lanes` as on the command line (`orders*=4`); `args` are further arguments."""
        ...


@pytest.fixture
def keylane(kafka: str, tmp_path: Path) -> Iterator[KeylaneFactory]:
    """Factory of proxies that belong to one test; they are ended with it.

    In front of the session's broker there are others, with topics and groups of their own.
    """
    started: list[KeylaneProcess] = []

    def start(
        *lanes: str,
        bootstrap: str | None = None,
        args: Sequence[str] = (),
        workers: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> KeylaneProcess:
        beside = {"KEYLANE_BESIDE_OTHERS": "true"} if bootstrap is None else {}
        proxy = KeylaneProcess(
            bootstrap or kafka,
            lanes,
            log_path=tmp_path / f"keylane-{len(started)}.log",
            args=args,
            workers=workers,
            environment={**beside, **(environment or {})},
        )
        started.append(proxy)
        return proxy.start()

    yield start
    for proxy in started:
        proxy.stop()


@pytest.fixture(scope="session")
def shared_keylane(
    kafka: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KeylaneProcess]:
    """The session's proxy: topics whose label is `lanes1`, `lanes4` or `lanes16` have lanes.

    `topic("lanes4")` gives a topic of four lanes per partition, `topic()` a plain one. For
    tests that neither kill the proxy nor look at its counters.
    """
    rules = [f"lanes{count}-*={count}" for count in (1, 4, 16)]
    log_path = tmp_path_factory.mktemp("keylane") / "keylane.log"
    proxy = KeylaneProcess(kafka, rules, log_path=log_path).start()
    yield proxy
    proxy.stop()


@pytest.fixture
def share_sides(kafka: str, shared_keylane: KeylaneProcess, topic: TopicFactory) -> Sides:
    """The session's broker and keylane in front of it, for the same story of a share group."""
    from .share_sides import Sides

    return Sides(kafka, shared_keylane.bootstrap, topic)


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A secured broker and keylane, for all security tests; nothing secret leaves them."""
    from .secured_stage import Stage

    built = Stage(tmp_path_factory.mktemp("secured"))
    try:
        built.start()
        yield built
        leaks = built.leaks()
    finally:
        built.stop()
    assert not leaks


@pytest.fixture(scope="session")
def share_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShareStage]:
    """A broker and keylane for share groups in key order; a test may restart either."""
    from .share_stage import ShareStage

    built = ShareStage(tmp_path_factory.mktemp("share"))
    try:
        built.start()
        yield built
    finally:
        built.stop()


class SceneFactory(Protocol):
    """Makes a topic and a share group in key order, in `share_stage`."""

    def __call__(
        self,
        rule: str = ...,
        *,
        partitions: int = ...,
        config: dict[str, str] | None = ...,
        **group_configs: str | int,
    ) -> Scene:
        """`rule` is the start of a group's name in `share_stage.RULES`."""
        ...


@pytest.fixture
def scene(share_stage: ShareStage) -> Iterator[SceneFactory]:
    """Factory of scenes; their members' connections end with the test."""
    made: list[Scene] = []

    def make(rule: str = "order", **options: Any) -> Scene:
        made.append(share_stage.scene(rule, **options))
        return made[-1]

    yield make
    for each in made:
        each.end()


_topic_numbers = itertools.count(1)


def make_topic_factory(admin: AdminClient, test_name: str) -> TopicFactory:
    """A factory that creates topics through `admin`, for tests with a broker of their own."""
    stem = re.sub(r"[^a-zA-Z0-9]+", "-", test_name).strip("-")[:60]

    def create(
        label: str = "topic", *, partitions: int = 1, config: dict[str, str] | None = None
    ) -> str:
        name = f"{label}-{next(_topic_numbers)}-{stem}"
        wanted = NewTopic(name, partitions, 1, config=config or {})
        make_topic(admin, wanted)
        return name

    return create
