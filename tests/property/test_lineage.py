"""Where two logs part, against replicas that lead in turn: exact for a reader of all of it."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from keylane.offsets.lineage import EpochEnd, Lineage
from tests.reference.replica_logs import Replica, Replicas

REPLICAS = 3
Action = tuple[str, int, int]


def actions_of(random: Random, *more: str) -> Iterator[Action]:
    """What happens to the brokers and the reader; disks are lost in every second world."""
    kinds = ["append", "append", "follow", "follow", "elect", "read", "read", *more]
    kinds += ["lose"] if random.random() < 0.5 else []
    for _ in range(random.randint(5, 60)):
        yield random.choice(kinds), random.randrange(REPLICAS), random.randint(0, 9)


def play(world: Replicas, action: Action) -> None:
    """One thing that happens to the brokers."""
    kind, replica, count = action
    if kind == "append":
        world.append(count)
    elif kind == "follow" and replica != world.leader:
        world.replicas[replica].copy_from(world.log, count)
    elif kind == "elect":
        world.elect(replica)
    elif kind == "lose":
        world.replicas[replica].lose()
        if replica == world.leader:
            world.elect(replica)
    elif kind == "retain":
        world.log.log_start = max(world.log.log_start, min(4 * count, world.log.end))


def compared(lineage: Lineage, world: Replicas) -> int | None:
    """Ask the leader as a driver does."""
    log = world.log
    questions = lineage.compare(world.epoch)
    try:
        asked = next(questions)
        while True:
            asked = questions.send(EpochEnd(*log.end_of_epoch(asked)))
    except StopIteration as stop:
        return stop.value


def starts_of(epochs: list[int], first: int) -> list[tuple[int, int]]:
    """Epochs as a reader gets them with the records from `first` on."""
    found: list[tuple[int, int]] = []
    for offset, epoch in enumerate(epochs, first):
        if not found or found[-1][0] != epoch:
            found.append((epoch, offset))
    return found


@given(seed=st.integers(0, 2**32))
def test_a_reader_that_has_all_finds_the_exact_place(seed) -> None:
    """Any elections, clean or not, and lost disks: cut where the first record differs."""
    random = Random(seed)
    world, lineage = Replicas([Replica() for _ in range(REPLICAS)]), Lineage()
    seen: list[int] = []

    for action in actions_of(random):
        play(world, action)
        log = world.log
        if action[0] != "read":
            continue
        cut = compared(lineage, world)
        differs = next(
            (o for o, e in enumerate(seen) if o >= log.end or log.epochs[o] != e), len(seen)
        )

        assert (len(seen) if cut is None else cut) == differs
        lineage.truncate(differs)
        del seen[differs:]
        fresh = log.epochs[differs : differs + action[2]]
        lineage.note(differs + len(fresh), starts_of(fresh, differs))
        seen += fresh
        lineage.check()


@given(seed=st.integers(0, 2**32))
def test_two_connections_are_compared_at_the_same_time(seed) -> None:
    """The first reads on while the second waits for answers: what it reads is no difference."""
    random = Random(seed)
    world, lineage = Replicas([Replica() for _ in range(REPLICAS)]), Lineage()
    seen: list[int] = []

    def read(count: int) -> None:
        log = world.log
        cut = compared(lineage, world)
        if cut is not None:
            lineage.truncate(cut)
            del seen[cut:]
        fresh = log.epochs[len(seen) : len(seen) + count]
        lineage.note(len(seen) + len(fresh), starts_of(fresh, len(seen)))
        seen.extend(fresh)

    for action in actions_of(random):
        play(world, action)
        if action[0] != "read":
            continue
        second, cut = lineage.compare(world.epoch), None
        try:
            asked = next(second)
            while True:
                read(random.randint(0, 9))
                world.append(random.randint(0, 9))
                found = EpochEnd(*world.log.end_of_epoch(asked))
                world.append(random.randint(0, 9))
                read(random.randint(0, 9))
                asked = second.send(found)
        except StopIteration as stop:
            cut = stop.value

        assert cut is None
        read(action[2])
        assert seen == world.log.epochs[: len(seen)]
        lineage.check()


@given(seed=st.integers(0, 2**32))
def test_a_reader_with_gaps_keeps_nothing_of_another_log(seed) -> None:
    """A reader that has read here and there keeps only what the leader has as well."""
    random = Random(seed)
    world, lineage = Replicas([Replica() for _ in range(REPLICAS)]), Lineage()
    seen: dict[int, int] = {}

    for action in actions_of(random, "retain"):
        play(world, action)
        log = world.log
        # What retention has deleted once is no difference any more.
        seen = {offset: epoch for offset, epoch in seen.items() if offset >= log.log_start}
        if action[0] != "read":
            continue
        cut = compared(lineage, world)
        if cut is not None:
            lineage.truncate(cut)
            seen = {offset: epoch for offset, epoch in seen.items() if offset < cut}

        assert all(
            offset < log.end and log.epochs[offset] == epoch for offset, epoch in seen.items()
        )
        first = random.randint(log.log_start, max(log.log_start, log.end))
        fresh = log.epochs[first : first + action[2]]
        lineage.note(first + len(fresh), starts_of(fresh, first))
        seen |= dict(enumerate(fresh, first))
        lineage.check()
