"""Sources of a node's configuration: a YAML file, the environment, the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_origin

import yaml
from pydantic import ValidationError

from keylane.config.node import ProxyConfig
from keylane.errors import ConfigInvalid

ENVIRONMENT_PREFIX: Final = "KEYLANE_"
PLAN_SUFFIX: Final = ".json"
"""Ending by which the command line knows a plan's file from a count."""


def load_config(
    *, path: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]
) -> ProxyConfig:
    """Build from file < environment < flags. Raises: ConfigInvalid, naming the key."""
    values: dict[str, Any] = _read_file(path) if path else {}
    for key in ProxyConfig.model_fields:
        text = environment.get(ENVIRONMENT_PREFIX + key.upper())
        if text is not None:
            values[key] = text
    values.update({key: value for key, value in flags.items() if value is not None})
    for key, field in ProxyConfig.model_fields.items():
        is_list = get_origin(field.annotation) is tuple
        if is_list and isinstance(values.get(key), str):  # a variable, or --set
            values[key] = _read_list(key, values[key])
    try:
        return ProxyConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigInvalid("; ".join(map(_describe, error.errors()))) from None


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


def _read_list(key: str, text: str) -> Any:
    """Read a list as YAML writes it."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigInvalid(f"{key}: {error}") from None


def _read_file(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigInvalid(f"{path}: {error}") from None
    if values is not None and not isinstance(values, dict):
        raise ConfigInvalid(f"{path}: expected a mapping of keys to values")
    return values or {}


def _describe(error: Any) -> str:
    place = ".".join(str(part) for part in error["loc"])
    # A text about several keys names them itself.
    return f"{place}{': ' if place else ''}{error['msg'].removeprefix('Value error, ')}"
