"""`keylane assign`: key ranges of members, printed, in pods, or applied to a running proxy.

Source: docs/control-api.md.

Exit codes: 0 done, 1 failed, 2 bad arguments.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args

import yaml

from keylane.assign import STRATEGY_NAMES, Assignment, assign, name_members
from keylane.cli.columns import align
from keylane.cli.control_client import (
    ControlTrust,
    add_trust_arguments,
    ask_control,
    control_request,
)
from keylane.cli.plan import load_range_plan
from keylane.errors import ConfigInvalid, ControlRefused, KafkaUnavailable
from keylane.keyrange.hash import HashName
from keylane.keyrange.space import KeyRange

ASK_TIMEOUT_MS: Final = 10_000
"""Half of aiokafka's default is enough to say that no broker answers."""
APPLY_TIMEOUT_S: Final = 60.0
POD_NAME_MAX: Final = 253
"""Kubernetes' bound on the name of an object (RFC 1123 subdomain)."""
STDOUT: Final = "-"
Entries = Sequence[Mapping[str, Any]]
"""Parts of a client: topic, partition, ranges, as the control port has them."""


def add_assign_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `assign` to the commands of the main parser."""
    parser = commands.add_parser(
        "assign",
        help="say which member reads which key ranges, without a group",
        description="Deal out every partition of the topics to the members, whole or in key"
        " ranges (both ends inclusive, in the hash space from 0 to 2^63-1).",
    )
    parser.add_argument("--topic", action="append", required=True, help="may be repeated")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--partitions",
        type=int,
        action="append",
        metavar="N",
        help="partitions of the topic; once for all topics, or once for each in their order",
    )
    source.add_argument("--bootstrap", metavar="HOST:PORT", help="ask this cluster for them")
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--members", type=int, metavar="N", help="member-0 to member-(N-1)")
    group.add_argument("--member", action="append", metavar="NAME", help="may be repeated")
    parser.add_argument(
        "--strategy",
        choices=STRATEGY_NAMES,
        default="sticky-load",
        help="round-robin and range cut a partition evenly by its members, sticky-load deals out"
        " lanes by their load (default: %(default)s)",
    )
    parser.add_argument("--lanes", type=int, metavar="N", help="lanes per partition (sticky-load)")
    parser.add_argument(
        "--hash",
        choices=get_args(HashName),
        default="xxh64",
        help="of keys; murmur2 needs --lanes (default: %(default)s)",
    )
    parser.add_argument(
        "--load",
        type=Path,
        action="append",
        default=[],
        metavar="PLAN.JSON",
        help="a range plan: cuts and load of a topic's lanes; may be repeated",
    )
    parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table")
    parser.add_argument(
        "--pods",
        metavar="DIR",
        help="write a Kubernetes ConfigMap per member into this folder, or to stdout for -",
    )
    parser.add_argument(
        "--apply",
        metavar="HOST:PORT",
        help="make it the assignments of a running proxy, members as client ids (its control port)",
    )
    add_trust_arguments(parser)
    parser.set_defaults(run=run_assign, parser=parser)


def run_assign(args: argparse.Namespace) -> int:
    """Print the assignment, or write the pods. Exit 2 on bad input, 1 when Kafka cannot be asked.

    Nothing is written before everything is known to be good.
    """
    parser: argparse.ArgumentParser = args.parser
    try:
        if args.hash != "xxh64" and (args.apply is not None or args.pods is not None):
            raise ConfigInvalid(
                f"--apply, --pods: client ids have key ranges by xxh64, not by {args.hash}; "
                "lanes of a group have the hash of their lane rule"
            )
        plans = [load_range_plan("--load", path) for path in args.load]
        topics = _count_partitions(args)
        assignment = assign(
            topics,
            name_members(args.members) if args.member is None else args.member,
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
    except ConfigInvalid as error:
        parser.error(str(error))  # one line on stderr, exit 2
    except (ControlRefused, KafkaUnavailable, OSError) as error:
        sys.stderr.write(f"keylane: {error}\n")
        return 1
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


def _count_partitions(args: argparse.Namespace) -> dict[str, int]:
    topics: list[str] = args.topic
    if len(set(topics)) != len(topics):
        raise ConfigInvalid("--topic: one is named twice")
    if args.bootstrap is not None:
        return asyncio.run(_ask_cluster(args.bootstrap, topics))
    counts: list[int] = args.partitions
    if len(counts) == 1:
        counts *= len(topics)
    if len(counts) != len(topics):
        raise ConfigInvalid(f"--partitions: {len(counts)} for {len(topics)} topics")
    return dict(zip(topics, counts, strict=True))


async def _ask_cluster(bootstrap: str, topics: Sequence[str]) -> dict[str, int]:
    """Partition counts of the topics.

    Raises:
        ConfigInvalid: the cluster has no such topic.
        KafkaUnavailable: no broker answers.
    """
    # Loaded only when a cluster is asked: everything else of this command needs no client.
    from aiokafka.admin import AIOKafkaAdminClient  # noqa: PLC0415
    from aiokafka.errors import KafkaError  # noqa: PLC0415

    admin = AIOKafkaAdminClient(
        bootstrap_servers=bootstrap, client_id="keylane-assign", request_timeout_ms=ASK_TIMEOUT_MS
    )
    try:
        await admin.start()
        described = await admin.describe_topics(list(topics))
    except (KafkaError, OSError, ValueError) as error:
        raise KafkaUnavailable(f"{bootstrap} cannot be asked: {error}") from None
    finally:
        await admin.close()
    found = {answer["topic"]: answer for answer in described}
    for topic in topics:
        if topic not in found or found[topic]["error_code"] != 0:
            code = found[topic]["error_code"] if topic in found else "none"
            raise ConfigInvalid(f"--topic {topic}: {bootstrap} answers with error code {code}")
    return {topic: len(found[topic]["partitions"]) for topic in topics}
