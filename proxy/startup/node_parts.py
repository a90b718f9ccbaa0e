"""This process among the nodes: its seat, its message to the others, and theirs.

Source: docs/decisions/020, 030, 033.
"""

from __future__ import annotations

from collections.abc import Callable
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
from keylane.proxy.share.lease_view import LeaseView
from keylane.proxy.startup.control_setup import ControlBase
from keylane.proxy.topics.node_values import Membership, NodeInfo

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
        self.group = None if base.config.node is None else self._make_group()
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

    async def _drain(self) -> None:
        await self._shared().groups.drain()

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
        )

    def _on_membership(self, membership: Membership) -> None:
        """Take in a new agreement of the nodes: members, and the owners of groups."""
        shared = self._shared()
        shared.update_nodes(membership)
        self._stats.node_generations += 1
        shared.groups.note_readers(node.journal for node in membership.nodes)
        shared.groups.drop_lost()
        shared.ordered.take_offers()
