"""Every key of the configuration: its value, its default, and the place that set it.

Source: docs/control-api.md (`GET /config`). Nothing here needs a node that runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from keylane.config.memory import MemoryConfig
from keylane.config.node import ProxyConfig
from keylane.config.origins import DEFAULT, LoadedConfig, Origin, Source
from keylane.config.security import PASSWORD_VARIABLE, SecurityConfig
from keylane.config.source_names import (
    CLIENT_RANGES,
    CLIENT_RANGES_NAME,
    JOURNAL_SEGMENT_BYTES,
    JOURNAL_SEGMENT_NAME,
    aliases_of,
)

MASK: Final = "********"
SECRET_WORDS: Final = ("password", "secret", "token")
"""A key that ends with one of them holds a secret; one that ends with `_file` holds a path."""
ORDER: Final = (
    *(key for key in ProxyConfig.model_fields if key not in MemoryConfig.model_fields),
    *(key for key in MemoryConfig.model_fields if key not in SecurityConfig.model_fields),
    *SecurityConfig.model_fields,
)
"""As on the page of the configuration: what most nodes set comes first."""
PASSWORD_KEY: Final = "login_password"  # noqa: S105 - the key's name
MEMORY_KEY: Final = "memory_max"
MACHINE: Final = "machine"
"""Its memory, or the limit of its container."""
SWITCHES: Final = "/switches"
Level = Literal["node", "topic", "client"]
FIXED: Final[tuple[tuple[str, int, Level, str], ...]] = (
    (JOURNAL_SEGMENT_NAME, JOURNAL_SEGMENT_BYTES, "topic",
     ("Segment size with which keylane makes its journal's topic. Later it is the topic's own "
     "setting at the brokers.")),
    (CLIENT_RANGES_NAME, CLIENT_RANGES, "client",
     ("Setting of the Python consumer, `max_num_ranges_to_commit`: a commit does not wait for its "
     "timer when more ranges have gathered.")),
)  # fmt: skip
"""Names of the documents that are no key of a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """One key."""

    key: str
    value: Any
    """The value in force, as JSON has it; a mask in the place of a secret."""
    default: Any
    """None: there is no default, or it is none."""
    source: Source
    place: str | None
    """The file, the variable or the flag; None: the default holds."""
    aliases: tuple[str, ...]
    """Names in Kafka's improvement proposals."""
    is_required: bool = False
    adjusted_by: str | None = None
    """Maker of the value in force out of the one that was set: `memory_max`, `machine` (for
    `memory_max` itself), or `/switches`."""
    level: Level = "node"
    """`topic` and `client`: no key of a node, but a name of the documents."""
    text: str
    """Meaning of the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigReport:
    """All keys, in the order of docs/configuration.md."""

    keys: tuple[ConfigKey, ...]


def explain(
    loaded: LoadedConfig,
    *,
    in_force: ProxyConfig | None = None,
    switched: Mapping[str, Any] | None = None,
    has_password: bool = False,
) -> ConfigReport:
    """Report every key.

    in_force: with the bounds that follow from `memory_max`, at a node that runs.
    switched: values that `PUT /switches` has put in the place of the configuration's.
    has_password: `KEYLANE_LOGIN_PASSWORD` is set; its value is never asked for.
    """
    switched = switched or {}
    keys = [_report(loaded, key, in_force or loaded.config, switched) for key in ORDER]
    return ConfigReport(keys=(*keys, _password(has_password=has_password), *_fixed()))


def _report(
    loaded: LoadedConfig, key: str, in_force: ProxyConfig, switched: Mapping[str, Any]
) -> ConfigKey:
    field = ProxyConfig.model_fields[key]
    value, adjusted_by = getattr(in_force, key), None
    if value != getattr(loaded.config, key):
        adjusted_by = MACHINE if key == MEMORY_KEY else MEMORY_KEY
    if key in switched and switched[key] != value:
        value, adjusted_by = switched[key], SWITCHES
    origin = loaded.origin_of(key)
    default = None if field.default is PydanticUndefined else field.default
    return ConfigKey(
        key=key,
        value=_show(key, value),
        default=_plain(default),
        source=origin.source,
        place=origin.place,
        aliases=aliases_of(key),
        is_required=field.is_required(),
        adjusted_by=adjusted_by,
        text=field.description or "",
    )


def _password(*, has_password: bool) -> ConfigKey:
    """keylane's own password may be in a variable, and in no key."""
    origin = Origin("environment", PASSWORD_VARIABLE) if has_password else DEFAULT
    return ConfigKey(
        key=PASSWORD_KEY,
        value=MASK if has_password else None,
        default=None,
        source=origin.source,
        place=origin.place,
        aliases=(),
        text=f"keylane's own password, if `{PASSWORD_VARIABLE}` holds it; a file and flags cannot.",
    )


def _fixed() -> Iterator[ConfigKey]:
    """Yield the names of the documents that are set elsewhere."""
    for name, value, level, text in FIXED:
        yield ConfigKey(
            key=name,
            value=value,
            default=value,
            source=DEFAULT.source,
            place=None,
            aliases=(),
            level=level,
            text=text,
        )


def _show(key: str, value: Any) -> Any:
    """Return the value as JSON has it; a secret is masked."""
    if value is not None and key.endswith(SECRET_WORDS):
        return MASK
    return _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return {key: _show(key, part) for key, part in value.model_dump(mode="json").items()}
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    return value
