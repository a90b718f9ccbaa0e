"""Prometheus' own tool takes the alert rules, and they fire on what they are for."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.programs import find_or_skip
from tools.go_tools import PROMTOOL

from .rendering import CHART

pytestmark = [
    pytest.mark.long,  # promtool takes minutes to build
    pytest.mark.timeout(1000),
]
FILE: Final = CHART / "rules" / "keylane.yaml"
RULES: Final = {
    rule["alert"]: rule
    for group in yaml.safe_load(FILE.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
}
GROUP: Final = {"group": "billing", "topic": "orders", "job": "keylane", "instance": "keylane-0"}
NODE: Final = {"job": "keylane", "instance": "keylane-0"}

CASES: Final = [
    # alert, series, at which time, labels of the alert (None: it does not fire)
    ("KeylaneDown", {'up{job="keylane",instance="keylane-0"}': "0x20"}, "5m", {"job": "keylane"}),
    ("KeylaneDown", {'up{job="keylane",instance="keylane-0"}': "1x20"}, "5m", None),
    ("KeylaneNodeDown", {'up{job="keylane",instance="keylane-0"}': "1x5 0x20"}, "10m", NODE),
    (
        "KeylaneJournalFails",
        {'keylane_journal_errors_total{job="keylane",instance="keylane-0"}': "0x5 0+1x10"},
        "10m",
        NODE,
    ),
    ("KeylaneLaneStuck", {"keylane_group_lane_spread_max{}": "10001+100x60"}, "40m", GROUP),
    ("KeylaneLaneStuck", {"keylane_group_lane_spread_max{}": "10001x60"}, "40m", None),
    ("KeylaneMemberStuck", {"keylane_group_members_stuck{}": "0x5 1x10"}, "12m", GROUP),
    ("KeylaneMemberStuck", {"keylane_group_members_stuck{}": "0x5 1x3 0x10"}, "12m", None),
    ("KeylaneLagGrows", {"keylane_group_stable_lag{}": "100001+100x90"}, "80m", GROUP),
    ("KeylaneLagGrows", {"keylane_group_stable_lag{}": "900000-100x90"}, "80m", None),
]


@pytest.fixture(scope="module")
def promtool() -> Path:
    """Promtool; skips where it cannot be built."""
    return find_or_skip(PROMTOOL)


def run(promtool: Path, *args: str | Path) -> str:
    """What promtool prints, which must end well."""
    command = [str(promtool), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_rules_are_taken(promtool: Path) -> None:
    """`promtool check rules` finds every rule, and nothing that it warns of."""
    out = run(promtool, "check", "rules", "--lint=all", "--lint-fatal", FILE)

    assert f"SUCCESS: {len(RULES)} rules found" in out


def filled(text: str, labels: dict[str, str]) -> str:
    """An annotation with the labels of an alert."""
    for name, value in labels.items():
        text = text.replace(f"{{{{ $labels.{name} }}}}", value)
    assert "{{" not in text, text
    return text


@pytest.mark.parametrize(("alert", "series", "at", "labels"), CASES)
def test_an_alert_fires_when_it_should(
    alert: str,
    series: dict[str, str],
    at: str,
    labels: dict[str, str] | None,
    promtool: Path,
    tmp_path: Path,
) -> None:
    """Series of an incident make the alert, with its labels in its texts; quiet ones do not."""
    rule, expected = RULES[alert], []
    if labels is not None:
        texts = {key: filled(text, labels) for key, text in rule["annotations"].items()}
        expected = [{"exp_labels": {**labels, **rule["labels"]}, "exp_annotations": texts}]
    written = ",".join(f'{key}="{value}"' for key, value in GROUP.items())
    case: dict[str, Any] = {
        "interval": "1m",
        "input_series": [
            {"series": name.replace("{}", f"{{{written}}}"), "values": values}
            for name, values in series.items()
        ],
        "alert_rule_test": [{"eval_time": at, "alertname": alert, "exp_alerts": expected}],
    }
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(FILE)], "tests": [case]}))

    assert "SUCCESS" in run(promtool, "test", "rules", path)
