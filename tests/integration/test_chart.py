"""What the chart renders starts what the image holds, here on loopback, and serves a group."""

from __future__ import annotations

import base64
import os
import re
import signal
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

from keylane.embedded.child import GuardedChild
from keylane.embedded.ports import find_free_port
from tests.chart.rendering import Object, Renderer, configuration, find, node_container
from tests.integration.harness import Group, produce
from tests.integration.keylane_process import BROKER_PORTS, READY_TIMEOUT_S, _find_port_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]  # Helm and kernels may have to be built
ROOT: Final = Path(__file__).resolve().parents[2]
KEYS: Final = [f"key-{number}" for number in range(40)]
ROUNDS: Final = 5


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `docker build` would put into an image, by the same script; the tests' libraries."""
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


class Kubelet:
    """Does with one pod what a kubelet does: files of volumes, variables, start, stop."""

    def __init__(self, objects: list[Object], folder: Path) -> None:
        self._objects, self._folder = objects, folder
        self.container = node_container(objects)

    def write_volumes(self) -> None:
        """ConfigMap and Secret as files, below the folder in place of the root."""
        text = configuration(self._objects).replace("/etc/", f"{self._folder}/etc/")
        text = text.replace("0.0.0.0", "127.0.0.1")  # noqa: S104 - of a pod, not of this machine
        self._write("etc/keylane/keylane.yaml", text)
        for name, value in find(self._objects, "Secret")["data"].items():
            self._write(f"etc/keylane-control/{name}", base64.b64decode(value).decode())

    def environment(self, home: Path) -> dict[str, str]:
        """The container's variables; `$(NAME)` is replaced by those before it."""
        fields = {"metadata.name": "keylane-0", "status.podIP": "127.0.0.1"}
        variables = {"KEYLANE_HOME": str(home), "TMPDIR": str(self._folder)}
        for entry in self.container["env"]:
            source = entry.get("valueFrom", {})
            value = entry.get("value") or fields.get(source.get("fieldRef", {}).get("fieldPath"))
            if "resourceFieldRef" in source:
                value = self.container["resources"]["requests"]["cpu"]
            replaced = re.sub(r"\$\((\w+)\)", lambda m: variables[m[1]], value or "0")
            variables[entry["name"]] = replaced
        return variables

    def command(self, home: Path) -> list[str]:
        """Entry point of the image, arguments of the container."""
        arguments = [
            argument.replace("/etc/", f"{self._folder}/etc/") for argument in self.container["args"]
        ]
        return [str(home / "bin" / "keylane"), *arguments]

    def probe(self, name: str, control: str) -> str:
        """URL of a probe."""
        asked = self.container[name]["httpGet"]
        return f"{asked['scheme'].lower()}://{control}{asked['path']}"

    def token(self, name: str) -> str:
        """A token of the Secret."""
        return (self._folder / "etc" / "keylane-control" / name).read_text()

    def _write(self, path: str, text: str) -> None:
        full = self._folder / path
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_text(text)


def read_as_pod(bootstrap: str, pod: dict[str, str], topic: str, count_max: int) -> list[str]:
    """What a stock consumer with a pod's variables reads up to the end, and commits."""
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
def node(
    kafka: str, image: Path, tmp_path: Path
) -> Iterator[tuple[Kubelet, GuardedChild, dict[str, Any]]]:
    """A node as the chart wants it, running: its kubelet, its process, its ports."""
    port, control = _find_port_run(BROKER_PORTS), find_free_port()
    values = {
        "config": {
            "bootstrap": kafka,
            "lanes": [{"topic": "lanes4-*", "lanes": 4}],
            "accept_range_fetch": ["ranges-*"],
        },
        "ports": {"kafka": port, "control": control},
        "brokers": {"ids": [1, 2, 3]},
        "nodes": {"advertise": "$(POD_IP)"},
    }
    kubelet = Kubelet(Renderer().template(values), tmp_path)
    kubelet.write_volumes()
    child = GuardedChild(
        kubelet.command(image),
        log_path=tmp_path / "keylane.log",
        ready_text="keylane ready bootstrap=",
        environment=kubelet.environment(image),
        grace_s=60,
    )
    child.launch()
    child.await_ready(time.monotonic() + READY_TIMEOUT_S)
    yield kubelet, child, {"kafka": port, "control": control}
    child.stop()


def test_the_rendered_chart_serves_a_group(node, image, kafka, topic, tmp_path) -> None:
    """Image, configuration, tokens and probes fit: four members share lanes, /metrics tells so."""
    kubelet, child, ports = node
    control = f"127.0.0.1:{ports['control']}"
    name = topic("lanes4", partitions=2)

    with Group(f"127.0.0.1:{ports['kafka']}", name, f"g-{name}") as group:
        group.add("confluent", 4)
        group.wait_for_lanes(8, timeout_s=120)
        values = produce(kafka, name, KEYS, ROUNDS)
        group.wait_for_values(values, timeout_s=120)
        group.wait_for_commits()
    told = ask(f"http://{control}/metrics", kubelet.token("read-token"))

    assert group.seen.values().total() == len(values)
    group.seen.assert_keys_in_order()
    assert ask(kubelet.probe("livenessProbe", control)) == (200, "ok\n")
    assert ask(kubelet.probe("readinessProbe", control)) == (200, "ok\n")
    assert told[0] == 200
    assert f'keylane_group_stable_lag{{group="g-{name}",topic="{name}"}} 0.0' in told[1]
    counted = dict(re.findall(r"^(keylane_\w+) (\S+)$", told[1], re.MULTILINE))
    assert float(counted["keylane_rebalance_seconds_count"]) >= 4
    assert float(counted["keylane_journal_appends_total"]) > 0
    assert float(counted["keylane_kernel_seconds_total"]) > 0
    assert float(counted["keylane_lanes"]) >= 8
    baked = {path.parts[-2:] for path in (image / "kernels").rglob("*.o")}
    used = {path.parts[-2:] for path in tmp_path.glob("keylane-kernels-*/**/*.o")}
    assert baked and used == baked, "kernels were compiled again at start"
    assert ask(f"http://{control}/metrics")[0] == 401
    assert child.stop() == 0


def test_s004_51_pods_read_their_ranges_and_are_replaced(node, image, kafka, topic) -> None:
    """The job tells the node; three pods read a partition disjointly, a new one goes on."""
    kubelet, _, ports = node
    name = topic("ranges", partitions=1)
    values = produce(kafka, name, KEYS, ROUNDS)
    standalone = {"members": 3, "topics": [{"name": name, "partitions": 1}]}
    objects = Renderer().template({"config": {"bootstrap": kafka}, "standalone": standalone})
    job = find(objects, "Job")["spec"]["template"]["spec"]["containers"][0]
    pods = [find(objects, "ConfigMap", f"keylane-member-{number}")["data"] for number in range(3)]
    command = [str(image / "bin" / "keylane"), *job["args"][:-1], f"127.0.0.1:{ports['control']}"]
    variables = kubelet.environment(image) | {"KEYLANE_CONTROL_TOKEN": kubelet.token("token")}

    subprocess.run(command, env={**os.environ, **variables}, check=True, timeout=120)
    bootstrap = f"127.0.0.1:{ports['kafka']}"
    first = [read_as_pod(bootstrap, pod, name, len(values)) for pod in pods[:2]]
    produce(kafka, name, KEYS, 1, first=ROUNDS)
    again = read_as_pod(bootstrap, pods[0], name, len(values))
    third = read_as_pod(bootstrap, pods[2], name, len(values))

    seen = [value for part in (*first, again, third) for value in part]
    later = {f"{key}:{ROUNDS}" for key in KEYS}
    assert all(first) and third
    assert len(seen) == len(set(seen)), "a range went to two pods, or came again"
    assert set(again) <= later, "what was committed came again"
    assert set(values) <= set(seen)


def test_helm_test_passes_and_fails(node) -> None:
    """The pod of `helm test` ends well beside a node that serves, and not without one."""
    _, child, ports = node
    pod = find(Renderer().template({"config": {"bootstrap": "kafka:9092"}}), "Pod", "keylane-test")
    script = pod["spec"]["containers"][0]["command"][2]
    environment = {
        **os.environ,
        "TIMEOUT_S": "0",
        "READY_URL": f"http://127.0.0.1:{ports['control']}/readyz",
        "BOOTSTRAP": f"127.0.0.1:{ports['kafka']}",
    }

    def run() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", script]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    well = run()
    os.kill(child.pid, signal.SIGTERM)
    child.stop()
    ill = run()

    assert (well.returncode, ill.returncode) == (0, 1)
    assert "accepts connections" in well.stdout
    assert "not ready" in ill.stderr
