"""Origins of values: where a key of the configuration was set.

A worker gets its configuration in a file that its parent wrote. The parent passes on in a variable
where each value was set before, so that a worker names the file that an operator can change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, get_args

from keylane.config.node import ProxyConfig

Source = Literal["default", "file", "environment", "flag", "program"]
"""`program`: set by code that runs a node inside another program."""
SOURCES: Final = frozenset(get_args(Source))
ORIGINS_VARIABLE: Final = "KEYLANE_ORIGINS"
"""Set by the parent of workers for them."""


class Origin(NamedTuple):
    """The place that set a value."""

    source: Source
    place: str | None = None
    """The file, the variable or the flag."""


DEFAULT: Final = Origin("default")
BY_PROGRAM: Final = Origin("program")


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A checked configuration, and the place of each value that is no default."""

    config: ProxyConfig
    origins: Mapping[str, Origin]

    @classmethod
    def of(cls, config: ProxyConfig) -> LoadedConfig:
        """Return what is known of a configuration that was made in code."""
        return cls(config, dict.fromkeys(config.model_fields_set, BY_PROGRAM))

    def origin_of(self, key: str) -> Origin:
        """Return where the value of a key was set."""
        return self.origins.get(key, DEFAULT)

    def text_for_worker(self, worker: ProxyConfig) -> str:
        """Return the text of `ORIGINS_VARIABLE` for a worker with this configuration."""
        workers = self.origin_of("workers")
        origins = {
            # What a worker has for itself (its number, its ports) comes of the count of workers.
            key: self.origin_of(key)
            if getattr(worker, key) == getattr(self.config, key)
            else workers
            for key in worker.model_fields_set
        }
        return json.dumps(origins)


def read_variable(text: str | None) -> dict[str, Origin]:
    """Read the text of `ORIGINS_VARIABLE`; what is no text of a parent's counts as none."""
    if not text:
        return {}
    try:
        values = json.loads(text)
    except ValueError:
        return {}
    if not isinstance(values, dict):
        return {}
    return {
        key: Origin(entry[0], entry[1])
        for key, entry in values.items()
        if isinstance(entry, list) and len(entry) == 2 and entry[0] in SOURCES
    }
