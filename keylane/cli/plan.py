"""`keylane plan`: cuts of a topic's partitions into lanes, by a profile of its load.

Exit codes: 0 done, 1 Spark or its storage failed, 2 bad input. Only a URI needs Spark.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import click

from keylane.assignor.cut_planner import SLACK, PlanReport, plan_ranges, report_plan
from keylane.assignor.profile import PROFILE_BYTES_MAX, SUMMARY_NAME, LoadProfile, read_profile
from keylane.assignor.range_plan import PLAN_BYTES_MAX, RangePlan, read_plan, write_plan
from keylane.errors import ConfigInvalid
from keylane.pipeline.arguments import conf_option
from keylane.pipeline.places import Places, open_places
from keylane.pipeline.storage import FOLDER, local_path, scheme_of, split_file
from keylane.usage import HELP_NAMES

STDOUT: Final = "-"
RANGE: Final = "range"
ALL_HOURS: Final = "all-hours"


@click.command(
    "plan",
    context_settings=dict(HELP_NAMES),
    short_help="Cut a topic into lanes of equal load.",
)
@click.argument("profile", type=FOLDER, metavar="PROFILE.JSON")
@click.option("--lanes", type=int, required=True, metavar="N", help="Lanes per partition.")
@click.option(
    "--prior", type=FOLDER, metavar="PLAN.JSON", help="The plan in force: move little against it."
)
@click.option(
    "--slack",
    type=float,
    default=SLACK,
    show_default=True,
    metavar="SHARE",
    help="How far above the best busiest lane a plan may go to stay near the prior one.",
)
@click.option(
    "--scope",
    type=click.Choice(("partition", "topic")),
    default="partition",
    show_default=True,
    help="Cut each partition by itself, or all alike.",
)
@click.option(
    "--for",
    "aim",
    type=click.Choice((RANGE, ALL_HOURS)),
    default=RANGE,
    show_default=True,
    help="Cut by the bytes of the whole range, or so that the worst hour is as light as it can be.",
)
@click.option(
    "-o",
    "--output",
    type=FOLDER,
    metavar="PLAN.JSON",
    help="Write the plan there, to stdout for `-`.",
)
@conf_option
def plan_command(**options: Any) -> int:
    """Cut every partition so that its busiest lane is as light as it can be.

    PROFILE.JSON, or its folder, has the bytes by hash of key; `keylane spark profile` makes it.
    Each file is a path, or a URI such as s3a://BUCKET/FOLDER, which Spark reads and writes.
    """
    args = SimpleNamespace(**options)
    with open_places("keylane plan", args.conf) as places:
        return run_plan(places, args)


def run_plan(places: Places, args: SimpleNamespace) -> int:
    """Write the plan and print its figures. Nothing is written on bad input.

    Raises: ConfigInvalid, SparkUnavailable, StorageFailed.
    """
    profile = load_profile(places, args.profile)
    prior = None if args.prior is None else load_range_plan(places, "--prior", args.prior)
    is_cut_alike = args.scope == "topic"
    if is_cut_alike and args.aim == ALL_HOURS:
        raise ConfigInvalid("--for all-hours: cuts each partition by itself, not --scope topic")
    plan, report = plan_ranges(
        profile, args.lanes, prior=prior, is_cut_alike=is_cut_alike, slack=args.slack
    )
    by_hour = None
    if args.aim == ALL_HOURS:
        plan, by_hour = plan_by_hour(places, profile, args, prior)
        report = report_plan(profile, plan, report.best, prior)
    text = write_plan(plan).decode() + "\n"
    if args.output not in {None, STDOUT}:
        _write(places, args.output, text)
    if args.output == STDOUT:
        print(text, end="")
    reported = render(plan, report) if by_hour is None else f"{by_hour}\n{render(plan, report)}"
    print(reported, file=sys.stderr if args.output == STDOUT else sys.stdout)
    return 0


def _write(places: Places, output: str, text: str) -> None:
    if scheme_of(output) is not None:
        places.write(output, text.encode())
        return
    try:
        Path(local_path(output)).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigInvalid(f"--output {output}: {error.strerror}") from None


def plan_by_hour(
    places: Places, profile: LoadProfile, args: SimpleNamespace, prior: RangePlan | None
) -> tuple[RangePlan, str]:
    """The plan whose worst hour is the best possible, and its figures as text.

    Raises: ConfigInvalid, and as `Places.folder`.
    """
    try:
        from keylane.pipeline.profile.plan_hours import plan_folder  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigInvalid(
            f"--for all-hours: {error.name} is not installed: pip install 'keylane[spark]'"
        ) from None
    summary, _ = split_file(places.file_in(args.profile, SUMMARY_NAME))
    folder = places.folder(summary)
    return plan_folder(folder, profile, args.lanes, prior=prior, slack=args.slack)


def render(plan: RangePlan, report: PlanReport) -> str:
    """Return the figures of a plan as text."""
    head = (
        f"{plan.topic}: {plan.partition_count} partitions, {plan.lane_count} lanes each,"
        f" {report.total:,} bytes; a mean lane has {report.mean:,.0f}"
    )
    busiest = (
        f"busiest lane: {report.busiest:,} bytes, {_times(report.busiest, report)}"
        f" (the best cut has {report.best:,}; an even cut {report.even:,},"
        f" {_times(report.even, report)})"
    )
    lines = [head, busiest]
    if report.floor is None:
        lines.append("floor: not known, the profile has no counts by key")
    else:
        key = report.floor
        share = key.size_bytes / report.total if report.total else 0.0
        lines.append(
            f"floor: the heaviest key (hash {key.key_hash}, partition {key.partition}) has"
            f" {key.size_bytes:,} bytes, {share:.1%} of all, {_times(key.size_bytes, report)};"
            " no cut gets below"
        )
    if report.moved is not None:
        share = report.moved / report.total if report.total else 0.0
        lines.append(f"moved: {report.moved:,} bytes, {share:.1%} of all, change lanes")
    return "\n".join([*lines, f"plan {plan.plan_id}, epoch {plan.epoch}"])


def _times(size: int, report: PlanReport) -> str:
    return f"{size / report.mean if report.mean else 0.0:.2f} times a mean lane"


def load_profile(places: Places, text: str) -> LoadProfile:
    """Read a profile's summary, for which its folder may stand.

    Raises: ConfigInvalid, and as `Places.load`.
    """
    path = places.file_in(text, SUMMARY_NAME)
    return places.load(path, read_profile, PROFILE_BYTES_MAX)


def load_range_plan(places: Places, flag: str, text: str) -> RangePlan:
    """Read a plan that a flag names. Raises: ConfigInvalid, with the flag and the place."""
    try:
        return places.load(text, read_plan, PLAN_BYTES_MAX)
    except ConfigInvalid as error:
        raise ConfigInvalid(f"{flag} {error}") from None
