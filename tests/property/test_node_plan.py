"""The plan of IC partitions: whole, even, the same for the same claims, and with few moves."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from keylane.proxy.nodes.owner_plan import plan_owners
from keylane.proxy.topics.node_values import OwnershipClaim

NUMBERS = st.integers(0, 999)
PARTITIONS = st.integers(-2, 70)
CLAIMS = st.builds(
    OwnershipClaim,
    generation_id=st.integers(-1, 9),
    partitions=st.frozensets(PARTITIONS, max_size=70),
)


def claims_of(owners: tuple[int, ...], numbers: set[int]) -> dict[int, OwnershipClaim]:
    """What nodes claim after a generation with these owners."""
    return {
        number: OwnershipClaim(
            generation_id=5,
            partitions=frozenset(p for p, owner in enumerate(owners) if owner == number),
        )
        for number in numbers
    }


def moves(before: tuple[int, ...], after: tuple[int, ...]) -> int:
    return sum(1 for old, new in zip(before, after, strict=True) if old != new)


@given(claims=st.dictionaries(NUMBERS, CLAIMS, min_size=1, max_size=12), count=st.integers(1, 70))
def test_every_partition_has_an_owner_and_shares_differ_by_one(claims, count) -> None:
    """Whatever is claimed; the order in which nodes are named does not matter."""
    owners = plan_owners(claims, count)

    assert len(owners) == count and set(owners) <= set(claims)
    sizes = Counter(dict.fromkeys(claims, 0)) + Counter(owners)
    assert max(sizes.values()) - min(sizes.get(number, 0) for number in claims) <= 1
    assert owners == plan_owners(dict(reversed(claims.items())), count)


@given(numbers=st.sets(NUMBERS, min_size=2, max_size=12), count=st.integers(1, 70), data=st.data())
def test_a_node_that_leaves_gives_only_its_own_away(numbers, count, data) -> None:
    """All others keep all that they have."""
    before = plan_owners({number: OwnershipClaim() for number in numbers}, count)
    leaver = data.draw(st.sampled_from(sorted(numbers)))

    after = plan_owners(claims_of(before, numbers - {leaver}), count)

    kept = [old == new for old, new in zip(before, after, strict=True) if old != leaver]
    assert all(kept)


@given(numbers=st.sets(NUMBERS, min_size=2, max_size=12), count=st.integers(1, 70), data=st.data())
def test_a_node_that_joins_gets_its_share_and_nothing_else_moves(numbers, count, data) -> None:
    """No more moves than its share, rounded down: the node with most keeps one more."""
    joiner = data.draw(st.sampled_from(sorted(numbers)))
    before = plan_owners({number: OwnershipClaim() for number in numbers - {joiner}}, count)
    claims = claims_of(before, numbers - {joiner}) | {joiner: OwnershipClaim()}

    after = plan_owners(claims, count)

    assert moves(before, after) == after.count(joiner) == count // len(numbers)


@given(numbers=st.sets(NUMBERS, min_size=1, max_size=12), count=st.integers(1, 70))
def test_nothing_moves_when_no_node_comes_or_goes(numbers, count) -> None:
    """A node whose address has changed makes all join again."""
    before = plan_owners({number: OwnershipClaim() for number in numbers}, count)

    assert plan_owners(claims_of(before, numbers), count) == before
