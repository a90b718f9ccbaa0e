"""The rendered chart starts the image's program: two nodes, here on loopback, serve a group.

A pod is an address of 127.0.0.0/8, which Linux has all of: both pods listen on the same ports.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from keylane.embedded import EmbeddedKafka
from keylane.embedded.child import GuardedChild
from keylane.embedded.ports import find_free_port
from tests.chart.rendering import (
    Object,
    Renderer,
    configuration,
    find,
    node_container,
    node_pod,
)
from tests.integration.harness import Group, produce
from tests.integration.keylane_process import BROKER_PORTS, READY_TIMEOUT_S
from tests.integration.nodes import NODE_ID_STEP
from tests.integration.share_wire import wait_until

pytestmark = [
    pytest.mark.timeout(1200),  # Helm and kernels may have to be built
    pytest.mark.skipif(sys.platform != "linux", reason="a pod is an address of 127.0.0.0/8"),
]
REPLICAS: Final = 2
ROOT: Final = Path(__file__).resolve().parents[2]
KEYS: Final = [f"key-{number}" for number in range(40)]
ROUNDS: Final = 5


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Contents of an image, by the script of `docker build`, and the tests' libraries."""
    home = tmp_path_factory.mktemp("image") / "keylane"
    done = subprocess.run(
        [str(ROOT / "tools" / "image_build.sh"), str(home)],
        env={
            **{key: value for key, value in os.environ.items() if not key.startswith("NUMBA_")},
            "PYTHON": sys.executable,
            "KEYLANE_LIBRARIES": str(Path(numpy.__file__).parents[1]),
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return home


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Brokers of this module's own: all nodes in front of the same ones find each other."""
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka")) as running:
        yield running.bootstrap


@pytest.fixture(scope="module")
def admin(kafka: str) -> AdminClient:
    """An admin client that talks to these brokers directly."""
    return AdminClient({"bootstrap.servers": kafka})


class Kubelet:
    """Does with one pod what a kubelet does: files of volumes, variables, start, stop."""

    def __init__(self, objects: list[Object], folder: Path, index: int, ports: Object) -> None:
        self.objects, self._folder = objects, folder
        self._index, self.ip = index, f"127.0.0.{1 + index}"
        self.bootstrap = f"{self.ip}:{ports['kafka']}"
        self.control = f"{self.ip}:{ports['control']}"
        self.container = node_container(objects)
        self.child: GuardedChild | None = None

    def write_volumes(self) -> None:
        """ConfigMap and Secret as files, below the folder in place of the root."""
        text = configuration(self.objects).replace("/etc/", f"{self._folder}/etc/")
        text = text.replace("0.0.0.0", self.ip)  # noqa: S104 - of a pod, not of this machine
        self._write("etc/keylane/keylane.yaml", text)
        for secret, place in (("control", "keylane-control"), ("nodes", "keylane-nodes")):
            made = find(self.objects, "Secret", f"keylane-{secret}")
            for name, value in made["data"].items():
                self._write(f"etc/{place}/{name}", base64.b64decode(value).decode())

    def environment(self, home: Path) -> dict[str, str]:
        """The container's variables; `$(NAME)` is replaced by those before it."""
        fields = {
            "metadata.name": f"keylane-{self._index}",
            "metadata.labels['apps.kubernetes.io/pod-index']": str(self._index),
            "status.podIP": self.ip,
            "status.hostIP": self.ip,
        }
        variables = {"KEYLANE_HOME": str(home), "TMPDIR": str(self._folder)}
        for entry in self.container["env"]:
            source = entry.get("valueFrom", {})
            value = entry.get("value")
            if "fieldRef" in source:
                value = fields[source["fieldRef"]["fieldPath"]]
            elif "resourceFieldRef" in source:
                value = self.container["resources"]["requests"]["cpu"]
            replaced = re.sub(r"\$\((\w+)\)", lambda m: variables[m[1]], value or "")
            # There is no DNS of a cluster here.
            is_own_name = replaced.startswith(f"{fields['metadata.name']}.")
            variables[entry["name"]] = self.ip if is_own_name else replaced
        return variables

    def command(self, home: Path) -> list[str]:
        """Entry point of the image, arguments of the container."""
        arguments = [
            argument.replace("/etc/", f"{self._folder}/etc/") for argument in self.container["args"]
        ]
        return [str(home / "bin" / "keylane"), *arguments]

    def probe(self, name: str) -> tuple[int, str]:
        """Return the answer to a probe."""
        asked = self.container[name]["httpGet"]
        return ask(f"{asked['scheme'].lower()}://{self.control}{asked['path']}")

    def metrics(self) -> str:
        """Return the metrics, as Prometheus gets them."""
        status, text = ask(f"http://{self.control}/metrics", self.token("read-token"))
        assert status == 200
        return text

    def start(self, home: Path) -> None:
        """Run the container until it is ready; a pod that ran before is replaced."""
        self.write_volumes()
        self.child = GuardedChild(
            self.command(home),
            log_path=self._folder / "keylane.log",
            ready_text="keylane ready bootstrap=",
            environment=self.environment(home),
            grace_s=60,
        )
        self.child.launch()
        self.child.await_ready(time.monotonic() + READY_TIMEOUT_S)

    def stop(self) -> int | None:
        """SIGTERM, and wait; its exit code."""
        return self.child.stop() if self.child is not None else None

    def token(self, name: str) -> str:
        """A token of the Secret."""
        return (self._folder / "etc" / "keylane-control" / name).read_text()

    def _write(self, path: str, text: str) -> None:
        full = self._folder / path
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_text(text)


def read_as_pod(bootstrap: str, pod: dict[str, str], topic: str, count_max: int) -> list[str]:
    """Read up to the end as a stock consumer with a pod's variables, and commit."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": pod["KEYLANE_CLIENT_ID"],
            "group.id": f"g-{topic}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    places = [place.rpartition(":") for place in pod["KEYLANE_PARTITIONS"].split(",")]
    values: list[str] = []
    try:
        consumer.assign([TopicPartition(name, int(number)) for name, _, number in places])
        while len(values) <= count_max:
            message = consumer.poll(60)
            assert message is not None
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                break
            assert error is None, error
            values.append((message.value() or b"").decode())
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return values


def ask(url: str, token: str | None = None) -> tuple[int, str]:
    """Status and text of a GET."""
    request = urllib.request.Request(url)  # noqa: S310 - http alone is asked
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - same
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture
def pods(kafka: str, image: Path, tmp_path: Path) -> Iterator[list[Kubelet]]:
    """All nodes as the chart wants them, running."""
    ports = {"kafka": find_free_port(in_a_row=BROKER_PORTS), "control": find_free_port()}
    values = {
        "replicas": REPLICAS,
        "config": {
            "bootstrap": kafka,
            "lanes": [{"topic": "lanes4-*", "lanes": 4}],
            "accept_range_fetch": ["ranges-*"],
            "node_session_timeout_ms": 6000,
        },
        "ports": ports,
        "brokers": {"ids": [1, 2, 3]},
        "nodes": {"advertise": "$(POD_IP)"},
    }
    objects = Renderer().template(values)
    found = [
        Kubelet(objects, tmp_path / str(index), index, ports)
        for index in range(find(objects, "StatefulSet")["spec"]["replicas"])
    ]
    try:
        for pod in found:
            pod.start(image)
        yield found
    finally:
        for pod in found:
            pod.stop()


def is_known_to_all(pods: list[Kubelet]) -> bool:
    """Return whether all nodes have the assignments of the first one, which they follow."""
    found = [ask(f"http://{pod.control}/assignments", pod.token("token")) for pod in pods]
    if any(status != 200 for status, _ in found):
        return False
    first, *others = (json.loads(text) for _, text in found)
    return all(other == first for other in others)


def bootstrap_of(pods: list[Kubelet]) -> str:
    """Return the addresses of all nodes, as clients have them."""
    return ",".join(pod.bootstrap for pod in pods)


def test_the_rendered_chart_serves_a_group(pods, image, kafka, topic, tmp_path) -> None:
    """Image, configuration, tokens and probes fit: four members share lanes of two nodes."""
    name = topic("lanes4", partitions=4)
    lag = f'keylane_group_stable_lag{{group="g-{name}",topic="{name}"}} 0.0'

    def settled() -> list[dict[str, str]]:
        """Return what nodes count, once nothing is behind.

        A stable offset may follow the last commit with a heartbeat.
        A node that renews its agreement with the others serves nothing for a moment.
        """
        texts = [pod.metrics() for pod in pods]
        counted = [dict(re.findall(r"^(keylane_\w+) (\S+)$", text, re.MULTILINE)) for text in texts]
        is_served = all(float(one["keylane_node_partitions_owned"]) > 0 for one in counted)
        return counted if is_served and any(lag in text for text in texts) else []

    with Group(bootstrap_of(pods), name, f"g-{name}") as group:
        group.add("confluent", 4)
        group.wait_for_lanes(16, timeout_s=120)
        values = produce(kafka, name, KEYS, ROUNDS)
        group.wait_for_values(values, timeout_s=120)
        group.wait_for_commits()
        counted = wait_until(settled, "metrics of nodes that serve, and of a group without lag")
    brokers = AdminClient({"bootstrap.servers": pods[1].bootstrap}).list_topics(name).brokers

    assert {(broker.id, broker.host) for broker in brokers.values()} == {
        (index * NODE_ID_STEP + 1, pod.ip) for index, pod in enumerate(pods)
    }
    assert group.seen.values().total() == len(values)
    group.seen.assert_keys_in_order()
    for metric in ("rebalance_seconds_count", "journal_appends_total", "kernel_seconds_total"):
        assert sum(float(one[f"keylane_{metric}"]) for one in counted) > 0
    assert sum(float(one["keylane_lanes"]) for one in counted) >= 16
    assert [float(one["keylane_node_members"]) for one in counted] == [REPLICAS] * REPLICAS
    assert all(float(one["keylane_node_partitions_unserved"]) == 0 for one in counted)
    baked = {path.parts[-2:] for path in (image / "kernels").rglob("*.o")}
    assert baked
    for index, pod in enumerate(pods):
        assert pod.probe("livenessProbe") == (200, "ok\n")
        assert pod.probe("readinessProbe") == (200, "ok\n")
        assert ask(f"http://{pod.control}/metrics")[0] == 401
        used = {path.parts[-2:] for path in tmp_path.glob(f"{index}/keylane-kernels-*/**/*.o")}
        assert used == baked, "kernels were compiled again at start"
        assert pod.stop() == 0


def test_a_pod_checks_before_it_starts(image, kafka, topic, tmp_path) -> None:
    """The init container ends well with brokers, and with 1 and a line about them without."""
    name = topic("lanes4", partitions=2)
    ports = {"kafka": find_free_port(in_a_row=BROKER_PORTS), "control": find_free_port()}
    ended: list[Any] = []

    for bootstrap in (kafka, f"127.0.0.1:{find_free_port()}"):
        values = {
            "config": {"bootstrap": bootstrap, "lanes": {name: 4}},
            "ports": ports,
            "brokers": {"ids": [1, 2, 3]},
            "nodes": {"advertise": "$(POD_IP)"},
            "check": {"beforeStart": True},
        }
        pod = Kubelet(Renderer().template(values), tmp_path / str(len(ended)), 0, ports)
        (pod.container,) = node_pod(pod.objects)["spec"]["initContainers"]
        pod.write_volumes()
        environment = {**os.environ, **pod.environment(image)}
        ended.append(
            subprocess.run(
                pod.command(image),
                env=environment,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        )

    (well, ill) = ended
    assert (well.returncode, ill.returncode) == (0, 1), (well.stdout, ill.stderr)
    assert name in well.stdout
    assert "no broker can be reached" in ill.stdout


@pytest.mark.long
def test_a_roll_out_stops_no_consumption(pods, image, kafka, topic) -> None:
    """Each pod is replaced in turn, the last first, as a StatefulSet does; the group goes on."""
    name = topic("lanes4", partitions=4)

    with Group(bootstrap_of(pods), name, f"g-{name}", session_timeout_ms=10_000) as group:
        group.add("confluent", 4)
        group.wait_for_lanes(16, timeout_s=120)
        values = produce(kafka, name, KEYS, ROUNDS)
        group.wait_for_values(values, timeout_s=120)
        for turn, pod in enumerate(reversed(pods), 1):
            assert pod.stop() == 0
            values += produce(kafka, name, KEYS, ROUNDS, first=turn * ROUNDS)
            group.wait_for_values(values, timeout_s=120)
            pod.start(image)
        group.wait_for_commits(timeout_s=60)

    assert set(group.seen.values()) == set(values)
    group.seen.assert_nothing_committed_again()


def test_pods_read_their_ranges_and_are_replaced(pods, image, kafka, topic) -> None:
    """The job calls one node; three pods read a partition disjointly, a new one goes on."""
    name = topic("ranges", partitions=1)
    values = produce(kafka, name, KEYS, ROUNDS)
    standalone = {"members": 3, "topics": [{"name": name, "partitions": 1}]}
    objects = Renderer().template({"config": {"bootstrap": kafka}, "standalone": standalone})
    job = find(objects, "Job")["spec"]["template"]["spec"]["containers"][0]
    members = [
        find(objects, "ConfigMap", f"keylane-member-{number}")["data"] for number in range(3)
    ]
    command = [str(image / "bin" / "keylane"), *job["args"][:-1], f"http://{pods[0].control}"]
    variables = pods[0].environment(image) | {"KEYLANE_CONTROL_TOKEN": pods[0].token("token")}

    subprocess.run(command, env={**os.environ, **variables}, check=True, timeout=120)
    wait_until(lambda: is_known_to_all(pods), "the assignments at each node")
    bootstrap = bootstrap_of(pods)
    first = [read_as_pod(bootstrap, member, name, len(values)) for member in members[:2]]
    produce(kafka, name, KEYS, 1, first=ROUNDS)
    again = read_as_pod(bootstrap, members[0], name, len(values))
    third = read_as_pod(bootstrap, members[2], name, len(values))

    seen = [value for part in (*first, again, third) for value in part]
    later = {f"{key}:{ROUNDS}" for key in KEYS}
    assert all(first) and third
    assert len(seen) == len(set(seen)), "a range went to two pods, or came again"
    assert set(again) <= later, "what was committed came again"
    assert set(values) <= set(seen)


@pytest.mark.long
def test_helm_test_passes_and_fails(pods) -> None:
    """The pod of `helm test` ends well beside nodes that serve, and not when one has stopped."""
    rendered = Renderer().template({"config": {"bootstrap": "kafka:9092"}})
    script = find(rendered, "Pod", "keylane-test")["spec"]["containers"][0]["command"][2]
    environment = {
        **os.environ,
        "TIMEOUT_S": "0",
        "READY_URLS": "\n".join(f"http://{pod.control}/readyz" for pod in pods),
        "BOOTSTRAP": bootstrap_of(pods),
    }

    def run() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", script]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    well = run()
    pods[1].stop()
    ill = run()

    assert (well.returncode, ill.returncode) == (0, 1)
    assert well.stdout.count("accepts connections") == len(pods)
    assert f"not ready: http://{pods[1].control}" in ill.stderr
