"""Settings that the control port changes, as its handlers see them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from keylane.proxy.topics.range_table import RangeTableHolder
from keylane.proxy.topics.settings_store import SettingsStore
from keylane.proxy.topics.switches import SwitchBoard

log = logging.getLogger("keylane.control")

NAMES_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings that can be changed while running."""

    store: SettingsStore
    assignments: RangeTableHolder
    switches: SwitchBoard


def report(
    request: web.Request, what: str, version: int, names: Sequence[str], *, replaces: bool = False
) -> None:
    """Log one line per change: its maker, its names, its version; no contents."""
    shown = ",".join(map(repr, names[:NAMES_SHOWN]))
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    log.info(
        "%s %s by=%s version=%d names=%s%s",
        what, "replaced" if replaces else "changed", request.remote, version, shown or "none", more,
    )  # fmt: skip
