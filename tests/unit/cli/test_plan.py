"""keylane/cli/plan.py: a plan from a profile, without Spark; bad input names its place."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from keylane.assignor.profile import HeavyKey, LoadProfile, PartitionLoad, write_profile
from keylane.assignor.range_plan import read_plan
from keylane.cli.main import main

PROFILE = LoadProfile(
    topic="orders",
    bits=2,
    partitions=(
        PartitionLoad(start=0, end=90, records=(1, 1, 1, 1), size_bytes=(70, 10, 10, 10)),
        PartitionLoad(start=5, end=95, records=(1, 1, 1, 1), size_bytes=(10, 10, 40, 40)),
    ),
    heavy=(HeavyKey(partition=0, key_hash=7, records=9, size_bytes=60),),
)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """The summary in a profile's folder."""
    path = tmp_path / "profile.json"
    path.write_bytes(write_profile(PROFILE))
    return path


def test_a_plan_is_written_and_explained(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cuts are where the bytes are; the report has busiest, even cut and floor."""
    target = tmp_path / "plan.json"

    assert main(["plan", str(profile), "--lanes", "2", "-o", str(target)]) == 0

    plan = read_plan(target.read_bytes())
    reported = capsys.readouterr().out
    assert plan.cuts == ((1 << 61,), (3 << 61,))
    assert [list(row) for row in plan.predicted] == [[70, 30], [60, 40]]
    assert plan.profiled == ((0, 90), (5, 95))
    assert "busiest lane: 70 bytes, 1.40 times a mean lane" in reported
    assert "an even cut 80, 1.60 times a mean lane" in reported
    assert "floor: the heaviest key (hash 7, partition 0) has 60 bytes, 30.0% of all" in reported
    assert plan.plan_id in reported


def test_a_second_plan_follows_the_first(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder does for the file; the next epoch names its prior and what moves."""
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    main(["plan", str(profile.parent), "--lanes", "2", "--scope", "topic", "-o", str(first)])

    assert main(["plan", str(profile), "--lanes", "2", "--prior", str(first), "-o", "-"]) == 0

    out, reported = capsys.readouterr()
    second.write_text(out[out.index('{"cuts"') :])
    prior, plan = read_plan(first.read_bytes()), read_plan(second.read_bytes())
    assert (plan.epoch, plan.prior) == (1, prior.plan_id)
    assert "moved: " in reported


def test_a_profile_without_keys_has_no_floor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rolling profile does not distinguish keys, and the report says so."""
    path = tmp_path / "profile.json"
    path.write_bytes(write_profile(dataclasses.replace(PROFILE, heavy=(), knows_heavy=False)))

    assert main(["plan", str(path), "--lanes", "4"]) == 0

    assert "floor: not known" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"format": "x"}, "format"),
        ({"version": 2}, "version"),
        ({"hash": {}}, "hash"),
        ({"bits": 40}, "bits"),
        ({"topic": ""}, "topic"),
        ({"partitions": []}, "partitions"),
        ({"partitions": [1]}, "partitions.0"),
        ({"partitions": [{"offsets": [3, 1]}]}, "partitions.0.offsets"),
        ({"partitions": [{"offsets": [0, 1], "records": [1]}]}, "partitions.0.records"),
        ({"heavy": [{"key_hash": 1}]}, "heavy.0.key_hash"),
        ({"heavy": [{"key_hash": "1", "partition": 2}]}, "heavy.0.partition"),
        ({"heavy": [{"key_hash": "1", "key_base64": "?"}]}, "heavy.0.key_base64"),
    ],
)
def test_a_wrong_profile_is_refused_with_its_place(
    profile: Path, change: dict[str, object], place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 2 and one line that names the file and the field."""
    profile.write_text(json.dumps(json.loads(profile.read_bytes()) | change))

    assert main(["plan", str(profile), "--lanes", "2"]) == 2
    assert f"{profile}: profile.{place}: " in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--lanes", "5"], "lanes: expected 1 to 4, got 5"),
        (["--lanes", "0"], "lanes: expected 1 to 4, got 0"),
        (["--lanes", "2", "--slack", "-1"], "slack: expected 0 to 1"),
        (["--lanes", "2", "--prior", "nowhere.json"], "nowhere.json: No such file"),
        (["--lanes", "2", "-o", "/nowhere/plan.json"], "--output /nowhere/plan.json: No such file"),
    ],
)
def test_wrong_arguments_are_refused(
    profile: Path, arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 2 and one line."""
    assert main(["plan", str(profile), *arguments]) == 2
    assert text in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"topic": "other"}, "is of topic other"),
        ({"lanes": 3}, "cuts.0: expected a list of 2"),
        ({"partitions": 1, "predicted": {}, "profiled": {}}, "no such partition"),
    ],
)
def test_a_wrong_prior_plan_is_refused(
    profile: Path,
    tmp_path: Path,
    change: dict[str, object],
    text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A plan of something else, or one that is broken."""
    prior = tmp_path / "prior.json"
    main(["plan", str(profile), "--lanes", "2", "-o", str(prior)])
    prior.write_text(json.dumps(json.loads(prior.read_bytes()) | change))

    assert main(["plan", str(profile), "--lanes", "2", "--prior", str(prior)]) == 2
    assert text in capsys.readouterr().err.splitlines()[-1]


def test_another_lane_count_follows_from_nothing(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A prior plan of two lanes says nothing about three."""
    prior = tmp_path / "prior.json"
    main(["plan", str(profile), "--lanes", "2", "-o", str(prior)])

    assert main(["plan", str(profile), "--lanes", "3", "--prior", str(prior)]) == 2

    assert "prior plan: has 2 lanes" in capsys.readouterr().err


def test_planning_loads_no_spark(profile: Path) -> None:
    """`keylane plan` runs where the extra is not installed."""
    program = (
        "import sys; from keylane.cli.main import main; code = main(sys.argv[1:]);"
        "sys.exit(code or any(name in sys.modules for name in ('pyspark', 'pandas', 'pyarrow')))"
    )
    command = [sys.executable, "-c", program, "plan", str(profile), "--lanes", "2"]

    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stderr
