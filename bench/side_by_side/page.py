"""docs/performance.md of the last result: tables, how each target fared, plots.

python -m bench.side_by_side.page
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench.end_to_end.stage import RESULTS

ROOT: Final = Path(__file__).resolve().parent.parent.parent
PAGE: Final = ROOT / "docs" / "performance.md"
PLOTS: Final = ROOT / "docs" / "performance"
LIMITS: Final = Path(__file__).resolve().parent / "limits.md"
PLOTTED: Final = {
    "relay": ("gb_per_s", "GB/s"),
    "low_rate": ("p50_ms", "p50, ms"),
    "fan_out": ("mb_per_s", "plain MB/s"),
    "small_batches": ("krec_per_s", "1000 records/s"),
    "slow_work": ("share_percent", "share of ideal, %"),
}
"""Scenario: figure of its `raw` part, and what the axis says."""
HEAD: Final = """\
# Performance

How fast keylane is beside direct Kafka and its peers, its targets, and the reasons for missed ones.

- All rows of one table were measured in turns within one run. Kafka, the clients and keylane shared
  one machine. So compare the rows of a table with each other: the rates would differ elsewhere.
- A figure is the median of the repetitions, with (lowest-highest) behind it.
- *A to B* is A divided by B: *to direct* compares with a client that is connected to Kafka itself.
- `python -m bench.side_by_side` with the name of a scenario repeats one table.
  [bench/README.md](../bench/README.md) describes the method.
"""


def write(result: Path) -> None:
    """Write the page of a result file."""
    content = json.loads(result.read_text())
    plots = draw(content["outcomes"])
    PAGE.write_text("\n".join(lines_of(content, plots)).rstrip() + "\n")


def lines_of(content: Mapping[str, Any], plots: set[str]) -> Iterator[str]:
    """The page, line by line."""
    about = content["about"]
    yield HEAD
    yield (
        f"{about['date']}, {about['cores']} cores, {about['memory_gb']} GB, {about['system']}, "
        f"Python {about['python']}, Kafka {about['kafka']}, librdkafka {about['librdkafka']}, "
        f"HAProxy {about['haproxy']}, parallel-consumer {about['parallel_consumer']}, "
        f"keylane {about['keylane']}; load before the run {about['load_before'][0]}; "
        f"{about['options']['repetitions']} repetitions."
    )
    for text in about.get("missing", []):
        yield f"\nLeft out: {text}."
    yield "\n## Targets\n"
    yield "| scenario | target | measured | bound | |"
    yield "|---|---|---|---|---|"
    for outcome in content["outcomes"]:
        for target in outcome["targets"]:
            sign = "at most" if target["is_upper"] else "at least"
            yield (
                f"| {outcome['name']} | {target['text']} | {target['measured']:.2f} "
                f"| {sign} {target['bound']:g} | {'holds' if target['holds'] else 'missed'} |"
            )
    yield ""
    if LIMITS.exists():
        yield LIMITS.read_text().rstrip() + "\n"
    for outcome in content["outcomes"]:
        yield from section(outcome, has_plot=outcome["name"] in plots)


def section(outcome: Mapping[str, Any], *, has_plot: bool) -> Iterator[str]:
    """One scenario."""
    about = outcome["about"]
    yield f"## {outcome['title']}\n"
    yield (
        f"`python -m bench.side_by_side {outcome['name']}`, {about['date']}, load before the run "
        f"{about['load_before'][0]}.\n"
    )
    yield "| " + " | ".join(outcome["columns"]) + " |"
    yield "|" + "---|" * len(outcome["columns"])
    for row in outcome["rows"]:
        yield "| " + " | ".join(row) + " |"
    for note in outcome["notes"]:
        yield f"\n{note}"
    if has_plot:
        yield f"\n![{outcome['title']}](performance/{outcome['name']}.svg)"
    yield ""


def draw(outcomes: list[dict[str, Any]]) -> set[str]:
    """Bar charts with every run as a dot; names of those that were drawn or stand already."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 (belongs to an extra)

        mpl.use("svg")
        from matplotlib import pyplot  # noqa: PLC0415
    except ImportError:
        return {path.stem for path in PLOTS.glob("*.svg")}
    mpl.rcParams["svg.hashsalt"] = "keylane"  # the same data gives the same file
    PLOTS.mkdir(exist_ok=True)
    for outcome in outcomes:
        name = outcome["name"]
        if name not in PLOTTED:
            continue
        figure_name, label = PLOTTED[name]
        bars = {way: found[figure_name] for way, found in outcome["raw"].items()
                if found.get(figure_name)}  # fmt: skip
        figure, axes = pyplot.subplots(figsize=(7, 0.5 + 0.35 * len(bars)))
        for place, (way, values) in enumerate(bars.items()):
            middle = sorted(values)[len(values) // 2]
            color = "tab:blue" if "keylane" in way or "members" in way else "tab:gray"
            axes.barh(place, middle, color=color, alpha=0.6)
            axes.plot(values, [place] * len(values), "k.", markersize=4)
        axes.set_yticks(range(len(bars)), list(bars))
        axes.invert_yaxis()
        axes.set_xlabel(label)
        figure.savefig(PLOTS / f"{name}.svg", bbox_inches="tight", metadata={"Date": None})
        pyplot.close(figure)
    return {path.stem for path in PLOTS.glob("*.svg")}


if __name__ == "__main__":
    write(RESULTS / "side-by-side.json")
