"""Standalone mode: the chart cuts and deals out key ranges as `keylane assign --pods` does."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from keylane.cli.main import main

from .rendering import MINIMAL, Object, Renderer, find

pytestmark = pytest.mark.timeout(1000)  # Helm may have to be built first


def render(chart: Renderer, members: int, strategy: str, topics: dict[str, int]) -> list[Object]:
    """Render the chart with these members."""
    listed = [{"name": name, "partitions": count} for name, count in topics.items()]
    standalone = {"members": members, "strategy": strategy, "topics": listed}
    return chart.template({**MINIMAL, "standalone": standalone})


def data_by_name(objects: list[Object]) -> dict[str, Any]:
    """Return the data of the members' ConfigMaps."""
    return {
        one["metadata"]["name"]: one["data"]
        for one in objects
        if one["kind"] == "ConfigMap" and "KEYLANE_CLIENT_ID" in one["data"]
    }


@pytest.mark.parametrize("strategy", ["range", "round-robin"])
@pytest.mark.parametrize(
    ("members", "topics"),
    [
        (1, {"orders": 1}),
        (5, {"orders": 3}),
        (5, {"orders": 2, "audit": 3}),
        (7, {"t1": 2, "t2": 8, "t0": 7, "t3": 9}),
        (12, {"orders": 1, "Audit": 30}),
        (101, {"orders": 10}),
    ],
)
def test_ranges_are_those_of_keylane_assign(
    members: int,
    topics: dict[str, int],
    strategy: str,
    chart: Renderer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each member's ConfigMap is, name and bytes, what `keylane assign --pods` writes."""
    argv = ["assign", "--members", str(members), "--strategy", strategy, "--pods", "-"]
    for name, count in topics.items():
        argv += ["--topic", name, "--partitions", str(count)]

    rendered = data_by_name(render(chart, members, strategy, topics))

    assert main(argv) == 0
    assigned = data_by_name(list(yaml.safe_load_all(capsys.readouterr().out)))
    assert len(rendered) == members
    assert rendered == assigned


def test_a_pod_per_member_with_its_ranges(chart: Renderer) -> None:
    """With an image each member is one pod, which is replaced and never doubled."""
    standalone = {
        "members": 3,
        "topics": [{"name": "orders", "partitions": 2}],
        "pod": {"image": "consumer:1", "args": ["--forever"]},
    }

    objects = chart.template({**MINIMAL, "standalone": standalone})

    pods = [one for one in objects if one["kind"] == "Deployment"]
    assert [one["metadata"]["name"] for one in pods] == [f"keylane-member-{n}" for n in range(3)]
    for one in pods:
        container = one["spec"]["template"]["spec"]["containers"][0]
        assert one["spec"]["replicas"] == 1
        assert one["spec"]["strategy"] == {"type": "Recreate"}
        assert container["envFrom"] == [{"configMapRef": {"name": one["metadata"]["name"]}}]
        assert container["args"] == ["--forever"]
        assert container["env"][0] == {
            "name": "KEYLANE_BOOTSTRAP_SERVERS",
            "value": "keylane.prod.svc.cluster.local:19092",
        }


def test_the_job_gives_the_node_the_same_ranges(
    chart: Renderer, capsys: pytest.CaptureFixture[str]
) -> None:
    """The job's `keylane assign` deals out what the ConfigMaps hold, with the admin's token."""
    objects = render(chart, 5, "round-robin", {"orders": 2, "audit": 3})
    job = find(objects, "Job")["spec"]["template"]["spec"]["containers"][0]
    *argv, flag, control = job["args"]

    assert main([*argv, "--pods", "-"]) == 0

    reported = data_by_name(list(yaml.safe_load_all(capsys.readouterr().out)))
    assert reported == data_by_name(objects)
    assert (flag, control) == ("--apply", "http://keylane-headless.prod.svc.cluster.local:19090")
    assert job["env"][0]["valueFrom"]["secretKeyRef"] == {"name": "keylane-control", "key": "token"}


def test_the_job_can_be_left_out(chart: Renderer) -> None:
    """`apply: false` leaves the job out."""
    topics = [{"name": "orders", "partitions": 2}]

    objects = chart.template(
        {**MINIMAL, "standalone": {"members": 3, "topics": topics, "apply": False}}
    )

    assert [one for one in objects if one["kind"] == "Job"] == []


def test_without_members_there_is_nothing(chart: Renderer) -> None:
    """The default makes no consumer."""
    objects = chart.template()

    assert data_by_name(objects) == {}
    assert [one for one in objects if one["kind"] == "Deployment"] == []
