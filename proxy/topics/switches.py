"""Permissions that an operator sets while the proxy runs: lanes, individual commits, sharing.

Source: docs/decisions/019.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from keylane.config.node import ProxyConfig
from keylane.errors import AssignmentInvalid
from keylane.proxy.topics.range_table import TOPIC_NAME, check_client_id

ACCEPT_INDIVIDUAL_COMMIT: Final = "accept.individual.commit"
ACCEPT_RANGE_FETCH: Final = "accept.range.fetch"
ALLOW_INDIVIDUAL_COMMIT: Final = "allow.individual.commit"
"""Names of the switches on the control port."""
SWITCHES_MAX: Final = 500
"""Topics, and clients, that a switch may be set for; together they fit in one record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """Values set while running, in one version. A value that was not set is as configured."""

    version: int = 0
    accept_individual_commit: bool | None = None
    """Value of the broker level; None: as configured."""
    topics: Mapping[str, bool] = field(default_factory=dict)
    """`accept.range.fetch` by the broker's name of the topic."""
    clients: Mapping[str, bool] = field(default_factory=dict)
    """`allow.individual.commit` by client id."""

    def __post_init__(self) -> None:
        """Check the bounds. Raises: AssignmentInvalid."""
        for topic in self.topics:
            if not TOPIC_NAME.fullmatch(topic):
                raise AssignmentInvalid("no name of a topic", topic=topic)
        for client_id in self.clients:
            check_client_id(client_id)
        for kind, named in (("topics", self.topics), ("clients", self.clients)):
            if len(named) > SWITCHES_MAX:
                raise AssignmentInvalid(f"{len(named)} {kind}, at most {SWITCHES_MAX} have room")
        object.__setattr__(self, "topics", MappingProxyType(dict(sorted(self.topics.items()))))
        object.__setattr__(self, "clients", MappingProxyType(dict(sorted(self.clients.items()))))

    @property
    def is_empty(self) -> bool:
        """Return whether all is as configured."""
        return self.accept_individual_commit is None and not self.topics and not self.clients


class SwitchBoard:
    """The present switches: the set values, else the configured ones.

    `current` is replaced as a whole; the questions are cheap enough for every request.
    """

    def __init__(self, config: ProxyConfig) -> None:
        self._config = config
        self.current = Switches()

    @property
    def accepts_individual_commit(self) -> bool:
        """Return whether commits of lanes and key ranges are accepted."""
        was_set = self.current.accept_individual_commit
        return self._config.accept_individual_commit if was_set is None else was_set

    def accepts_range_fetch(self, topic: str, *, is_lane_view: bool = False) -> bool:
        """Return whether parts of a topic's partitions may be fetched.

        topic: the broker's name. is_lane_view: the client sees lanes, also by a lane name; these
        are allowed by default, since the operator has configured them. Key ranges are not.
        """
        was_set = self.current.topics.get(topic)
        if was_set is not None:
            return was_set
        return self.configured_range_fetch(topic, is_lane_view=is_lane_view)

    def allows_individual_commit(self, client_id: str) -> bool:
        """Return whether a client gets a part of a partition, rather than whole ones."""
        was_set = self.current.clients.get(client_id)
        return self.configured_sharing(client_id) if was_set is None else was_set

    @property
    def configured_individual_commit(self) -> bool:
        """Return the start value of the broker level."""
        return self._config.accept_individual_commit

    def configured_range_fetch(self, topic: str, *, is_lane_view: bool = False) -> bool:
        """Return the start value of a topic."""
        for rule in self._config.lanes:
            if rule.matches(topic):
                return rule.accept_range_fetch
        if is_lane_view or topic.startswith("__"):
            return is_lane_view
        return any(fnmatch.fnmatchcase(topic, glob) for glob in self._config.accept_range_fetch)

    def configured_sharing(self, client_id: str) -> bool:
        """Return the start value of a client."""
        globs = self._config.refuse_individual_commit
        return not any(fnmatch.fnmatchcase(client_id, glob) for glob in globs)
