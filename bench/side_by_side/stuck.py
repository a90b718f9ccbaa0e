"""One stuck member of eight: its cost to the others, and memory that stays in its bounds."""

from __future__ import annotations

from typing import Final

from bench.end_to_end.stage import MB, fill_topic
from bench.end_to_end.stuck_member import rate_of, run_pair
from bench.side_by_side.lineup import Lineup, progress
from bench.side_by_side.outcome import Outcome, median, spread

MEGABYTES: Final = 1500
LANES: Final = 8
REPETITIONS_MAX: Final = 4


def run(lineup: Lineup) -> Outcome:
    """Pairs of runs, without and with a member that stops reading."""
    topic = fill_topic(
        lineup.stage, "stuck", codec="lz4", record_bytes=1000,
        megabytes=MEGABYTES * lineup.scale, batch_bytes=131_072,
    )  # fmt: skip
    pairs = []
    for number in range(min(lineup.repetitions, REPETITIONS_MAX) + 1):
        progress(f"stuck {number}/{min(lineup.repetitions, REPETITIONS_MAX)}")
        pair = run_pair(lineup.stage, topic, LANES, "silent")
        if number > 0:  # the first warms
            pairs.append(pair)
    outcome = Outcome(
        "stuck",
        "One member of 8 stuck for good",
        ("member 0", "plain MB/s of the seven", "lost %", "cache MB, at most / bound",
         "RSS MB, at most"),
    )  # fmt: skip
    lost = [100 * (1 - rate_of(stuck) / rate_of(absent)) for absent, stuck in pairs]
    for index, name in enumerate(("absent", "silent")):
        runs = [pair[index] for pair in pairs]
        rates = [rate_of(run) / MB for run in runs]
        gauge = max(run.cache_bytes_max for run in runs)
        outcome.keep(name, mb_per_s=rates, cache_bytes=[gauge],
                     rss_mb=[run.rss_bytes_max / MB for run in runs])  # fmt: skip
        outcome.rows.append(
            (name, spread(rates, 0), spread(lost, 1) if index else "-",
             f"{gauge / MB:.1f} / {runs[0].cache_bytes_bound / MB:.1f}",
             f"{max(run.rss_bytes_max for run in runs) / MB:.0f}")
        )  # fmt: skip
        bound = gauge / runs[0].cache_bytes_bound
        outcome.target(f"member {name}: cache to its bound", bound, at_most=1.0)
    outcome.target("loss of the others, %", median(lost), at_most=5.0)
    return outcome
