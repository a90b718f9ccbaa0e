"""Short forms of rules: `orders=16` on the command line, `{orders: 16}` in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from keylane.errors import ConfigInvalid

PLAN_SUFFIX: Final = ".json"
"""Ending by which a plan's file is known from a count."""


def parse_lane_rule(text: str) -> dict[str, Any]:
    """Read a `--lanes` value: `orders=16`, `shop-*=4`, `orders=plan.json`.

    Raises: ConfigInvalid.
    """
    topic, _, lanes = text.partition("=")
    if topic and lanes.isdigit():
        return {"topic": topic, "lanes": int(lanes)}
    if topic and lanes.endswith(PLAN_SUFFIX):
        return {"topic": topic, "plan": lanes}
    raise ConfigInvalid(
        f"--lanes {text!r}: expected TOPIC=COUNT such as orders=16, or TOPIC=PLAN{PLAN_SUFFIX}"
    )


def parse_group_rule(text: str) -> dict[str, Any]:
    """Read an `--assignor` value, `billing-*=key-range`. Raises: ConfigInvalid."""
    group, separator, assignor = text.rpartition("=")
    if not separator or not group:
        raise ConfigInvalid(f"--assignor {text!r}: expected GROUP=ASSIGNOR, as billing-*=key-range")
    return {"group": group, "assignor": assignor}


def parse_share_rule(text: str) -> dict[str, Any]:
    """Read a `--share-order` value, `billing-*=key`. Raises: ConfigInvalid."""
    group, separator, order = text.rpartition("=")
    if not separator or not group:
        raise ConfigInvalid(f"--share-order {text!r}: expected GROUP=ORDER, as billing-*=key")
    return {"group": group, "order": order}


def spread_rules(key: str, value: Any) -> Any:
    """Return rules as a list of mappings where they have a short form; all else as it is.

    `lanes` may be `{orders: 16, audit: audit.json}`, `groups` `{billing: key-range}`, and
    `share_groups` `{billing: key}`. The value of a name may be the rest of its rule, too.
    """
    if key not in SHORT_FORMS or not isinstance(value, Mapping):
        return value
    name_key, is_whole = SHORT_FORMS[key]
    if name_key in value:
        return value  # one rule that lacks its dash; the refusal shows the right form
    return [
        {name_key: name, **(rest if isinstance(rest, Mapping) else is_whole(rest))}
        for name, rest in value.items()
    ]


def _lanes_or_plan(value: Any) -> dict[str, Any]:
    is_plan = isinstance(value, str) and value.endswith(PLAN_SUFFIX)
    return {"plan" if is_plan else "lanes": value}


SHORT_FORMS: Final[Mapping[str, tuple[str, Callable[[Any], dict[str, Any]]]]] = {
    "lanes": ("topic", _lanes_or_plan),
    "groups": ("group", lambda value: {"assignor": value}),
    "share_groups": ("group", lambda value: {"order": value}),
}
"""Key of a rule's name, and what a bare value of that name means."""
