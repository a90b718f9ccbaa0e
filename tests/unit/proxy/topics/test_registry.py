"""Names and ids of topics: what is seen as lanes, what stays when the cluster changes."""

from __future__ import annotations

import uuid

import pytest

from keylane.config.node import LaneRule
from keylane.errors import ConfigInvalid
from keylane.keyrange.hash import XXH64
from keylane.keyrange.key_split import LaneCuts, even_split
from keylane.keyrange.space import HASH_MAX, KeyRange
from keylane.proxy.topics.agreement import LaneMeanings, node_rules
from keylane.proxy.topics.registry import TopicRegistry

ID, OTHER_ID = uuid.UUID(int=1), uuid.UUID(int=2)


def make(*rules: LaneRule, pattern: str | None = "{topic}.lanes-{lanes}") -> TopicRegistry:
    return TopicRegistry(rules, lane_name_pattern=pattern)


def orders(lanes: int = 4, topic: str = "orders") -> LaneRule:
    return LaneRule(topic=topic, lanes=lanes)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("orders", ("orders", 4)),
        ("plain", None),
        ("shop-a", ("shop-a", 2)),
        ("shop-a.lanes-8", ("shop-a", 8)),
        ("plain.lanes-16", ("plain", 16)),
        ("plain.lanes-1024", ("plain", 1024)),
        ("plain.lanes-1025", None),
        ("plain.lanes-0", None),
        ("plain.lanes-01", None),
        ("__consumer_offsets", None),
        ("__consumer_offsets.lanes-4", None),
        ("xlanes-4", None),
        (".lanes-4", None),
    ],
)
def test_what_a_name_stands_for(name, found) -> None:
    """A lane name comes before a glob; counts beyond the bound and internal topics are plain."""
    registry = make(orders(), orders(2, "shop-*"))

    assert registry.rule_of(name) == found
    assert registry.physical_name(name) == (found[0] if found else name)


def hashed(lanes: int = 12, topic: str = "orders") -> LaneRule:
    return LaneRule(topic=topic, lanes=lanes, hash="murmur2")


def test_all_names_of_a_topic_share_its_hash() -> None:
    """A group's positions do not say by which name it has committed them."""
    registry = make(hashed(), orders(4, "shop"))
    registry.learn("orders", ID, 3)
    registry.learn("shop", OTHER_ID, 3)

    views = [registry.view(name) for name in ("orders", "orders.lanes-6", "orders.lanes-3")]

    splits = [view.key_split(0) for view in views if view is not None]
    assert {split.key_hash for split in splits} == {registry.key_hash_of("orders")}
    assert [split.output_count for split in splits] == [12, 6, 3]
    assert registry.key_hash_of("shop") == XXH64
    plain = registry.view("shop")
    assert plain is not None
    assert plain.layout.hash == "xxh64"


def test_a_name_whose_lanes_have_no_place_in_the_hash_is_refused() -> None:
    """8 lanes are not 12 times or over a power of two; other topics are free."""
    registry = make(hashed())
    registry.learn("orders", ID, 3)
    registry.learn("shop", OTHER_ID, 3)

    with pytest.raises(ConfigInvalid, match=r"orders.lanes-8 needs 12 lanes or that times"):
        registry.view("orders.lanes-8")

    assert registry.is_refused("orders.lanes-8")
    assert not registry.is_refused("orders.lanes-24")
    assert registry.view("shop.lanes-8") is not None


def test_nodes_with_another_hash_do_not_agree() -> None:
    """Members would read records of one key twice or never; the reason names the hash."""
    registry = make(hashed())
    registry.learn("orders", ID, 3)
    others = LaneMeanings(node_rules((orders(12),), {}), "{topic}.lanes-{lanes}")

    registry.update_nodes(1, {2: others})

    (reason, *_) = registry.refusals_of("orders")
    assert "12 lanes per partition of orders by murmur2 at this node (1)" in reason
    assert registry.is_refused("orders.lanes-6")


def test_the_first_rule_that_fits_wins() -> None:
    """Two globs match: the order of the configuration decides."""
    registry = make(orders(3, "shop-a*"), orders(5, "shop-*"))

    assert registry.rule_of("shop-ab") == ("shop-ab", 3)


def test_without_a_pattern_no_name_is_a_lane_name() -> None:
    """`lane_name_pattern` empty: such a topic may exist, and is plain."""
    registry = make(orders(), pattern=None)
    registry.learn("orders.lanes-4", ID, 2)

    assert registry.rule_of("orders.lanes-4") is None
    assert registry.is_plain_id(ID)


def test_a_topic_with_a_lane_name_is_refused() -> None:
    """Its data would be hidden behind lanes of another topic."""
    registry = make(orders())

    with pytest.raises(ConfigInvalid, match=r"orders\.lanes-4"):
        registry.learn("orders.lanes-4", ID, 2)


def test_own_name_and_lane_name_have_ids_of_their_own() -> None:
    """The topic's own id stays; a lane name's id is stable over restarts and differs by name."""
    registry, after_restart = make(orders()), make(orders())
    for each in (registry, after_restart):
        each.learn("orders", ID, 2)

    own, renamed = registry.view("orders"), registry.view("orders.lanes-8")

    assert own is not None and renamed is not None
    assert (own.view_id, own.is_renamed, own.layout.index_count) == (ID, False, 8)
    assert (renamed.topic_id, renamed.is_renamed, renamed.layout.index_count) == (ID, True, 16)
    other, again = registry.view("orders.lanes-4"), after_restart.view("orders.lanes-8")
    assert other is not None and again is not None
    assert renamed.view_id not in (ID, other.view_id) and again.view_id == renamed.view_id
    assert registry.view_by_id(renamed.view_id) is renamed
    assert registry.view_by_id(ID) is own
    assert registry.view("orders") is own


def test_unknown_and_plain_topics_have_no_view() -> None:
    """None, by name and by id; only a known topic without lanes is plain."""
    registry = make(orders())
    registry.learn("plain", OTHER_ID, 1)

    assert registry.view("orders") is None and registry.view_by_id(ID) is None
    assert registry.view("plain") is None and registry.view_by_id(OTHER_ID) is None
    assert registry.is_plain_id(OTHER_ID) and not registry.is_plain_id(ID)
    assert registry.name_of_id(OTHER_ID) == "plain" and registry.id_of_name("plain") == OTHER_ID


@pytest.mark.parametrize("name", ["orders", "plain.lanes-4"])
def test_a_grown_topic_keeps_its_lanes(name) -> None:
    """Lane indexes depend on the partition count, whatever name the lanes are seen under."""
    registry = make(orders())
    registry.learn(name.removesuffix(".lanes-4"), ID, 2)
    before = registry.view(name)

    registry.learn(name.removesuffix(".lanes-4"), ID, 3)

    assert before is not None and registry.view(name) is before
    assert registry.grown == {before.topic: 3}


def test_a_grown_topic_without_lanes_just_grows() -> None:
    """Nothing stands on the old count; lanes made later use the new one."""
    registry = make(orders())
    registry.learn("plain", ID, 2)

    registry.learn("plain", ID, 3)

    assert registry.grown == {}
    assert registry.view("plain.lanes-2").layout.index_count == 6  # type: ignore[union-attr]


def test_an_old_answer_does_not_shrink_a_topic() -> None:
    """A broker that lags reports fewer partitions; Kafka never takes any away."""
    registry = make(orders())
    registry.learn("plain", ID, 4)
    before = registry.view("plain.lanes-2")

    registry.learn("plain", ID, 2)

    assert registry.view("plain.lanes-2") is before
    assert registry.topics["plain"].partition_count == 4


@pytest.mark.parametrize("name", ["orders", "orders.lanes-8", "plain.lanes-4"])
def test_a_topic_made_anew_forgets_its_old_id(name) -> None:
    """Data of the new topic must not be served to a client that asks by the old one's id."""
    registry = make(orders())
    topic = name.partition(".")[0]
    registry.learn(topic, ID, 2)
    before = registry.view(name)

    registry.learn(topic, OTHER_ID, 1)

    assert before is not None
    assert registry.view_by_id(before.view_id) is None and registry.view_by_id(ID) is None
    assert registry.name_of_id(ID) is None and not registry.is_plain_id(ID)
    assert registry.view(name).topic_id == OTHER_ID  # type: ignore[union-attr]
    assert registry.view(name).layout.partition_count == 1  # type: ignore[union-attr]


def test_a_deleted_topic_is_forgotten() -> None:
    """Neither name nor ids lead anywhere any more."""
    registry = make(orders())
    registry.learn("orders", ID, 2)
    renamed = registry.view("orders.lanes-8")

    registry.forget("orders")

    assert renamed is not None
    assert registry.view("orders") is None and registry.view_by_id(renamed.view_id) is None
    assert registry.views == {} and registry.topics == {} and registry.lane_topics() == ()


@pytest.mark.parametrize("name", ["orders", "plain.lanes-4"])
def test_a_pinned_count_outlives_what_the_cluster_reports(name) -> None:
    """Groups committed on two partitions: four that are reported again and again change nothing."""
    registry = make(orders())
    topic = name.partition(".")[0]
    registry.learn(topic, ID, 4)

    registry.pin_partitions(topic, 2)
    registry.learn(topic, ID, 4)

    assert registry.view(name).layout.partition_count == 2  # type: ignore[union-attr]
    assert registry.grown == {topic: 4}


def test_reserve_is_that_of_the_topic_under_every_name() -> None:
    """`reserve_message_value` belongs to the topic; without a rule records are kept."""
    rule = LaneRule(topic="orders", lanes=4, reserve_message_value=False)
    registry = make(rule)
    registry.learn("orders", ID, 1)
    registry.learn("plain", OTHER_ID, 1)

    reserved = {
        name: registry.view(name).reserve  # type: ignore[union-attr]
        for name in ("orders", "orders.lanes-2", "plain.lanes-2")
    }

    assert reserved == {"orders": False, "orders.lanes-2": False, "plain.lanes-2": True}


def test_lane_topics_are_those_with_a_rule() -> None:
    """Patterns of KIP-848 members are held against these."""
    registry = make(orders(), orders(2, "shop-*"))
    for number, name in enumerate(("orders", "plain", "shop-b")):
        registry.learn(name, uuid.UUID(int=number + 1), 1)

    assert registry.lane_topics() == ("orders", "shop-b")


PLANS = {"orders": LaneCuts.of([(5,), (9,)]), "shop.lanes-2": LaneCuts.of([(7,)])}


def planned() -> TopicRegistry:
    """`orders` cut by a plan for two partitions, `shop.lanes-2` by one for one."""
    rules = tuple(LaneRule(topic=name, plan="plan.json") for name in PLANS)
    return TopicRegistry(rules, lane_name_pattern="{topic}.lanes-{lanes}", plans=PLANS)


def test_a_plan_cuts_the_lanes_of_its_name() -> None:
    """Its own name, or a lane name; another lane name of the topic has equal ranges."""
    registry = planned()
    registry.learn("orders", ID, 2)
    registry.learn("shop", OTHER_ID, 1)

    cuts = {
        name: [registry.view(name).key_split(0).cuts]  # type: ignore[union-attr]
        for name in ("orders", "orders.lanes-2", "shop.lanes-2")
    }

    assert cuts == {
        "orders": [(5,)],
        "orders.lanes-2": [even_split(2).cuts],
        "shop.lanes-2": [(7,)],
    }
    view = registry.view("orders")
    assert view is not None and view.key_ranges(3) == (KeyRange(9, HASH_MAX),)
    assert registry.view("shop") is None and registry.rule_of("shop") is None
    assert registry.fingerprint_of("orders") == PLANS["orders"].fingerprint
    assert registry.fingerprint_of("orders.lanes-2") == b""


def test_a_topic_that_its_plan_does_not_fit_is_refused_by_name_and_counts() -> None:
    """Neither lanes nor plain; other names of the topic are served."""
    registry = planned()
    registry.learn("orders", ID, 3)

    with pytest.raises(ConfigInvalid, match="plan of orders is for 2 partitions, topic orders has"):
        registry.view("orders")
    with pytest.raises(ConfigInvalid, match="has 3"):
        registry.view_by_id(ID)

    assert len(registry.refusals_of("orders")) == 1 and registry.refusals_of("shop") == []
    names = ("orders", "orders.lanes-2", "shop.lanes-2", "shop")
    assert [registry.is_refused(name) for name in names] == [True, False, False, False]
    assert registry.view("orders.lanes-2") is not None


def test_partitions_added_behind_a_plan_are_not_seen() -> None:
    """The pinned count is the plan's, so its lanes go on."""
    registry = planned()
    registry.learn("orders", ID, 3)

    registry.pin_partitions("orders", 2)

    assert registry.view("orders").layout.partition_count == 2  # type: ignore[union-attr]
    assert registry.grown == {"orders": 3}


def others(*rules: LaneRule, pattern: str = "{topic}.lanes-{lanes}") -> dict[int, LaneMeanings]:
    """Node 2 with these rules."""
    return {2: LaneMeanings(node_rules(rules, {}), pattern)}


def test_a_topic_that_nodes_see_as_other_lanes_is_refused_until_they_agree() -> None:
    """A view made before does not linger; other names stay, as the very same views."""
    registry = make(orders(), orders(2, "shop"))
    registry.learn("orders", ID, 2)
    registry.learn("shop", OTHER_ID, 1)
    before, shop, renamed = (registry.view(n) for n in ("orders", "shop", "orders.lanes-3"))

    registry.update_nodes(1, others(orders(16), orders(2, "shop")))

    assert list(registry.disputes.dissenters) == [2] and list(
        registry.disputes.among(registry.topics)
    ) == ["orders"]
    assert registry.is_refused("orders") and registry.refusals_of("orders")
    for look in (lambda: registry.view("orders"), lambda: registry.view_by_id(ID)):
        with pytest.raises(ConfigInvalid, match=r"on orders: 4 lanes .* \(1\); 16 lanes .* node 2"):
            look()
    assert registry.view("shop") is shop and registry.view("orders.lanes-3") is renamed

    registry.update_nodes(1, others(orders(), orders(2, "shop")))

    assert registry.view("orders") == before and registry.view_by_id(ID) == before
    assert (
        list(registry.disputes.dissenters) == [] and registry.disputes.among(registry.topics) == {}
    )
    assert not registry.is_refused("orders")


def test_a_topic_that_is_plain_here_and_lanes_elsewhere_does_not_pass_for_plain() -> None:
    """Its requests must not be relayed; its partitions are not pinned for that."""
    registry = make()
    registry.learn("orders", ID, 2)
    assert registry.is_plain_id(ID) and registry.rule_of("orders") is None

    registry.update_nodes(1, others(orders(16)))

    assert not registry.is_plain_id(ID) and registry.rule_of("orders") == ("orders", 16)
    assert registry.lane_topics() == ("orders",)
    with pytest.raises(ConfigInvalid, match="a plain topic at this node"):
        registry.view("orders")
    registry.learn("orders", ID, 3)
    assert registry.topics["orders"].partition_count == 3 and registry.grown == {}

    registry.update_nodes(1, {})

    assert registry.is_plain_id(ID) and registry.view("orders") is None


def test_lane_topics_follow_topics_and_nodes() -> None:
    """They are found once, and anew after each change."""
    registry = make(orders())
    shown = [registry.lane_topics()]
    registry.learn("orders", ID, 2)
    shown.append(registry.lane_topics())
    registry.learn("shop", uuid.UUID(int=9), 1)
    shown.append(registry.lane_topics())
    registry.update_nodes(1, others(orders(), orders(2, "shop")))
    shown.append(registry.lane_topics())
    registry.forget("orders")
    shown.append(registry.lane_topics())

    assert shown == [(), ("orders",), ("orders",), ("orders", "shop"), ("shop",)]


def test_a_lane_name_that_only_other_nodes_know() -> None:
    """It stands for their topic and is refused; a real topic of that name is still learnt."""
    registry = make(pattern=None)
    registry.learn("orders", ID, 2)

    registry.update_nodes(1, others())

    assert registry.physical_name("orders.lanes-4") == "orders"
    assert registry.is_refused("orders.lanes-4") and not registry.is_refused("orders")
    registry.learn("orders.lanes-4", OTHER_ID, 1)
    assert "orders.lanes-4" in registry.topics


def test_names_that_were_judged_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients may ask for any number of names."""
    monkeypatch.setattr("keylane.proxy.topics.agreement.NAMES_JUDGED_MAX", 3)
    registry = make(orders())
    registry.update_nodes(1, others())

    judged = [registry.is_refused(name) for name in ("orders", "a", "b", "c", "d", "orders")]

    assert judged == [True, False, False, False, False, True]
    assert len(registry.disputes._judged) <= 3


def test_partitions_that_another_node_keeps_to() -> None:
    """A node that starts after a topic has grown shows the same lanes as the rest."""
    registry = make(orders())
    registry.learn("orders", ID, 3)
    assert registry.view("orders").layout.partition_count == 3  # type: ignore[union-attr]

    registry.update_pins({str(ID): 2, str(OTHER_ID): 1})

    assert registry.view("orders").layout.partition_count == 2  # type: ignore[union-attr]
    assert registry.grown == {"orders": 3} and registry.pins() == {str(ID): 2}

    registry.learn("shop", OTHER_ID, 4)
    assert registry.topics["shop"].partition_count == 1
    assert registry.pins() == {str(ID): 2, str(OTHER_ID): 1}


def test_pins_of_a_topic_that_was_made_anew_are_nobodys() -> None:
    """They go by the topic's id; and no node has lanes of partitions that are not there."""
    registry = make(orders())
    registry.learn("orders", ID, 3)

    registry.update_pins({str(OTHER_ID): 2, str(ID): 5})
    assert registry.pins() == {}

    registry.update_pins({str(ID): 2})
    registry.learn("orders", OTHER_ID, 3)
    assert registry.pins() == {} and registry.topics["orders"].partition_count == 3


def test_compression_is_that_of_the_topic_under_every_name() -> None:
    """`compression` belongs to the topic; without a rule lanes are sent plain."""
    rule = LaneRule(topic="orders", lanes=4, compression="zstd")
    registry = make(rule)
    registry.learn("orders", ID, 1)
    registry.learn("plain", OTHER_ID, 1)

    codecs = {
        name: registry.view(name).codec  # type: ignore[union-attr]
        for name in ("orders", "orders.lanes-2", "plain.lanes-2")
    }

    assert codecs == {"orders": 4, "orders.lanes-2": 4, "plain.lanes-2": 0}


def test_a_glob_that_leaves_out_a_topic_with_offsets_is_refused() -> None:
    """Its lanes would become partitions under its groups; a rule with its name keeps them."""
    name = "db-changelog"
    registry, named = make(orders(topic="db-*")), make(orders(topic="db-*"), orders(topic=name))

    for other in ("orders", "db-orders", "db-changelog.lanes-4", "__consumer_offsets"):
        registry.refuse_left_out(other)
    named.refuse_left_out(name)
    with pytest.raises(ConfigInvalid, match=r"glob db-\* leaves it out"):
        registry.refuse_left_out(name)


def test_lane_names_in_use_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was not used for longest goes, and is made anew, alike, when it is used."""
    monkeypatch.setattr("keylane.proxy.topics.registry.RENAMED_VIEWS_MAX", 2)
    registry = TopicRegistry(
        (LaneRule(topic="own", lanes=2),), lane_name_pattern="{topic}.lanes-{lanes}"
    )
    registry.learn("own", uuid.UUID(int=1), 3)
    first, second = registry.view("own.lanes-4"), registry.view("own.lanes-5")
    assert first is not None and second is not None and registry.view("own") is not None
    assert registry.view_by_id(first.view_id) is first

    registry.view("own.lanes-6")

    assert sorted(registry.views) == ["own", "own.lanes-4", "own.lanes-6"]
    assert registry.view_by_id(second.view_id) is None
    assert registry.view("own.lanes-5") == second
