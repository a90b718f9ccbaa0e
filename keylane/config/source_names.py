"""Names that Kafka's improvement proposals give to what keylane's keys do.

Source: the KIP draft of individual commits and key ranges, "New Configurations".

A name in `SAME` can be written in the place of the key, in a file and with `--set`: both mean the
same. Others mean the same for one topic or one client, where the key has a list.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SAME: Final[Mapping[str, str]] = {
    "accept.individual.commit": "accept_individual_commit",
    "max.bytes.key.range.cache": "cache_bytes_max",
    # The draft's text calls it so in one place, its table never.
    "max.bytes.key.range.hashing": "cache_bytes_max",
    "max.bytes.fetcher.filtering": "filtering_bytes_max",
    "max.individual.commits": "individual_commits_max",
}
RELATED: Final[Mapping[str, str]] = {
    "accept.range.fetch": "accept_range_fetch",
    "allow.individual.commit": "refuse_individual_commit",
    "reserve.message.value.range.fetch": "lanes",
}
JOURNAL_SEGMENT_NAME: Final = "individual.commit.log.segment.bytes"
JOURNAL_SEGMENT_BYTES: Final = 10 * 1024**2
"""Of the journal's topic when keylane makes it; later the brokers have it."""
CLIENT_RANGES_NAME: Final = "max.num.ranges.to.commit"
CLIENT_RANGES: Final = 10_000
"""Of the Python consumer: `max_num_ranges_to_commit`."""


def aliases_of(key: str) -> tuple[str, ...]:
    """Return the names of the documents for a key."""
    names = {**SAME, **RELATED}
    return tuple(name for name, found in names.items() if found == key)
