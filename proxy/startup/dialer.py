"""Connections to brokers for clients: each is paired with one of a client's own.

In:    which broker, or any.  Out: `UpstreamLink`s.
"""

from __future__ import annotations

from keylane.config.node import ProxyConfig
from keylane.errors import BrokerUnreachable
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.net.upstream import UpstreamLink


class Dialer:
    """Connects as the configuration says; brokers that cannot be reached are logged."""

    def __init__(self, config: ProxyConfig, cluster: Cluster) -> None:
        self._config, self._cluster = config, cluster

    async def any_broker(self) -> UpstreamLink:
        """To a bootstrap address, or known broker, that answers; else one that can be reached.

        A broker that hangs takes connections: a client that was paired with it would find
        nothing else behind the one address that it knows. Raises: BrokerUnreachable.
        """
        return await self._connect(await self._cluster.links.awake_first())

    async def broker(self, node_id: int) -> UpstreamLink:
        """To one broker, where it is now. Raises: BrokerUnreachable."""
        broker = self._cluster.brokers[node_id]
        return await self._connect([(broker.host, broker.port)])

    async def _connect(self, addresses: list[tuple[str, int]]) -> UpstreamLink:
        """To the first of these that can be reached."""
        reasons = []
        for host, port in addresses:
            opening = UpstreamLink.open(
                host,
                port,
                response_bytes_max=self._config.response_bytes_max,
                tls=self._cluster.security.upstream,
            )
            try:
                return await self._cluster.links.reach.watch(host, port, opening)
            except BrokerUnreachable as error:
                reasons.append(str(error))
        for host, port in addresses:
            self._cluster.links.reach.turn_away(host, port)
        raise BrokerUnreachable("; ".join(reasons))
