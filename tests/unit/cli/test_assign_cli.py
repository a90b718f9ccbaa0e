"""keylane/cli/assign.py: the command's output, its pods, its exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from keylane.assign import assign
from keylane.assignor.range_plan import RangePlan, write_plan
from keylane.cli.assign import build_pods
from keylane.cli.main import main

BASE = ["assign", "--topic", "orders", "--partitions", "3", "--members", "5"]
ROUND_ROBIN = [*BASE, "--strategy", "round-robin"]


def run(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(argv) == 0
    return capsys.readouterr().out


def test_the_table_lists_the_parts_of_each_member(capsys: pytest.CaptureFixture[str]) -> None:
    """One line per member and partition; a whole partition says so."""
    lines = run(ROUND_ROBIN, capsys).splitlines()

    assert re.split(r"\s{2,}", lines[1]) == [
        "member-0", "orders", "0", "[0, 4611686018427387902]",
    ]  # fmt: skip
    assert lines[3].endswith("whole")
    assert len(lines) == 6


def test_a_member_without_anything_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """Two members of one lane: the second has nothing."""
    out = run(
        ["assign", "--topic", "t", "--partitions", "1", "--members", "2", "--lanes", "1"], capsys
    )

    assert out.splitlines()[2].split() == ["member-1", "-", "-", "nothing"]


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_documents_hold_the_same(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON and YAML: hashes as decimal strings, an empty list for a whole partition."""
    out = run([*ROUND_ROBIN, "-o", form], capsys)

    document = json.loads(out) if form == "json" else yaml.safe_load(out)
    assert document["format"] == "keylane-assignment"
    assert document["strategy"] == "round-robin"
    assert document["members"]["member-4"] == [
        {"topic": "orders", "partition": 1, "ranges": [["4611686018427387903", str(2**63 - 1)]]}
    ]
    assert document["members"]["member-2"][0]["ranges"] == []


def test_a_document_names_another_hash(capsys: pytest.CaptureFixture[str]) -> None:
    """With the lanes that it is for: the points depend on them."""
    argv = ["assign", "--topic", "t", "--partitions", "1", "--members", "2", "-o", "json"]

    plain = json.loads(run(argv, capsys))
    hashed = json.loads(run([*argv, "--lanes", "4", "--hash", "murmur2"], capsys))

    assert "hash" not in plain
    assert hashed["hash"] == {"name": "murmur2", "lanes": 4}


def test_pods_are_one_config_map_per_member(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file per member, with the environment variables that its container needs."""
    folder = tmp_path / "pods"

    out = run([*ROUND_ROBIN, "--pods", str(folder)], capsys)

    pods = [yaml.safe_load(path.read_text()) for path in sorted(folder.iterdir())]
    assert out == f"5 ConfigMaps in {folder}\n"
    assert [pod["data"]["KEYLANE_CLIENT_ID"] for pod in pods] == [f"member-{n}" for n in range(5)]
    assert all(pod["kind"] == "ConfigMap" for pod in pods)
    assert pods[4]["data"]["KEYLANE_PARTITIONS"] == "orders:1"
    assert json.loads(pods[2]["data"]["KEYLANE_ASSIGNMENT"]) == [
        {"topic": "orders", "partition": 2, "ranges": []}
    ]


def test_pods_go_to_stdout_as_one_stream(capsys: pytest.CaptureFixture[str]) -> None:
    """`--pods -` can be piped into kubectl."""
    documents = list(yaml.safe_load_all(run([*BASE, "--pods", "-"], capsys)))

    assert [pod["metadata"]["name"] for pod in documents] == [
        f"keylane-member-{number}" for number in range(5)
    ]


def test_pod_names_are_legal_and_differ() -> None:
    """Names that Kubernetes refuses are changed, and no two members come to the same one."""
    members = ["a", "A", "a_", "\u00e4", "x" * 300, "x" * 299 + "y", "-"]

    names = list(build_pods(assign({"t": 9}, members)))

    assert len(set(names)) == len(members)
    for name in names:
        assert len(name) <= 253
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name)


def test_a_plan_file_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--load` brings the cuts."""
    path = tmp_path / "plan.json"
    path.write_bytes(write_plan(RangePlan(topic="t", lane_count=2, cuts=((1000,),), epoch=0)))

    out = run(
        ["assign", "--topic", "t", "--partitions", "1", "--members", "2", "--load", str(path)],
        capsys,
    )

    assert "[0, 999]" in out and f"[1000, {2**63 - 1}]" in out


def test_partitions_are_given_once_or_for_each_topic(capsys: pytest.CaptureFixture[str]) -> None:
    """Two topics of two and three partitions for one member are five lines."""
    argv = ["assign", "--topic", "a", "--topic", "b", "--member", "m", "--partitions", "2"]

    assert len(run(argv, capsys).splitlines()) == 5
    assert len(run([*argv, "--partitions", "3"], capsys).splitlines()) == 6


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([*BASE, "--members", "0"], "members: 1 to"),
        ([*BASE, "--partitions", "4"], "2 for 1 topics"),
        ([*BASE, "--topic", "orders"], "one is named twice"),
        ([*BASE, "--load", "no/such/file"], "no/such/file: No such file"),
        ([*BASE, "--strategy", "best"], "is not one of"),
        ([*BASE, "--bootstrap", "h:1"], "--bootstrap: cannot stand beside --partitions"),
        ([*ROUND_ROBIN, "--lanes", "4"], "sticky-load alone"),
        ([*BASE, "--hash", "murmur2"], "needs a number of lanes"),
        (
            [*BASE, "--hash", "murmur2", "--lanes", "4", "--apply", "h:1"],
            "client ids have key ranges by xxh64",
        ),
        ([*BASE, "--hash", "murmur2", "--lanes", "4", "--pods", "-"], "key ranges by xxh64"),
        (["assign", "--topic", "t", "--partitions", "2"], "--members"),
    ],
)
def test_bad_arguments_exit_with_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line on stderr says what is wrong."""
    assert main(argv) == 2
    assert message in capsys.readouterr().err


def test_a_bad_plan_names_file_and_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The operator sees which file, and where in it."""
    path = tmp_path / "plan.json"
    path.write_text("{}")

    assert main([*BASE, "--load", str(path)]) == 2

    assert f"--load {path}: plan: cuts: missing" in capsys.readouterr().err


def test_a_cluster_that_does_not_answer_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    """Port 1 has no listener."""
    argv = ["assign", "--topic", "t", "--bootstrap", "127.0.0.1:1", "--members", "2"]

    assert main(argv) == 1
    line = "keylane assign: --bootstrap 127.0.0.1:1: no broker can be reached there\n"
    assert capsys.readouterr().err == line


def test_pods_that_cannot_be_written_exit_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file stands where the folder should be."""
    (tmp_path / "taken").write_text("")

    assert main([*BASE, "--pods", str(tmp_path / "taken")]) == 1
    assert "taken" in capsys.readouterr().err
