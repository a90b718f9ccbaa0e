"""Prometheus' own tool takes what a node answers to a scrape, while a group reads lanes."""

from __future__ import annotations

import subprocess
import urllib.request

import pytest

from tests.integration.harness import Group, produce
from tests.programs import find_or_skip
from tools.go_tools import PROMTOOL


@pytest.mark.long
@pytest.mark.timeout(1200)  # promtool may have to be built
def test_promtool_takes_a_scrape(shared_keylane, kafka, topic) -> None:
    """`promtool check metrics` finds nothing in it: names, units, help texts, types."""
    promtool = find_or_skip(PROMTOOL)
    name = topic("lanes4", partitions=2)
    with Group(shared_keylane.bootstrap, name, f"g-{name}") as group:
        group.add("confluent", 2)
        group.wait_for_lanes(8, timeout_s=120)
        group.wait_for_values(produce(kafka, name, ["a", "b", "c"], 5), timeout_s=120)
        group.wait_for_commits()
        with urllib.request.urlopen(
            f"http://{shared_keylane.control}/metrics", timeout=60
        ) as answer:
            scrape = answer.read()

    done = subprocess.run(
        [str(promtool), "check", "metrics"],
        input=scrape,
        capture_output=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
    assert scrape.count(b"# TYPE keylane_") > 50
    assert b"keylane_group_stable_lag{" in scrape
