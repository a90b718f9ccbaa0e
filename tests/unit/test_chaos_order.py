"""The judge of the chaos runs: in which order a key's records come for the first time."""

from __future__ import annotations

import pytest

from tests.long.chaos_history import Fetched
from tests.unit.test_chaos_judge import (
    LANE,
    OLD_READ,
    answer,
    commit,
    cut_cluster,
    handed,
    kinds,
    notes,
    run,
)


@pytest.mark.parametrize("is_kept", [True, False])
def test_records_that_a_kept_commit_has_passed_may_come_later(is_kept: bool) -> None:
    """As direct: the log is cut, its member goes back and reads on, and has not committed that yet.

    It asks where it stands, is answered with its commit of the old log, and reads behind new
    records. Some time later the group goes back to them. Without such an answer they are late.
    """
    begun = *OLD_READ, Fetched("a", LANE, 2, 21), commit(22, 4)
    asked = answer(30, 4, "b") if is_kept else answer(30, 2, "b")
    later = commit(35, 2, "b"), answer(40, 2, "c"), *handed(41, 2, 3, member="c")

    verdict = run(cut_cluster((25.0,) * 3), *begun, asked, *handed(31, 4, member="b"), *later)

    assert ("order" in kinds(verdict)) != is_kept
    assert not is_kept or (verdict.breaches == [] and notes(verdict) == {"kept", "passed"})
