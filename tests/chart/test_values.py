"""values.yaml: effects of values, refusals and their texts; comments and schema are complete."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click
import pytest
import yaml

from keylane.cli.main import keylane as cli
from keylane.config.sources import load_config
from keylane.proxy.net.security.secret_file import read_secrets
from keylane.proxy.runtime.memory_plan import PARTS, plan_memory

from .rendering import (
    CHART,
    MINIMAL,
    Object,
    Renderer,
    RenderFailed,
    configuration,
    find,
    node_container,
    node_pod,
)

pytestmark = pytest.mark.timeout(1000)  # Helm may have to be built first
VALUES: Final = (CHART / "values.yaml").read_text(encoding="utf-8")
SCHEMA: Final = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
KEY: Final = re.compile(r"^( *)([A-Za-z]\w*):(.*)$")
FREE: Final = frozenset({"podSecurityContext", "securityContext", "labels", "behavior"})
"""Their content is Kubernetes' or the user's own."""


def with_values(**values: Any) -> dict[str, Any]:
    """The least values, and these."""
    return {**MINIMAL, **values}


SECRET_MOUNTS: Final = [{"name": "tls", "secretName": "tls", "mountPath": "/etc/keylane/tls"}]
SNI: Final[Mapping[str, Any]] = {
    "kind": "TLSRoute",
    "pattern": "n{node}-b{broker}.x",
    "bootstrap": "x",
    "parentRefs": [{"name": "gateway"}],
}


def with_sni(**values: Any) -> dict[str, Any]:
    """Names over a gateway, and these."""
    config = {"bootstrap": "kafka:9092", "tls_certificate": "/tls.pem"}
    return {"config": config, "nodes": {"serviceType": "ClusterIP"}, "sni": SNI, **values}


def with_control_tls(**values: Any) -> dict[str, Any]:
    """A control port with TLS and client certificates, and these."""
    tls = {"secret": "control", "clientCaSecret": "clients", "admins": ["CN=ops"], **values}
    return with_values(control={"tls": tls})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "config.bootstrap: your brokers"),
        (with_values(replicas=1001), r"replicas"),
        (with_values(replicas=2, nodes={"numbered": False}), "nodes.numbered: more than one"),
        (with_values(replicas=2, nodes={"firstNumber": 999}), "nodes.firstNumber: the last"),
        (with_values(autoscaling={"enabled": True, "maxReplicas": 1}), "autoscaling.minReplicas"),
        (with_values(replcas=1), r"replcas"),
        (with_values(config={"bootstrap": "kafka"}), r"bootstrap"),
        (with_values(config={"bootstrap": "k:1", "listen": "0.0.0.0:1"}), r"listen"),
        (
            with_values(config={"bootstrap": "k:1", "lanez": 1}),
            "at '/config': additional properties 'lanez' not allowed",
        ),
        (
            with_values(config={"bootstrap": "k:1", "lanes": [{"topic": "orders", "lane": 4}]}),
            "at '/config/lanes/0': additional properties 'lane' not allowed",
        ),
        (
            with_values(config={"bootstrap": "k:1", "lanes": {"orders": 0}}),
            "at '/config/lanes/orders': minimum: got 0, want 1",
        ),
        (
            with_values(config={"bootstrap": "k:1", "memory_max": "1 GiB"}),
            "at '/config/memory_max': got string, want",
        ),
        (with_values(prometheusRule={"runbookBase": "docs/operations.md"}), "runbookBase"),
        (with_values(nodes={"serviceType": "Ingress"}), r"serviceType"),
        (with_values(nodes={"serviceType": "LoadBalancer"}), "nodes.advertise: needed"),
        (
            with_values(nodes={"serviceType": "NodePort", "nodePorts": {"first": 32767}}),
            "nodes.nodePorts: 32767 to 32770 must lie in 30000-32767",
        ),
        (
            with_values(replicas=200, nodes={"serviceType": "NodePort"}),
            "nodes.nodePorts: 30900 to 34883 must lie in 30000-32767",
        ),
        (
            with_values(replicas=2, nodes={"serviceType": "NodePort", "nodePorts": {"step": 3}}),
            "nodes.nodePorts.step: with a broker 2 nodes need 4 ports each",
        ),
        (
            with_values(
                nodes={"serviceType": "NodePort"},
                bootstrapService={"type": "NodePort", "nodePort": 30901},
            ),
            "bootstrapService.nodePort: lies among the ports of nodes, 30900 to 30903",
        ),
        (with_sni(nodes={}), "sni.kind: routes lead to a Service per node"),
        (with_sni(config={"bootstrap": "k:1"}), "sni.kind: config.tls_certificate is needed"),
        (
            with_sni(nodes={"serviceType": "ClusterIP", "advertise": "x"}),
            "nodes.advertise: clients",
        ),
        (with_sni(sni={"kind": "TLSRoute"}), "sni.pattern, sni.bootstrap: needed"),
        (with_sni(sni={**SNI, "parentRefs": []}), "sni.parentRefs: the gateway"),
        (with_sni(sni={**SNI, "pattern": "{node}.x"}), r"pattern"),
        (with_sni(replicas=2, sni={**SNI, "pattern": "{broker}.x"}), "sni.pattern: needs {node}"),
        *(
            (with_values(config={"bootstrap": "k:1", key: 1}), key)
            for key in ("node", "workers", "advertise_port", "advertise_pattern")
        ),
        (with_values(brokers={"ids": []}), r"ids"),
        (with_values(brokers={"ids": [1, 1]}), r"ids"),
        (with_values(brokers={"ids": [64000]}), "brokers.ids: the highest needs port 83093"),
        (with_values(ports={"control": 19094}), "ports.control: 19094 lies among"),
        (with_values(standalone={"members": 2}), "standalone.topics: needed"),
        (with_control_tls(admins=[]), "control.tls.clientCaSecret: name the clients"),
        (with_control_tls(clientCaSecret=""), "control.tls.admins, readers: no client can show"),
        (with_control_tls(secret=""), "control.tls.clientCaSecret: the control port has no TLS"),
        (with_control_tls(readers=["prometheus"]), r"readers"),
        (with_values(config={"bootstrap": "k:1", "control_client_ca": "x"}), "control_client_ca"),
        (with_values(config={"bootstrap": "k:1", "node_secret_file": "x"}), "node_secret_file"),
        (with_values(image={"digest": "latest"}), r"digest"),
        (with_values(memory={"extraMi": -1}), r"extraMi"),
    ],
)
def test_what_cannot_work_is_refused(values: Mapping[str, Any], said: str, chart: Renderer) -> None:
    """A value out of its bounds ends the install with a line that names it."""
    with pytest.raises(RenderFailed, match=said):
        chart.template(values)


@pytest.mark.parametrize(
    ("nodes", "ports", "host"),
    [
        ({}, {}, "$(POD_NAME).keylane-headless.prod.svc.cluster.local"),
        ({"serviceType": "ClusterIP"}, {}, "keylane-node-$(POD_INDEX).prod.svc.cluster.local"),
        ({"serviceType": "NodePort"}, {}, "$(HOST_IP)"),
        ({"serviceType": "LoadBalancer", "advertise": "lb.example.com"}, {}, "lb.example.com"),
        ({"advertise": "$(POD_IP)"}, {}, "$(POD_IP)"),
    ],
)
def test_the_advertised_address_leads_to_the_node(
    nodes: Any, ports: Any, host: str, chart: Renderer
) -> None:
    """The advertised host fits the type of Service; its variables exist, and come before it."""
    container = node_container(chart.template(with_values(nodes=nodes, ports=ports)))

    variables = [entry["name"] for entry in container["env"]]
    advertised = next(e for e in container["env"] if e["name"] == "KEYLANE_ADVERTISE")
    assert advertised["value"] == host
    for name in re.findall(r"\$\((\w+)\)", host):
        assert variables.index(name) < variables.index("KEYLANE_ADVERTISE")


def test_the_node_service_is_the_advertised_one(chart: Renderer) -> None:
    """ClusterIP: the advertised name is the Service of that very pod."""
    objects = chart.template(with_values(nodes={"serviceType": "ClusterIP"}))

    service = find(objects, "Service", "keylane-node-0")

    assert service["spec"]["selector"]["statefulset.kubernetes.io/pod-name"] == "keylane-0"
    assert find(objects, "StatefulSet")["metadata"]["name"] == "keylane"


def test_a_changed_configuration_is_a_new_pod(chart: Renderer) -> None:
    """The pod's annotation follows the configuration, and nothing else of the values."""
    first = node_pod(chart.template())
    same = node_pod(chart.template(with_values(podDisruptionBudget={"enabled": False})))
    other = node_pod(chart.template({"config": {"bootstrap": "other:9092"}}))

    key = "checksum/config"
    assert first["metadata"]["annotations"][key] == same["metadata"]["annotations"][key]
    assert first["metadata"]["annotations"][key] != other["metadata"]["annotations"][key]


def test_configuration_passes_through_as_it_is(chart: Renderer) -> None:
    """Keys of keylane reach the file as they are, large numbers whole, rules with their fields."""
    rules = [{"topic": "shop-*", "lanes": 4, "reserve_message_value": False}]
    config = {"bootstrap": "k:1", "cache_bytes_max": 2**40, "lanes": rules, "drain_timeout_s": 0.5}

    written = yaml.safe_load(configuration(chart.template({"config": config})))

    assert {key: written[key] for key in config} == config


def test_threads_follow_the_requested_cpu(chart: Renderer) -> None:
    """filter_threads is the CPU request, unless the configuration has its own."""
    by_request = node_container(chart.template())
    by_config = node_container(
        chart.template({"config": {"bootstrap": "k:1", "filter_threads": 3}})
    )

    names = [entry["name"] for entry in by_config["env"]]
    assert "KEYLANE_FILTER_THREADS" not in names
    entry = next(e for e in by_request["env"] if e["name"] == "KEYLANE_FILTER_THREADS")
    assert entry["valueFrom"]["resourceFieldRef"]["resource"] == "requests.cpu"


def test_resources_of_the_user_win(chart: Renderer) -> None:
    """Single resources replace what is computed; the rest stays."""
    resources = node_container(chart.template(with_values(resources={"requests": {"cpu": "4"}})))[
        "resources"
    ]

    assert resources["requests"] == {"cpu": "4", "memory": "1650Mi"}


def test_a_limit_of_the_users_own(chart: Renderer, tmp_path: Path) -> None:
    """Bounds that are not given follow from it: the chart names none, keylane starts in it."""
    values = {"config": {"bootstrap": "k:1", "cache_bytes_max": 0}}
    resources = {"limits": {"memory": "640Mi"}}
    objects = chart.template({**values, "resources": resources})
    path = tmp_path / "keylane.yaml"
    path.write_text(configuration(objects))
    config = load_config(path=path, environment={}, flags={}).config

    assert node_container(objects)["resources"]["limits"] == {"memory": "640Mi"}
    assert config.model_fields_set & PARTS.keys() == {"cache_bytes_max"}
    plan = plan_memory(config, 640 * 1024**2 * 15 // 16, processors=1)
    assert plan.bounds["cache_bytes_max"] == 0
    assert plan.bounds["batch_bytes_max"] < 64 * 1024**2


@pytest.mark.parametrize(
    ("config", "more_mi"),
    [
        ({"batch_bytes_max": 1024**3}, 16 / 15 * (4 * 960 + 1.5 * 1920)),
        ({"buffered_bytes_max": 1024**3}, 16 / 15 * 1.5 * 896),
        ({"cache_bytes_max": 0}, -16 / 15 * 250),
        ({"filter_threads": 5}, 16 / 15 * 64),
    ],
)
def test_a_bound_of_the_users_own_is_in_the_limit(
    chart: Renderer, config: dict[str, int], more_mi: float
) -> None:
    """The limit grows or shrinks by the difference to the chart's own bound."""

    def limit_mi(values: Mapping[str, Any]) -> int:
        limits = node_container(chart.template(values))["resources"]["limits"]
        return int(limits["memory"].removesuffix("Mi"))

    own = limit_mi({"config": {"bootstrap": "k:1", **config}})

    assert abs(own - limit_mi(MINIMAL) - more_mi) <= 1


def test_the_check_sees_what_the_node_sees(chart: Renderer) -> None:
    """`check.beforeStart`: the same image, variables and files, and a command of keylane."""
    values = {**with_control_tls(), "secretMounts": SECRET_MOUNTS, "check": {"beforeStart": True}}
    pod = node_pod(chart.template(values))["spec"]
    (check,), (node,) = pod["initContainers"], pod["containers"]

    command, arguments = check["args"][0], check["args"][1:]

    assert arguments == node["args"][1:]
    assert cli.get_command(click.Context(cli), command) is not None
    for key in ("image", "env", "volumeMounts", "securityContext", "resources"):
        assert check[key] == node[key], key
    assert "initContainers" not in node_pod(chart.template())["spec"]


def test_probes_ask_the_control_port(chart: Renderer) -> None:
    """Start and life ask /livez, readiness /readyz."""
    container = node_container(chart.template())

    asked = {name: container[name]["httpGet"] for name in container if name.endswith("Probe")}
    assert asked == {
        "startupProbe": {"path": "/livez", "port": "control", "scheme": "HTTP"},
        "livenessProbe": {"path": "/livez", "port": "control", "scheme": "HTTP"},
        "readinessProbe": {"path": "/readyz", "port": "control", "scheme": "HTTP"},
    }


def test_probes_speak_tls_where_the_control_port_does(chart: Renderer) -> None:
    """With its own certificate, and with that of the listeners."""
    listeners = {"bootstrap": "k:1", "tls_certificate": "/tls.pem", "control_tls": True}
    for values in (with_control_tls(), with_values(config=listeners)):
        container = node_container(chart.template(values))

        probes = [container[name] for name in container if name.endswith("Probe")]
        assert [probe["httpGet"]["scheme"] for probe in probes] == ["HTTPS"] * 3


def test_certificates_of_the_control_port_come_from_secrets(chart: Renderer) -> None:
    """Files that the configuration names are mounted; of the clients' Secret the CA alone."""
    objects = chart.template(with_control_tls(readers=["DNS:prometheus.example"]))

    written = yaml.safe_load(configuration(objects))
    mounts = {m["mountPath"]: m["name"] for m in node_container(objects)["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in node_pod(objects)["spec"]["volumes"]}
    named = {
        key: volumes[mounts[written[key].rpartition("/")[0]]]["secret"]
        for key in ("control_certificate", "control_key", "control_client_ca")
    }
    assert [secret["secretName"] for secret in named.values()] == ["control", "control", "clients"]
    assert named["control_client_ca"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
    assert written["control_tls"] is True
    assert written["control_admins"] == ["CN=ops"]
    assert written["control_readers"] == ["DNS:prometheus.example"]


def test_what_the_chart_runs_trusts_the_control_port(chart: Renderer) -> None:
    """The Job that applies a plan speaks TLS, and has the authorities of the certificate."""
    documented = {"members": 1, "topics": [{"name": "orders", "partitions": 1}]}
    values = {**with_control_tls(caSecret="control-ca"), "standalone": documented}

    pod = find(chart.template(values), "Job")["spec"]["template"]["spec"]

    container = pod["containers"][0]
    variables = {entry["name"]: entry.get("value") for entry in container["env"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    folder, _, file = variables["KEYLANE_CONTROL_CA"].rpartition("/")
    assert container["args"][-1].startswith("https://")
    assert volumes[mounts[folder]]["secret"]["secretName"] == "control-ca"
    assert file in [item["path"] for item in volumes[mounts[folder]]["secret"]["items"]]


def test_the_control_port_stays_inside(chart: Renderer) -> None:
    """No Service but the headless one has the control port."""
    objects = chart.template(
        with_values(nodes={"serviceType": "LoadBalancer", "advertise": "lb.example.com"})
    )

    having = {
        one["metadata"]["name"]
        for one in objects
        if one["kind"] == "Service" and "control" in [p["name"] for p in one["spec"]["ports"]]
    }
    assert having == {"keylane-headless"}


def test_tokens_are_made_or_named(chart: Renderer) -> None:
    """Without a name the chart makes a Secret with two tokens; with one it makes none."""
    made = find(chart.template(), "Secret", "keylane-control")
    named = chart.template(with_values(control={"tokenSecret": "mine"}))

    assert made["data"].keys() == {"token", "read-token"}
    assert len(set(made["data"].values())) == 2
    assert secrets_of(named) == ["keylane-nodes"]
    volumes = {volume["name"]: volume for volume in node_pod(named)["spec"]["volumes"]}
    assert volumes["control"]["secret"]["secretName"] == "mine"


def secrets_of(objects: list[Object]) -> list[str]:
    """Names of the Secrets that the chart makes."""
    return [one["metadata"]["name"] for one in objects if one["kind"] == "Secret"]


def test_the_secret_of_nodes_is_made_or_named(chart: Renderer, tmp_path: Path) -> None:
    """keylane reads the file that is mounted; nodes without numbers have none."""
    made = chart.template()
    named = chart.template(with_values(nodes={"secret": "mine"}, replicas=3))
    single = chart.template(with_values(nodes={"numbered": False}))

    (data,) = find(made, "Secret", "keylane-nodes")["data"].items()
    (tmp_path / "secret").write_bytes(base64.b64decode(data[1]))
    assert len(read_secrets("key", str(tmp_path / "secret"))) == 1
    assert secrets_of(named) == secrets_of(single) == ["keylane-control"]
    for objects, secret in ((made, "keylane-nodes"), (named, "mine")):
        volumes = {volume["name"]: volume for volume in node_pod(objects)["spec"]["volumes"]}
        mounts = {one["name"]: one["mountPath"] for one in node_container(objects)["volumeMounts"]}
        assert volumes["nodes"]["secret"]["secretName"] == secret
        config = yaml.safe_load(configuration(objects))
        assert config["node_secret_file"] == f"{mounts['nodes']}/{data[0]}"
    assert "node_secret_file" not in configuration(single)


def test_every_value_has_a_comment() -> None:
    """A line `# --` stands above each value, or above the map that it belongs to."""
    bare = [path for path, is_documented in _values() if not is_documented]

    assert bare == []


def test_every_value_is_in_the_schema() -> None:
    """The schema knows each default, so that a mistyped key is refused."""
    missing = [path for path, _ in _values() if not _is_in_schema(path)]

    assert missing == []


def _values() -> Iterator[tuple[str, bool]]:
    """Return each value's path, maps of ours excepted, and whether it has a comment."""
    parents: list[tuple[int, str, bool]] = []
    is_documented = False
    for line in VALUES.splitlines():
        if line.lstrip().startswith("#"):
            is_documented = is_documented or line.lstrip().startswith("# --")
            continue
        match = KEY.match(line)
        if match is None:
            is_documented = False
            continue
        indent, name, rest = len(match[1]), match[2], match[3].strip()
        while parents and parents[-1][0] >= indent:
            parents.pop()
        documented = is_documented or any(parent[2] for parent in parents)
        parents.append((indent, name, documented))
        if rest:
            yield ".".join(parent[1] for parent in parents), documented
        is_documented = False


def _is_in_schema(path: str) -> bool:
    place: Any = SCHEMA
    for name in path.split("."):
        if "$ref" in place:
            place = SCHEMA["definitions"][place["$ref"].rpartition("/")[2]]
        if name not in place.get("properties", {}):
            return any(part in FREE for part in path.split("."))
        place = place["properties"][name]
    return True
