"""`keylane groups`, `topics`, `nodes` and `events`: lists, asked of a control port.

Source: docs/control-api.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Event
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import urlencode

import click

from keylane.cli.columns import Painted, align, has_colors
from keylane.cli.control_client import ControlPort, control_options
from keylane.cli.figures import BAD, DASH, lag, lag_time, moment, whole
from keylane.cli.output import output_option, show
from keylane.errors import ControlRefused
from keylane.usage import HELP_NAMES

GROUP_COLUMNS: Final = (
    "GROUP", "KIND", "STATE", "MEMBERS", "LANES", "LAG", "LAG-TIME", "DONE/S", "BALANCE", "STUCK",
    "NODE",
)  # fmt: skip
TOPIC_COLUMNS: Final = (
    "TOPIC", "PARTITIONS", "LANES", "HASH", "GROUPS", "RECORDS/S", "BYTES/S",
)  # fmt: skip
NODE_COLUMNS: Final = ("NODE", "ADDRESS", "CONTROL", "STATE", "PARTITIONS", "GROUPS")
BROKER_COLUMNS: Final = ("BROKER", "ADDRESS", "RACK", "STATE")
EVENT_COLUMNS: Final = ("TIME", "KIND", "GROUP", "EVENT")
SERVING: Final = "serving"
EVENTS_SHOWN: Final = 50
FOLLOW_S: Final = 1.0
"""Between two looks of --follow."""
SEVERITY_COLORS: Final = {"warning": "yellow", "error": BAD}
Sort = Callable[[Mapping[str, Any]], tuple[Any, ...]]


def furthest_first(each: Mapping[str, Any], field: str) -> float:
    """Return a sort key: the largest figure first, one that is not known behind 0."""
    value = each.get(field)
    return 1.0 if value is None else -value


SORTS: Final[Mapping[str, Sort]] = {
    "name": lambda each: (each["group"],),
    "lag": lambda each: (furthest_first(each, "lag"), each["group"]),
    "lag-s": lambda each: (furthest_first(each, "lag_s"), each["group"]),
}
"""The furthest behind first; a group whose lag is not known comes last."""


@click.command(
    "groups",
    context_settings=dict(HELP_NAMES),
    short_help="All groups of the cluster with their lag, members and state.",
)
@click.option(
    "--sort",
    type=click.Choice(tuple(SORTS)),
    default="name",
    show_default=True,
    help="Order of the groups; with lag or lag-s the furthest behind comes first.",
)
@output_option()
@control_options
def groups_command(**options: Any) -> int:
    """List all groups of the cluster: lag in records and time, members, lanes, stuck members."""
    args = SimpleNamespace(**options)
    report = ControlPort.of(args).get("/groups")
    report["groups"].sort(key=SORTS[args.sort])
    show(report, args.output, lambda: render_groups(report))
    return 0


@click.command(
    "topics", context_settings=dict(HELP_NAMES), short_help="Topics with lanes, and their flow."
)
@output_option()
@control_options
def topics_command(**options: Any) -> int:
    """List topics that clients see as lanes: partitions, lanes, groups, and what flows in."""
    args = SimpleNamespace(**options)
    report = ControlPort.of(args).get("/topics")
    report["topics"].sort(key=lambda each: each["topic"])
    show(report, args.output, lambda: render_topics(report))
    return 0


@click.command(
    "nodes",
    context_settings=dict(HELP_NAMES),
    short_help="Nodes of keylane and brokers of Kafka, and what is wrong.",
)
@output_option()
@control_options
def nodes_command(**options: Any) -> int:
    """List the nodes of keylane and the brokers of Kafka, and what is wrong with them."""
    args = SimpleNamespace(**options)
    report = ControlPort.of(args).get("/cluster")
    show(report, args.output, lambda: render_nodes(report))
    return 0


@click.command(
    "events",
    context_settings=dict(HELP_NAMES),
    short_help="What happened lately: rebalances, moves, nodes, brokers, actions.",
)
@click.option("--group", metavar="NAME", help="Of this group only.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=EVENTS_SHOWN,
    show_default=True,
    metavar="N",
    help="The newest so many.",
)
@click.option("--follow", is_flag=True, help="Go on with new ones, until Ctrl-C.")
@output_option()
@control_options
def events_command(**options: Any) -> int:
    """Show what happened lately at a node, the newest last; times are in UTC."""
    args = SimpleNamespace(**options)
    port = ControlPort.of(args)
    report = port.get(_events_path(args.group, limit=args.limit))
    if not args.follow:
        show(report, args.output, lambda: render_events(report["events"]))
        return 0
    pause, trouble = Event(), ""
    while True:
        _show_new(report["events"], args.output)
        pause.wait(FOLLOW_S)
        path = _events_path(args.group, after=report["last_id"])
        try:
            report, trouble = port.get(path), ""
        except ControlRefused as error:
            # A node that starts again goes on with higher ids; until then one line is enough.
            report = {"events": [], "last_id": report["last_id"]}
            if str(error) != trouble:
                trouble = str(error)
                click.echo(f"keylane events: {trouble}", err=True)


def render_groups(report: Mapping[str, Any]) -> str:
    """Return the groups as a table."""
    rows = [_group_row(group) for group in report["groups"]]
    lines = list(align([GROUP_COLUMNS, *rows], is_colored=has_colors()))
    if report["left_out"]:
        lines.append(f"{report['left_out']} more groups are not listed")
    return "\n".join(lines)


def render_topics(report: Mapping[str, Any]) -> str:
    """Return the topics with lanes as a table, with records that stand in a wrong partition."""
    rows = [
        (
            each["topic"],
            str(each["partition_count"]),
            str(each["lane_count"]),
            each["hash"],
            whole(each.get("group_count")),
            whole(each.get("records_per_s")),
            whole(each.get("bytes_per_s")),
        )
        for each in report["topics"]
    ]
    misplaced = [entry for each in report["topics"] for entry in each["misplaced"]]
    return "\n".join([*align([TOPIC_COLUMNS, *rows]), *misplaced_lines(misplaced)])


def misplaced_lines(misplaced: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return lines about records in other partitions than their keys'."""
    return [
        f"warning: topic {each['topic']} partition {each['partition']} offset {each['offset']}: "
        "the key belongs into another partition by Kafka's default partitioner, so lanes are not "
        "co-partitioned with other topics"
        for each in misplaced
    ]


def render_nodes(report: Mapping[str, Any]) -> str:
    """Return nodes, brokers and what is wrong, as text."""
    node, colors = report["node"], has_colors()
    head = f"keylane {node['version']}, Kafka cluster {node['cluster_id']}"
    nodes = [
        (
            whole(each["number"]),
            each["address"] or DASH,
            each["control"] or DASH,
            _state(each["state"]),
            str(each["partitions"]),
            whole(each["groups"]),
        )
        for each in report["nodes"]
    ]
    brokers = [
        (
            str(each["id"]),
            each["address"],
            each["rack"] or DASH,
            _reachable(each),
        )
        for each in report["brokers"]
    ]
    tables = [
        align([NODE_COLUMNS, *nodes], is_colored=colors),
        align([BROKER_COLUMNS, *brokers], is_colored=colors),
    ]
    lines = [line for table in tables for line in ("", *table)]
    return "\n".join([head, *lines, *_problems(report["problems"], is_colored=colors)])


def render_events(events: Iterable[Mapping[str, Any]]) -> str:
    """Return events as a table."""
    rows = [_event_row(event) for event in events]
    return "\n".join(align([EVENT_COLUMNS, *rows], is_colored=has_colors()))


def _group_row(group: Mapping[str, Any]) -> tuple[str, ...]:
    stuck = group["stuck_members"]
    return (
        group["group"],
        group["kind"] or DASH,
        group["state"] or DASH,
        whole(group["member_count"]),
        whole(group["lane_count"]),
        lag(group["lag"], is_exact=group["lag_is_exact"]),
        lag_time(group["lag_s"], is_exact=group.get("lag_s_is_exact", True)),
        whole(group["consumed_per_s"]),
        DASH if group["balance"] is None else f"{group['balance']:.2f}",
        Painted(str(stuck), BAD) if stuck else whole(stuck),
        group["node"] or DASH,
    )


def _state(state: str) -> str:
    return state if state == SERVING else Painted(state, BAD)


def _reachable(broker: Mapping[str, Any]) -> str:
    if broker["is_reachable"]:
        return "reachable"
    since = moment(broker["unreachable_since_ms"])
    return Painted(f"away since {since}: {broker['reason']}", BAD)


def _problems(problems: Sequence[Mapping[str, Any]], *, is_colored: bool) -> list[str]:
    """Return a line for each problem, after an empty one."""
    lines = []
    for each in problems:
        line = f"{each['severity']}: {each['text']} {each['remedy']}".rstrip()
        color = SEVERITY_COLORS.get(each["severity"])
        lines.append(click.style(line, fg=color) if is_colored else line)
    return ["", *lines] if lines else []


def _event_row(event: Mapping[str, Any]) -> tuple[str, ...]:
    color = SEVERITY_COLORS.get(event["severity"])
    text = event["text"]
    return (
        moment(event["at_ms"]),
        event["kind"],
        event["group"] or DASH,
        text if color is None else Painted(text, color),
    )


def _events_path(group: str | None, **asked: int) -> str:
    query = {**asked, **({} if group is None else {"group": group})}
    return f"/events?{urlencode(query)}"


def _show_new(events: Iterable[Mapping[str, Any]], form: str) -> None:
    """Print events as they come: a line each, of JSON with -o json or yaml."""
    colors = has_colors()
    for event in events:
        if form == "table":
            line = next(align([_event_row(event)], is_colored=colors))
        else:
            line = json.dumps(event)
        click.echo(line, color=True)
