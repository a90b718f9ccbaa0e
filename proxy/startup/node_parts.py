"""This process among the nodes: its seat, its message to the others, and theirs.

Source: docs/decisions/020, 030, 033.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from keylane import __version__
from keylane.config.node import split_address
from keylane.errors import KeylaneError
from keylane.offsets.records.journal import FORMAT
from keylane.proxy.apis.shared.context import Shared
from keylane.proxy.control.server import ControlServer
from keylane.proxy.nodes.gate.seals import NodeTrust
from keylane.proxy.nodes.group import NodeGroup
from keylane.proxy.nodes.lone_seat import LoneSeat
from keylane.proxy.nodes.node_secrets import NodeSecrets
from keylane.proxy.nodes.process_mark import make_mark
from keylane.proxy.runtime.event_log import Kind, Severity
from keylane.proxy.share.lease_view import LeaseView
from keylane.proxy.startup.control_base import ControlBase, now_ms
from keylane.proxy.topics.node_roll import NodeRoll
from keylane.proxy.topics.node_values import Membership, NodeInfo

DISPUTES_NOTED_MAX: Final = 5
ANY_HOST: Final = ("0.0.0.0", "::")  # noqa: S104 - replaced in messages


class NodeParts:
    """A node with a number has `group`, one without `seat`, and one beside others neither."""

    def __init__(
        self,
        base: ControlBase,
        *,
        shared: Callable[[], Shared],
        control: Callable[[], ControlServer | None],
        on_failed: Callable[[KeylaneError], None],
    ) -> None:
        """Raises: ConfigInvalid (`node_secret_file`).

        shared, control: give parts that stand on the node's seat, so that they are made after it.
        """
        self._config, self._cluster, self._stats = base.config, base.cluster, base.stats
        self._secrets = NodeSecrets(base.config.node_secret_file)
        self._shared, self._control = shared, control
        self._note_event = base.event_log.note
        self.roll = NodeRoll(now_ms, base.event_log.note)
        """Nodes that were there lately."""
        self.group = None if base.config.node is None else self._make_group()
        self.is_draining = False
        """This node is to get no groups and no clients; not kept over a restart."""
        is_alone = base.config.node is None and not base.config.beside_others
        self.seat = self._make_seat(on_failed) if is_alone else None

    def _make_group(self) -> NodeGroup:
        group = NodeGroup(
            self._cluster,
            session_timeout_ms=self._config.node_session_timeout_ms,
            describe=self._node_info,
            on_membership=self._on_membership,
            trust=NodeTrust(self._secrets, self._count_stranger),
        )
        group.drain = self._drain
        return group

    def _make_seat(self, on_failed: Callable[[KeylaneError], None]) -> LoneSeat:
        seat = LoneSeat(
            self._cluster,
            session_timeout_ms=self._config.node_session_timeout_ms,
            describe=self._lone_info,
            on_membership=lambda _: self._shared().groups.drop_lost(),
            on_refused=on_failed,
            trust=NodeTrust(self._secrets, self._count_stranger),
        )
        seat.drain = self._drain
        return seat

    def lease_view(self) -> LeaseView:
        """Return the right to partitions of share groups."""
        group = self.group
        if group is None:
            return LeaseView()
        return LeaseView(has_lease=group.has_lease, has_time=group.has_time, breaks=group.breaks)

    def set_draining(self, *, is_draining: bool) -> bool:
        """Publish whether this node drains; False: it has said so already."""
        if self.group is None or self.is_draining == is_draining:
            return False
        self.is_draining = is_draining
        self.group.rejoin()
        return True

    async def _drain(self) -> None:
        await self._shared().groups.drain()

    def control_address(self) -> str:
        """Return `host:port` of this node's control port; empty: it has none."""
        control = self._control()
        return "" if control is None else control.address

    def _count_stranger(self) -> None:
        self._stats.node_strangers += 1

    def _lone_info(self) -> NodeInfo:
        """Return the message of the only node to one that comes later."""
        return NodeInfo(
            number=0,
            bootstrap=self._shared().bootstrap,
            version=__version__,
            lone=True,
            journal=FORMAT,
            process=make_mark(),
        )

    def _node_info(self) -> NodeInfo:
        """Return the message of this node to the others."""
        config, control, shared = self._config, self._control(), self._shared()
        assert config.node is not None, "asked for among many nodes"
        url = ""
        if control is not None:
            host, port = split_address(control.address)
            host = config.advertised_host if host in ANY_HOST else host
            host = config.control_advertise or host
            url = f"{control.scheme}://{host}:{port}"
        return NodeInfo(
            number=config.node,
            bootstrap=shared.bootstrap,
            brokers=dict(shared.addresses),
            rules=self._cluster.node_rules,
            pinned=self._cluster.registry.pins(),
            lane_name_pattern=config.lane_name_pattern or "",
            control=url,
            version=__version__,
            journal=FORMAT,
            is_draining=self.is_draining,
        )

    def _on_membership(self, membership: Membership) -> None:
        """Take in a new agreement of the nodes: members, and the owners of groups."""
        shared, registry = self._shared(), self._cluster.registry
        self.roll.update(membership)
        before = registry.disputes.among(registry.topics)
        shared.update_nodes(membership)
        self._note_disputes(before, registry.disputes.among(registry.topics))
        self._stats.node_generations += 1
        shared.groups.note_readers(node.journal for node in membership.nodes)
        shared.groups.drop_lost()
        shared.ordered.take_offers()

    def _note_disputes(self, before: Mapping[str, str], now: Mapping[str, str]) -> None:
        """Publish topics that are refused from now on, because nodes do not agree on them."""
        begun = [topic for topic in now if topic not in before]
        for topic in begun[:DISPUTES_NOTED_MAX]:
            self._note_event(
                Kind.REFUSED,
                f"Topic {topic} is refused: {now[topic]}.",
                severity=Severity.ERROR,
                topic=topic,
            )
        if len(begun) > DISPUTES_NOTED_MAX:
            self._note_event(
                Kind.REFUSED,
                f"{len(begun)} topics are refused, because nodes do not agree on their lanes.",
                severity=Severity.ERROR,
            )
