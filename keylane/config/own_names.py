"""Names that keylane has in a cluster for itself: topics, and transactional ids.

Source: docs/decisions/005, 019, 021, 022, 034.
"""

from __future__ import annotations

from typing import Final

JOURNAL_TOPIC: Final = "__individual_commit_offsets"
SETTINGS_TOPIC: Final = "__keylane_settings"
SCANS_TOPIC: Final = "__keylane_scans"
OWN_TOPICS: Final = frozenset({JOURNAL_TOPIC, SETTINGS_TOPIC, SCANS_TOPIC})
SETTINGS_ID: Final = "keylane-settings"
JOURNAL_ID_PREFIX: Final = "keylane-ic-"
OWN_ID_START: Final = b"keylane-"
"""Prefix of all of them."""


def is_own_id(transactional_id: str) -> bool:
    """Return whether a transactional id is keylane's: its next epoch locks out a node."""
    return transactional_id == SETTINGS_ID or transactional_id.startswith(JOURNAL_ID_PREFIX)
