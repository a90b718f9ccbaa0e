"""`keylane assign`: key ranges of members, printed, in pods, or applied to a running proxy.

Source: docs/control-api.md.

Exit codes: 0 done, 1 failed, 2 bad arguments.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, get_args

import click
import yaml

from keylane.assign import STRATEGY_NAMES, Assignment, assign, name_members
from keylane.cli.cluster_question import count_partitions
from keylane.cli.columns import align
from keylane.cli.control_client import (
    ControlTrust,
    ask_control,
    control_request,
    trust_options,
)
from keylane.cli.output import output_option
from keylane.cli.plan import load_range_plan
from keylane.errors import ConfigInvalid
from keylane.keyrange.hash import HashName
from keylane.keyrange.space import KeyRange
from keylane.pipeline.arguments import conf_option
from keylane.pipeline.places import open_places
from keylane.pipeline.storage import FOLDER
from keylane.usage import HELP_NAMES, expect_one

APPLY_TIMEOUT_S: Final = 60.0
POD_NAME_MAX: Final = 253
"""Kubernetes' bound on the name of an object (RFC 1123 subdomain)."""
STDOUT: Final = "-"
Entries = Sequence[Mapping[str, Any]]
"""Parts of a client: topic, partition, ranges, as the control port has them."""


@click.command(
    "assign",
    context_settings=dict(HELP_NAMES),
    short_help="Say which member reads which key ranges, without a group.",
)
@click.option("--topic", multiple=True, required=True, metavar="NAME", help="May be repeated.")
@click.option(
    "--partitions",
    type=int,
    multiple=True,
    metavar="N",
    help="Partitions of the topic; once for all topics, or once for each in their order.",
)
@click.option("--bootstrap", metavar="HOST:PORT", help="Ask this cluster for the partitions.")
@click.option("--members", type=int, metavar="N", help="member-0 to member-(N-1).")
@click.option("--member", multiple=True, metavar="NAME", help="May be repeated.")
@click.option(
    "--strategy",
    type=click.Choice(STRATEGY_NAMES),
    default="sticky-load",
    show_default=True,
    help="round-robin and range cut a partition evenly by its members, sticky-load deals out"
    " lanes by their load.",
)
@click.option("--lanes", type=int, metavar="N", help="Lanes per partition (sticky-load).")
@click.option(
    "--hash",
    type=click.Choice(get_args(HashName)),
    default="xxh64",
    show_default=True,
    help="Of keys; murmur2 needs --lanes.",
)
@click.option(
    "--load",
    type=FOLDER,
    multiple=True,
    metavar="PLAN.JSON",
    help="A range plan, by path or URI: cuts and load of a topic's lanes; may be repeated.",
)
@conf_option
@output_option()
@click.option(
    "--pods",
    metavar="DIR",
    help="Write a Kubernetes ConfigMap per member into this folder, or to stdout for `-`.",
)
@click.option(
    "--apply",
    metavar="HOST:PORT",
    help="Make it the assignments of a running proxy, members as client ids (its control port).",
)
@trust_options
def assign_command(**options: Any) -> int:
    """Deal out every partition of the topics to the members, whole or in key ranges.

    Both ends of a range are inclusive, in the hash space from 0 to 2^63-1.
    """
    args = SimpleNamespace(**options)
    expect_one({"--partitions": args.partitions, "--bootstrap": args.bootstrap})
    expect_one({"--members": args.members, "--member": args.member})
    return run_assign(args)


def run_assign(args: SimpleNamespace) -> int:
    """Print the assignment, or write the pods. Nothing is written before all is known to be good.

    Raises: ConfigInvalid, ControlRefused, KafkaUnavailable.
    """
    if args.hash != "xxh64" and (args.apply is not None or args.pods is not None):
        raise ConfigInvalid(
            f"--apply, --pods: client ids have key ranges by xxh64, not by {args.hash}; "
            "lanes of a group have the hash of their lane rule"
        )
    with open_places("keylane assign", args.conf) as places:
        plans = [load_range_plan(places, "--load", text) for text in args.load]
    topics = _count_partitions(args)
    assignment = assign(
        topics,
        args.member or name_members(args.members),
        strategy=args.strategy,
        lanes=args.lanes,
        plans=plans,
        hash=args.hash,
    )
    if args.pods is not None:
        return _write_pods(args.pods, assignment)
    if args.apply is not None:
        planned = {member: _entries(parts) for member, parts in assignment.items()}
        done = apply_plan(args.apply, planned, args.topic, ControlTrust.of(args))
        sys.stdout.write(done + "\n")
        return 0
    key_hash = None if args.hash == "xxh64" else {"name": args.hash, "lanes": args.lanes}
    sys.stdout.write(render(assignment, args.output, args.strategy, key_hash))
    return 0


def apply_plan(
    control: str,
    planned: Mapping[str, Entries],
    topics: Collection[str],
    trust: ControlTrust,
) -> str:
    """Assign the members' parts of `topics` as planned, all at once; return a line about it.

    The plan deals out these topics whole, so no other client keeps a part of them. What clients
    have of other topics stays.

    Raises: ControlRefused, with the proxy's words; ConfigInvalid (files of `trust`).
    """
    path = "/assignments"
    tag, reported = ask_control(control_request(control, path), trust, timeout_s=APPLY_TIMEOUT_S)
    changes = plan_changes(reported["assignments"], planned, topics)
    body = json.dumps({"assignments": changes}).encode()
    headers = {"Content-Type": "application/json", "If-Match": tag}
    patch = control_request(control, path, data=body, headers=headers, method="PATCH")
    _, reported = ask_control(patch, trust, timeout_s=APPLY_TIMEOUT_S)
    others = sorted(changes.keys() - planned.keys())
    lost = f"; taken from {', '.join(others)}" if others else ""
    return f"version {reported['version']}: {len(planned)} clients on {control}{lost}"


def plan_changes(
    before: Mapping[str, Entries], planned: Mapping[str, Entries], topics: Collection[str]
) -> dict[str, Entries | None]:
    """Return the assignments to set, or to delete (None), by client id."""
    changes: dict[str, Entries | None] = {}
    for client, parts in before.items():
        kept = [part for part in parts if part["topic"] not in topics]
        if client not in planned and len(kept) < len(parts):
            changes[client] = kept or None
    for member, parts in planned.items():
        kept = [part for part in before.get(member, ()) if part["topic"] not in topics]
        changes[member] = [*kept, *parts]
    return changes


def render(
    assignment: Assignment, form: str, strategy: str, key_hash: Mapping[str, Any] | None = None
) -> str:
    """Return the assignment as text. Hashes are strings where a reader may take a double.

    key_hash: the hash of keys, and the number of lanes that it is for; None: XXH64.
    """
    if form == "table":
        return _render_table(assignment)
    document = {
        "format": "keylane-assignment",
        "version": 1,
        "strategy": strategy,
        **({} if key_hash is None else {"hash": dict(key_hash)}),
        "members": {member: _entries(parts) for member, parts in assignment.items()},
    }
    if form == "json":
        return json.dumps(document, indent=2) + "\n"
    return yaml.safe_dump(document, sort_keys=False)


def build_pods(assignment: Assignment) -> dict[str, dict[str, Any]]:
    """Return a ConfigMap per member, by its name; `envFrom` makes environment variables of it.

    KEYLANE_CLIENT_ID is the member; KEYLANE_PARTITIONS what a stock client hands to `assign()`;
    KEYLANE_ASSIGNMENT the key ranges, as `-o json` has them.
    """
    pods: dict[str, dict[str, Any]] = {}
    for member, parts in assignment.items():
        name = _pod_name(member, pods)
        pods[name] = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "labels": {"app.kubernetes.io/part-of": "keylane"}},
            "data": {
                "KEYLANE_CLIENT_ID": member,
                "KEYLANE_PARTITIONS": ",".join(f"{topic}:{place}" for topic, place in parts),
                "KEYLANE_ASSIGNMENT": json.dumps(_entries(parts), separators=(",", ":")),
            },
        }
    return pods


def _entries(parts: Mapping[tuple[str, int], Sequence[KeyRange]]) -> list[dict[str, Any]]:
    return [
        {
            "topic": topic,
            "partition": partition,
            "ranges": [[str(part.lo), str(part.hi)] for part in ranges],
        }
        for (topic, partition), ranges in parts.items()
    ]


def _render_table(assignment: Assignment) -> str:
    rows = [("MEMBER", "TOPIC", "PARTITION", "KEY RANGES")]
    for member, parts in assignment.items():
        if not parts:
            rows.append((member, "-", "-", "nothing"))
        for (topic, partition), ranges in parts.items():
            shown = ", ".join(f"[{part.lo}, {part.hi}]" for part in ranges) or "whole"
            rows.append((member, topic, str(partition), shown))
    return "".join(f"{line}\n" for line in align(rows))


def _pod_name(member: str, taken: Mapping[str, object]) -> str:
    """Return a name that Kubernetes accepts; two members never come to one."""
    name = re.sub(r"[^a-z0-9]+", "-", member.lower()).strip("-")
    if f"keylane-{name}" in taken or name != member or len(name) > POD_NAME_MAX - 8:
        digest = hashlib.sha256(member.encode()).hexdigest()[:8]
        name = f"{name[: POD_NAME_MAX - 17].strip('-')}-{digest}".lstrip("-")
    return f"keylane-{name}"


def _write_pods(folder: str, assignment: Assignment) -> int:
    pods = build_pods(assignment)
    if folder == STDOUT:
        sys.stdout.write(yaml.safe_dump_all(pods.values(), sort_keys=False))
        return 0
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    for name, pod in pods.items():
        (path / f"{name}.yaml").write_text(yaml.safe_dump(pod, sort_keys=False), encoding="utf-8")
    sys.stdout.write(f"{len(pods)} ConfigMaps in {path}\n")
    return 0


def _count_partitions(args: SimpleNamespace) -> dict[str, int]:
    topics: list[str] = list(args.topic)
    if len(set(topics)) != len(topics):
        raise ConfigInvalid("--topic: one is named twice")
    if args.bootstrap is not None:
        return asyncio.run(count_partitions(args.bootstrap, topics))
    counts: list[int] = list(args.partitions)
    if len(counts) == 1:
        counts *= len(topics)
    if len(counts) != len(topics):
        raise ConfigInvalid(f"--partitions: {len(counts)} for {len(topics)} topics")
    return dict(zip(topics, counts, strict=True))
