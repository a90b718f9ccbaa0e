"""What keylane knows of the cluster, from a link that the test answers for."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

import pytest
from kio.index import load_response_schema

from keylane.config.node import LaneRule, ProxyConfig
from keylane.errors import ConfigInvalid, UpstreamLost
from keylane.proxy.cluster import broker_links
from keylane.proxy.cluster import cluster as cluster_module
from keylane.proxy.cluster.cluster import Broker, Cluster
from keylane.proxy.topics.node_values import Membership, NodeInfo, NodeRule
from tests.transcript.entities import build, plain

ID = uuid.UUID(int=0xA1)


class FakeLink:
    """A service connection with scripted Metadata answers."""

    def __init__(self) -> None:
        self.version_max = {3: 13}
        self.is_open = True
        self.asked: list[dict[str, Any]] = []
        self.answers: list[dict[str, Any]] = []

    async def request(self, entity: Any) -> Any:
        self.asked.append(plain(entity))
        values = self.answers.pop(0)
        return build(load_response_schema(int(entity.__api_key__), int(entity.__version__)), values)

    def close(self) -> None:
        self.is_open = False


def node(number: int, *, host: str = "", rack: str | None = "r") -> dict[str, Any]:
    return {"node_id": number, "host": host or f"kafka{number}", "port": 9092, "rack": rack}


def topic(name: str | None, partitions: int, topic_id: Any = ID, error_code: int = 0) -> Any:
    entries = [
        {"partition_index": i, "leader_id": i + 1, "leader_epoch": 4} for i in range(partitions)
    ]
    return {"name": name, "topic_id": topic_id, "partitions": entries, "error_code": error_code}


@pytest.fixture
def link() -> FakeLink:
    return FakeLink()


@pytest.fixture
def cluster(monkeypatch, link) -> Cluster:
    """Its first bootstrap address is dead."""

    class Links:
        @staticmethod
        async def open(host: str, port: int, **_: Any) -> FakeLink:
            if host == "dead":
                raise UpstreamLost(f"broker at {host}:{port}: refused")
            link.is_open = True
            return link

    monkeypatch.setattr(broker_links, "ServiceLink", Links)
    rules = (LaneRule(topic="orders", lanes=4),)
    return Cluster(ProxyConfig(bootstrap="dead:1,kafka:9092", lanes=rules))


async def test_start_learns_brokers_and_topics(cluster, link) -> None:
    """Every broker gets its listener before any client gets its address."""
    bound: list[Broker] = []

    async def bind(brokers: Iterable[Broker]) -> None:
        bound.extend(brokers)

    cluster._on_brokers = bind
    link.answers.append({"brokers": [node(1), node(2)], "topics": [topic("orders", 2)]})

    await cluster.start()

    assert [broker.node_id for broker in bound] == [1, 2]
    assert cluster.registry.view("orders").layout.index_count == 8
    assert cluster.leaders[ID, 1] == (2, 4)
    assert link.asked[0]["topics"] is None and not link.asked[0]["allow_auto_topic_creation"]


async def test_a_partition_is_read_from_the_rack_of_its_leader(cluster, link) -> None:
    """Broker 1 in r1, broker 2 without a rack, broker 3 not known; no rack at all is nothing."""
    brokers = [node(1, rack="r1"), node(2, rack=None)]
    link.answers.append({"brokers": brokers, "topics": [topic("orders", 3)]})

    await cluster.start()

    assert cluster.read_racks(ID, 3) == (frozenset({"r1"}), frozenset(), frozenset())
    assert cluster.read_racks(uuid.UUID(int=99), 3) == ()


async def test_a_broker_that_moved_is_asked_where_it_is(cluster) -> None:
    """The brokers of each answer are passed on; FindCoordinator has no rack, which is no move."""
    reported: list[Broker] = []

    async def learn(brokers: Iterable[Broker]) -> None:
        reported.extend(brokers)

    schema: Any = load_response_schema(3, 12)
    coordinator: Any = load_response_schema(10, 3)
    cluster._on_brokers = learn
    await cluster.learn_brokers(build(schema, {"brokers": [node(1)]}).brokers)
    await cluster.learn_brokers((build(coordinator, node(1)),))
    assert reported == [Broker(node_id=1, host="kafka1", port=9092, rack="r")] * 2
    kept = await cluster.links.kept(("kafka1", 9092))

    await cluster.learn_brokers((build(coordinator, node(1, host="moved")),))

    assert reported[2] == Broker(node_id=1, host="moved", port=9092, rack="r")
    assert not kept.is_open


async def test_the_next_leader_is_learnt_when_a_leader_says_that_it_leads_no_more(
    cluster, link, monkeypatch
) -> None:
    """Brokers name the old one for a moment; it is asked for once, however many readers met it."""
    monkeypatch.setattr(cluster_module, "SEEK_PAUSES_S", (0.0, 0.0, 0.0, 0.0))
    link.answers.append({"topics": [topic("orders", 2)]})
    await cluster.start()
    elected = topic("orders", 2)
    elected["partitions"][1] |= {"leader_id": 1, "leader_epoch": 5}
    link.answers += [{"topics": [topic("orders", 2)]}, {"topics": [elected]}]
    later: list[Any] = []
    cluster.on_leader.append(lambda place, epoch: later.append((place, epoch)))

    for _ in range(2):
        cluster.seek_leader("orders", ID, 1, 4)
    await cluster._seeking["orders"]

    assert later == [((ID, 1), 5)] and cluster.leaders[ID, 1] == (1, 5)
    assert len(link.asked) == 3 and not cluster._seeking


async def test_a_topic_that_is_gone_is_forgotten(cluster, link) -> None:
    """After a complete refresh, and when it is asked for by name."""
    link.answers.append({"topics": [topic("orders", 2), topic("a", 1, uuid.UUID(int=5))]})
    await cluster.start()
    link.answers += [{"topics": [topic("orders", 2)]}, {"topics": [topic("orders", 0, None, 3)]}]

    await cluster.refresh()
    assert set(cluster.registry.topics) == {"orders"}
    await cluster.refresh_topic("orders")

    assert not cluster.registry.topics
    assert link.asked[2]["topics"][0]["name"] == "orders"


async def test_a_name_clash_stops_the_start_and_is_logged_later(cluster, link, caplog) -> None:
    """A real topic that is called like lanes: its data would be hidden."""
    answer = {"topics": [topic("x.lanes-4", 1), topic("orders", 2, uuid.UUID(int=9))]}
    link.answers += [answer, answer]

    with pytest.raises(ConfigInvalid, match=r"x\.lanes-4"):
        await cluster.start()
    await cluster.refresh()

    assert "x.lanes-4" in caplog.text and set(cluster.registry.topics) == {"orders"}


async def test_the_leader_is_learnt_anew(cluster, link) -> None:
    """And UpstreamLost when there is none, or the topic has gone."""
    no_one = topic("orders", 1)
    no_one["partitions"][0]["leader_id"] = -1
    link.answers += [{"topics": [topic("orders", 2)]}, {"topics": [no_one]}]

    assert await cluster.leader_of("orders", ID, 1) == (2, 4)
    with pytest.raises(UpstreamLost, match="orders partition 0"):
        await cluster.leader_of("orders", ID, 0)


async def test_an_old_cluster_is_refused(cluster, link) -> None:
    """Metadata v12 names topics by id; without it there are no lanes."""
    link.version_max = {3: 8}

    with pytest.raises(ConfigInvalid, match=r"Kafka 3\.1"):
        await cluster.start()


async def test_no_broker_can_be_reached(cluster, monkeypatch) -> None:
    """Every address is named with its reason."""

    class Dead:
        @staticmethod
        async def open(host: str, port: int, **_: Any) -> Any:
            raise UpstreamLost(f"broker at {host}:{port}: refused")

    monkeypatch.setattr(broker_links, "ServiceLink", Dead)

    with pytest.raises(UpstreamLost, match=r"dead:1: refused; broker at kafka:9092"):
        await cluster.start()


async def test_a_lost_connection_is_opened_again(cluster, link) -> None:
    """At the next question."""
    link.answers += [{"topics": []}, {"topics": []}]
    await cluster.start()
    link.is_open = False

    await cluster.refresh()

    assert link.is_open
    cluster.stop()
    assert not link.is_open


async def test_a_link_to_an_unknown_broker(cluster) -> None:
    """The number is named."""
    with pytest.raises(UpstreamLost, match="broker 9 is unknown"):
        await cluster.link_to(9)


def membership(lanes: int | None) -> Membership:
    """Nodes 1 and 2, the other one with so many lanes of each topic."""
    rules = () if lanes is None else (NodeRule(topic="*", lanes=lanes),)
    nodes = tuple(
        NodeInfo(
            number=number,
            bootstrap=("h", 1),
            rules=rules,
            lane_name_pattern="{topic}.lanes-{lanes}",
        )
        for number in (1, 2)
    )
    return Membership(generation_id=1, nodes=nodes, owners=())


def reported(caplog: pytest.LogCaptureFixture) -> list[str]:
    messages = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return messages


async def test_what_nodes_do_not_agree_on_is_logged_once(cluster, link, caplog) -> None:
    """At the membership, not at each answer; and that they agree again."""
    caplog.set_level("INFO", logger="keylane.cluster")
    answer = {"brokers": [node(1)], "topics": [topic("orders", 2), topic("b", 1, uuid.UUID(int=5))]}
    link.answers += [answer] * 2
    await cluster.start()
    assert cluster.node_rules == (NodeRule(topic="orders", lanes=4),)
    caplog.clear()

    cluster.update_nodes(1, membership(9))

    warning, *errors = reported(caplog)
    assert warning == (
        "nodes have other lane rules nodes=(2,) remedy=give all nodes the same `lanes` and "
        "lane_name_pattern"
    )
    assert [error.partition(" reason=")[0] for error in errors] == [
        "topic is not served topic=orders",
        "topic is not served topic=b",
    ]
    assert "4 lanes per partition of orders at this node (1); 9 lanes" in errors[0]

    cluster.update_nodes(1, membership(9))
    await cluster.refresh()
    assert reported(caplog) == []

    cluster.update_nodes(1, membership(4))
    assert [message.partition(" reason=")[0] for message in reported(caplog)] == [
        "topic is not served topic=b",  # for another reason than before: 4 lanes
        "nodes agree again topics=1 first=orders",
    ]


async def test_of_many_topics_some_are_named(cluster, link, caplog) -> None:
    """A glob may mean thousands."""
    topics = [topic(f"t{n}", 1, uuid.UUID(int=100 + n)) for n in range(50)]
    link.answers.append({"brokers": [node(1)], "topics": topics})
    await cluster.start()

    cluster.update_nodes(1, membership(9))

    messages = reported(caplog)
    assert len(messages) == 22
    assert messages[-1] == "topics are not served topics=50 named=20"


async def test_other_nodes_keep_to_the_partitions_of_lanes(cluster, link, caplog) -> None:
    """The fewest that any keeps to; a node that learns of it does not notify the others again."""
    joined: list[int] = []
    cluster._on_grown = lambda: joined.append(1)
    link.answers.append({"brokers": [node(1)], "topics": [topic("orders", 4)]})
    await cluster.start()

    cluster.update_nodes(1, pinning({str(ID): 3}, {str(ID): 2}))

    assert cluster.registry.pins() == {str(ID): 2} and joined == []
    assert "partitions were added" in caplog.text and "seen=2" in caplog.text


async def test_a_topic_that_grows_is_reported_to_other_nodes(cluster, link) -> None:
    """Once per count."""
    joined: list[int] = []
    cluster._on_grown = lambda: joined.append(1)
    for count in (2, 3, 3):
        link.answers.append({"brokers": [node(1)], "topics": [topic("orders", count)]})
        await cluster.refresh()

    assert joined == [1] and cluster.registry.pins() == {str(ID): 2}


async def test_a_layout_that_was_accepted_is_not_kept_back(monkeypatch, cluster, link) -> None:
    """Else no rolling restart could ever take a topic to its new partitions."""
    config = cluster._config.model_copy(update={"accept_layout": ("orders", "gone")})
    monkeypatch.setattr(cluster, "_config", config)
    link.answers.append({"brokers": [node(1)], "topics": [topic("orders", 4)]})
    await cluster.start()

    cluster.update_nodes(1, pinning({str(ID): 3}))

    assert cluster.registry.pins() == {}


def pinning(*pins: dict[str, int]) -> Membership:
    """Node 1, and one more for each of `pins`; all have the rules of node 1."""
    nodes = tuple(
        NodeInfo(
            number=number,
            bootstrap=("h", 1),
            rules=(NodeRule(topic="orders", lanes=4),),
            lane_name_pattern="{topic}.lanes-{lanes}",
            pinned=pinned,
        )
        for number, pinned in enumerate(({}, *pins), start=1)
    )
    return Membership(generation_id=1, nodes=nodes, owners=())


async def test_a_topic_that_is_gone_leaves_nothing(cluster, link, caplog) -> None:
    """Made anew under the same name it is reported as if it had never been there."""
    for count in (2, 3):
        link.answers.append({"brokers": [node(1)], "topics": [topic("orders", count)]})
        await cluster.refresh()
    other = uuid.UUID(int=0xB2)
    cluster.learn_topic(
        build(load_response_schema(3, 12), {"topics": [topic("x", 1, other)]}).topics[0]
    )

    cluster.forget_topics({ID})

    assert cluster.topic_ids() == {other} and set(cluster.leaders) == {(other, 0)}
    assert cluster.registry.grown == cluster._logged_grown == {} == cluster.registry.pins()
    assert cluster.registry.name_of_id(ID) is None


async def test_versions_are_those_of_the_broker(cluster, link) -> None:
    """Asked over the connection that is kept for questions."""
    cluster.brokers[1] = Broker(node_id=1, host="kafka", port=1, rack=None)

    assert await cluster.versions_of(1) == {3: 13}
