"""Waits of records and their sums, wherever records, reports and commits were read.

Tables of a row per lane, member, slice of time and slow key reach this process, records never.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from keylane.pipeline.audit import rules, seen
from keylane.pipeline.job import hold
from keylane.pipeline.waits import lag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from keylane.pipeline.topic_range import TopicRange

ROWS_MAX: Final = 20_000
"""Lanes, members and slices that are kept: those that wait longest."""
DRAWN_MAX: Final = 48
"""Lanes of the picture, those that wait longest."""
CELLS_MAX: Final = 50_000
"""Cells of the picture, slices times lanes: 100 MB in this process."""
KINDS: Final = ("total", "slice", "member", "lane")


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitSums:
    """Waits in ms; rows have the columns of `lag.summed`. The fields are those of `LagReport`."""

    totals: Mapping[str, Mapping[str, Any]]
    groups: Sequence[Mapping[str, Any]]
    cells: Sequence[Mapping[str, Any]]


def find_waits(
    raw: DataFrame,
    wanted: TopicRange,
    *,
    parsed: DataFrame | None,
    journal: DataFrame | None,
    report_starts: Sequence[int] = (),
    stack: ExitStack,
) -> DataFrame:
    """Rows of `lag.with_commits` for the records `raw` of the range `wanted`, held.

    `parsed` are `rules.parse_values`, `journal` the commits of `history.journal_commits`; at least
    one of them. `report_starts`: the first offsets that the audit topic holds. `stack` releases at
    its end what is held.
    """
    commits: list[DataFrame] = []
    ranges: list[DataFrame] = []
    own, oldest_ms = None, None
    if parsed is not None:
        own = rules.within(lag.processed_reports(parsed), wanted.starts, wanted.ends)
        commits.append(lag.report_commits(parsed))
        ranges.append(rules.split_reports(parsed).assigned.select("p", "lo", "hi"))
        oldest_ms = seen.oldest_report_ms(parsed, report_starts)
    if journal is not None:
        commits.append(journal)
    both = hold(commits[0] if len(commits) == 1 else commits[0].unionByName(commits[1]), stack)
    bounds = hold(lag.lane_bounds(both, *ranges), stack)
    records = lag.with_reports(lag.produced_records(raw), own, oldest_ms=oldest_ms)
    return hold(lag.with_commits(records, both, bounds), stack)


def sum_waits(counts: DataFrame) -> WaitSums:
    """Sums of `lag.wait_counts`, which are asked twice."""
    found = lag.summed(counts, (), ("slice",), ("member",), lag.LANE)
    rows = rows_of(found.orderBy("by", F.desc("p99_ms"), "figure").limit(ROWS_MAX))
    named = [{**row, "by": KINDS[row["by"]]} for row in rows if row["by"]]
    groups = [row for row in named if _has_group(row)]
    return WaitSums(
        totals={row["figure"]: row for row in rows if row["by"] == 0},
        groups=groups,
        cells=_cells(counts, groups),
    )


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """All rows."""
    return [row.asDict() for row in frame.collect()]


def _cells(counts: DataFrame, groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Waits by slice and lane, of the lanes that wait longest and the slices of `groups`.

    More slices leave room for fewer lanes.
    """
    commits = [row for row in groups if row["figure"] == lag.COMMIT]
    slices = [(row["slice"],) for row in commits if row["by"] == "slice"]
    lane_max = min(DRAWN_MAX, CELLS_MAX // max(len(slices), 1))
    lanes = [
        tuple(row[name] for name in lag.LANE)
        for row in commits
        if row["by"] == "lane" and row["known"]
    ][:lane_max]
    if not lanes or not slices:
        return []
    spark = counts.sparkSession
    drawn = spark.createDataFrame(lanes, "p int, lo bigint, hi bigint")
    shown = spark.createDataFrame(slices, "slice bigint")
    own = counts.where(F.col("figure") == lag.COMMIT)
    own = own.join(F.broadcast(drawn), [*lag.LANE], "left_semi")
    own = own.join(F.broadcast(shown), "slice", "left_semi")
    return rows_of(lag.summed(own, ("slice", *lag.LANE)).drop("by"))


def _has_group(row: Mapping[str, Any]) -> bool:
    """Return false for records without a produce time, or without a report."""
    return row["by"] == "lane" or row[row["by"]] is not None
