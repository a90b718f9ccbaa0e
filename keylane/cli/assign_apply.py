"""`keylane assign --apply`: a plan becomes the assignments of a running proxy, all at once.

Source: docs/control-api.md.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.request import Request

from keylane.cli.control_client import ControlTrust, control_request, open_control
from keylane.errors import ApplyRefused

TIMEOUT_S: Final = 60.0
ANSWER_BYTES_MAX: Final = 64 * 1024**2
Entries = Sequence[Mapping[str, Any]]
"""Parts of a client: topic, partition, ranges, as the control port has them."""


def apply_plan(
    control: str,
    planned: Mapping[str, Entries],
    topics: Collection[str],
    trust: ControlTrust | None = None,
) -> str:
    """Make the members' parts of `topics` what was planned; one line about it.

    The plan deals out these topics whole, so no other client keeps a part of them. What clients
    have of other topics stays.

    Raises: ApplyRefused, with what the proxy said; ConfigInvalid (files of `trust`).
    """
    trust = trust or ControlTrust()
    path = "/assignments"
    tag, reported = _call(control_request(control, path), trust)
    changes = plan_changes(reported["assignments"], planned, topics)
    body = json.dumps({"assignments": changes}).encode()
    headers = {"Content-Type": "application/json", "If-Match": tag}
    patch = control_request(control, path, data=body, headers=headers, method="PATCH")
    _, reported = _call(patch, trust)
    others = sorted(changes.keys() - planned.keys())
    lost = f"; taken from {', '.join(others)}" if others else ""
    return f"version {reported['version']}: {len(planned)} clients on {control}{lost}"


def plan_changes(
    before: Mapping[str, Entries], planned: Mapping[str, Entries], topics: Collection[str]
) -> dict[str, Entries | None]:
    """The assignments to set, or to delete (None), by client id."""
    changes: dict[str, Entries | None] = {}
    for client, parts in before.items():
        kept = [part for part in parts if part["topic"] not in topics]
        if client not in planned and len(kept) < len(parts):
            changes[client] = kept or None
    for member, parts in planned.items():
        kept = [part for part in before.get(member, ()) if part["topic"] not in topics]
        changes[member] = [*kept, *parts]
    return changes


def _call(request: Request, trust: ControlTrust) -> tuple[str, Any]:
    """The ETag and the document of an answer."""
    try:
        with open_control(request, trust, timeout_s=TIMEOUT_S) as answer:
            document = json.loads(answer.read(ANSWER_BYTES_MAX))
            return answer.headers.get("ETag", ""), document
    except HTTPError as error:
        with error:
            raise ApplyRefused(_problem(error.read(ANSWER_BYTES_MAX))) from None
    except (URLError, OSError, ValueError) as error:
        raise ApplyRefused(f"{request.host}: {error}") from None


def _problem(body: bytes) -> str:
    """Return the text of a problem document; the body itself when it is none."""
    try:
        problem = json.loads(body)
        place = f"{problem['field']}: " if problem.get("field") else ""
        return f"{problem['title']}: {place}{problem['detail']}"
    except (AttributeError, KeyError, TypeError, ValueError):
        return body[:200].decode(errors="replace")
