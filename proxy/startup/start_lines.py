"""Lines of the log at a start: what starts, where, and which lane rule is for which topics."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from itertools import islice
from typing import Final

import keylane
from keylane.config.node import ProxyConfig
from keylane.kernel.library import are_compiled
from keylane.kernel.warmup import warm_up
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.topics.rule_matches import MatchedRule, match_rules

log = logging.getLogger("keylane.server")

NAMED_MAX: Final = 20
"""Topics of one rule that are named; a glob may mean thousands."""
BROKERS_NAMED_MAX: Final = 10


def log_begin(config: ProxyConfig) -> None:
    """Log what starts; until Kafka answers nothing else is known."""
    node = "" if config.node is None else f" node={config.node}"
    log.info(
        "starting version=%s bootstrap=%s listen=%s%s",
        keylane.__version__, config.bootstrap, config.listen, node,
    )  # fmt: skip


def warm_up_logged() -> None:
    """Load the kernels; log a compilation before it begins, and how long it took."""
    if are_compiled():
        warm_up()
        return
    log.info("kernels are compiled for this processor, once; this takes up to a minute")
    began_s = time.monotonic()
    warm_up()
    log.info("kernels are compiled seconds=%.1f", time.monotonic() - began_s)


def log_cluster(cluster: Cluster) -> None:
    """Log the cluster that was found."""
    named = _named((each.node_id, each.host, each.port) for each in cluster.brokers.values())
    log.info("connected to Kafka cluster=%s brokers=%s", cluster.cluster_id, named)


def log_rules(config: ProxyConfig, cluster: Cluster) -> None:
    """Log the topics of each lane rule; a rule without any is a warning."""
    for line in match_rules(config.lanes, cluster.registry):
        _log_rule(line)


def log_listeners(bootstrap: str, brokers: Iterable[tuple[int, tuple[str, int]]]) -> None:
    """Log the addresses that clients get."""
    named = _named((broker, *address) for broker, address in brokers)
    log.info("clients connect to bootstrap=%s brokers=%s", bootstrap, named)


def _named(brokers: Iterable[tuple[int, str, int]]) -> str:
    """Return `1=host:port,2=host:port`, by number; those beyond the bound are counted."""
    found = sorted(brokers)
    named = ",".join(f"{number}={host}:{port}" for number, host, port in found[:BROKERS_NAMED_MAX])
    more = len(found) - BROKERS_NAMED_MAX
    return f"{named} and {more} more" if more > 0 else named


def _log_rule(matched: MatchedRule) -> None:
    if not matched.topics:
        log.warning(
            "lane rule matches no topic rule=%s remedy=make the topic, or correct the name; "
            "a topic that comes later gets its lanes",
            matched.rule,
        )
        return
    for topic in islice(matched.topics, NAMED_MAX):
        log.info("lanes of %s", topic)
    if len(matched.topics) > NAMED_MAX:
        more = len(matched.topics) - NAMED_MAX
        log.info("lanes of more topics rule=%s more=%d", matched.rule, more)
