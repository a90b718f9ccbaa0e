"""Settings that the control port changes, as its handlers see them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from aiohttp import web

from keylane.proxy.topics.range_table import Assignment, RangeTable, RangeTableHolder
from keylane.proxy.topics.switches import SwitchBoard, Switches

log = logging.getLogger("keylane.control")

NAMES_SHOWN: Final = 20


class Store(Protocol):
    """Keeps settings (`proxy.topics.settings_store`); the holders are new when a change returns."""

    async def change_assignments(
        self, decide: Callable[[RangeTable], Mapping[str, Assignment | None]]
    ) -> RangeTable:
        """Apply what `decide` makes of the newest table.

        Raises: AssignmentInvalid, RangesOverlap, SettingsUnsaved; what `decide` raises.
        """

    async def change_switches(self, decide: Callable[[Switches], Switches]) -> Switches:
        """Put what `decide` makes of the newest switches in their place.

        Raises: SettingsUnsaved; what `decide` raises.
        """


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings that can be changed while running."""

    store: Store
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
