"""Judgement of a run by docs/guarantees.md, while it runs and at its end.

The judge of chaos on real brokers (`tests.long.chaos_judge`) does most of it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import chain
from math import inf
from typing import TYPE_CHECKING

from keylane.keyrange.lane import LaneLayout
from keylane.proxy.topics.node_values import GROUP as NODES
from tests.long.chaos_history import (
    Answer,
    ClusterHistory,
    Commit,
    Cut,
    Delivery,
    Event,
    GroupHistory,
    Log,
    Place,
    Produced,
)
from tests.long.chaos_judge import KNOWN_S, judge
from tests.long.commit_floor import CommitFloor
from tests.reference.kernel import lane_of
from tests.simulation.hands import judge_hands
from tests.simulation.kafka_offsets import KafkaOffsets
from tests.simulation.layouts import Joins, in_parts
from tests.simulation.once import stale, two_at_once
from tests.simulation.owners import Owners

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.simulation.cluster import Cluster, Committed, Partition
    from tests.simulation.member import Member
    from tests.simulation.scenario import GroupPlan, Scenario, TopicPlan
    from tests.simulation.waits import Waits
    from tests.simulation.world import World


ON_ITS_WAY_S = 0.05
GONE = -1
"""Value of an offset that is deleted."""
WATCHES = "lag-"
"""Prefix of tools that look again and again."""
FOLLOWS_AFTER = 2
"""Commits, until Kafka's own offset is not before the log's start."""


@dataclass(frozen=True, kw_only=True)
class History(ClusterHistory):
    """History of a cluster whose cuts are known, and need not be guessed as a real one's."""

    known_cuts: Mapping[tuple[str, int], Sequence[Cut]]

    @property
    def cuts(self) -> dict[tuple[str, int], list[Cut]]:
        return {place: list(cuts) for place, cuts in self.known_cuts.items()}


class Judgement:
    """Judgement of one run."""

    def __init__(self, world: World, cluster: Cluster, scenario: Scenario, waits: Waits) -> None:
        self._world, self._cluster, self._scenario = world, cluster, scenario
        self._waits = waits
        self._owners = Owners(world, cluster, waits.troubles) if scenario.nodes else None
        self._number = 0
        self._produced: list[Produced] = []
        self._records: dict[tuple[str, int], dict[int, tuple[str, int]]] = defaultdict(dict)
        """Records of the current log, by partition and offset."""
        self._cuts: dict[tuple[str, int], list[Cut]] = defaultdict(list)
        self._aborted: set[int] = set()
        """Numbers of records."""
        self._limits = {
            plan.name: LaneLayout(plan.partitions, plan.lanes_most).key_split(0).limits.tolist()
            for plan in scenario.topics
        }
        self._lanes: dict[tuple[str, str], int] = {}
        self._events: dict[str, list[Event]] = defaultdict(list)
        """Events of clients that are no members, by group."""
        self._expired: list[tuple[str, Place, float, int]] = []
        """Group, place, when it was, and the generation of the nodes then."""
        self._joins = Joins()
        self._were_set: set[str] = set()
        """Groups that an admin has set back."""
        self._kafka = KafkaOffsets(cluster)
        self._written_s: dict[int, float] = {}
        """When each record was written."""
        self._reached: dict[str, dict[Place, int]] = defaultdict(dict)
        """Highest offsets that members or admins have tried to commit, by group."""
        self._since: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
        """Commits of each group since the log's start last moved, by partition."""
        self._passed: list[str] = []
        self.served_s: list[float] = []
        """Times from which the only node has served."""
        cluster.on_commit.append(self._check_commit)

    # While it runs.
    def next_number(self) -> int:
        self._number += 1
        return self._number

    def wrote(self, partition: Partition, offset: int, key: str, number: int) -> None:
        place = partition.topic, partition.index
        self._produced.append(Produced(*place, offset, key, number, self._world.now_s))
        self._records[place][offset] = key, number
        self._written_s[number] = self._world.now_s

    def reached(self, group: str) -> dict[Place, int]:
        """Return the book in which members of a group note the offsets that they try to commit."""
        return self._reached[group]

    def events_of(self, group: str) -> list[Event]:
        """Return the list in which clients other than members note requests and answers."""
        return self._events[group]

    def goes_back(self, group: str) -> None:
        """Note that a member of the group goes back on purpose."""
        self._were_set.add(group)

    def was_set(self, group: str, place: Place, to: int) -> None:
        """Note that an admin sets a lane, or tries."""
        self.goes_back(group)
        self._reached[group][place] = max(to, self._reached[group].get(place, -1))

    def has_expired(self, group: str, place: Place) -> None:
        """Note that offsets of a group without members have expired."""
        self.was_set(group, place, GONE)
        self._expired.append((group, place, self._world.now_s, self._generation))

    def has_other_lanes(self, topic: TopicPlan, lanes: int) -> None:
        """No member is there at this moment. What parts have done beyond others comes again."""
        if lanes < topic.lanes_most:
            self._joins.note(topic, lanes, self._world.now_s)
            for plan in self._scenario.groups:
                if plan.topic == topic.name and plan.is_transactional:
                    self.goes_back(plan.name)

    @property
    def _generation(self) -> int:
        return self._cluster.group(NODES).twin.generation_id

    def _check_commit(self, group: str, topic: str, partition: int, what: Committed) -> None:
        """Check that Kafka's own offset of a safe topic passes no record without a commit.

        It may go back only where a client asked for that.
        """
        self._since[topic, partition][group] += 1
        plan = next((each for each in self._scenario.groups if each.name == group), None)
        if plan is None or not self._cluster.topics[topic].is_safe:
            return
        self._kafka.take((group, topic, partition), what, is_back_wanted=group in self._were_set)
        reached = self._reached[group]
        for at, (key, number) in self._records[topic, partition].items():
            if at >= what.offset:
                continue
            place = self._place(topic, partition, key)
            if reached.get(place, -1) <= at and self._is_seen(plan, number):
                self._passed.append(
                    f"passes: {group}: {topic}-{partition} is at {what.offset}, and {place} at"
                    f" {reached.get(place, -1)}, with a record at {at}"
                )
                return

    def aborted(self, numbers: Sequence[int]) -> None:
        """Their transaction was."""
        self._aborted.update(numbers)

    def cut(self, partition: Partition) -> None:
        """The log has lost its end."""
        place, now_s = (partition.topic, partition.index), self._world.now_s
        # What was answered before may be on its way to a member, or lie at one that hangs, or at a
        # node that does.
        end_s = ON_ITS_WAY_S + self._waits.troubles.end_s(now_s, _keeps_answers)
        self._cuts[place].append(Cut(partition.log.end, now_s, end_s))
        records = self._records[place]
        for offset in [each for each in records if each >= partition.log.end]:
            del records[offset]

    def expired(self, partition: Partition) -> None:
        """The log begins later."""
        self._since[partition.topic, partition.index].clear()
        records = self._records[partition.topic, partition.index]
        for offset in [each for each in records if each < partition.log.log_start]:
            del records[offset]

    def was_reset(self, group: str, place: tuple[str, int], to: int) -> None:
        """An admin sets Kafka's own offset, which all lanes of the partition go to.

        Where it stands there already nothing has moved, and lanes beyond it stay; they may go back
        where that was a late push of a node that was replaced.
        """
        topic, partition = place
        plan = self._topic(topic)
        now_s, stood = self._world.now_s, self._cluster.group(group).offsets.get(place)
        has_moved = stood is None or stood.offset != to
        for lane in range(plan.lanes_most):
            at = Place(topic, lane * plan.partitions + partition)
            self.was_set(group, at, to)
            answered_s = now_s if has_moved else inf
            self._events[group].append(Commit("admin", at, to, -1, now_s, answered_s))

    def is_complete(self, members: Sequence[Member]) -> bool:
        """Return whether all was handed out, and is in the output of transactional members.

        And Kafka's own offsets stand where they have to come to.
        """
        if any(True for _ in self._behind()):
            return False
        return all(
            self._is_handed_out(plan, members)
            and not self._unread(plan, members)
            and not (plan.is_transactional and self._not_once(plan, members))
            for plan in self._scenario.groups
        )

    def note_unread(self, members: Sequence[Member]) -> None:
        """Note lanes that no member reads, though all faults are over."""
        for plan in self._scenario.groups:
            self._passed += self._unread(plan, members)

    def _unread(self, plan: GroupPlan, members: Sequence[Member]) -> list[str]:
        """Return lanes of a consumer group that no member reads."""
        if not plan.is_consumer:
            return []
        topic = self._topic(plan.topic)
        group = [each for each in members if each.habits.group == plan.name]
        read = {part.lane for member in group for part in member.positions}
        lanes = set(range(topic.lanes_most * topic.partitions)) - read
        return [f"unread: {plan.name}: lanes {sorted(lanes)}"] if lanes else []

    def _handed(self, plan: GroupPlan, members: Sequence[Member]) -> set[int]:
        """Numbers of the records that the group was handed."""
        lives = (each.handed for each in members if each.habits.group == plan.name)
        return {each.number for each in chain.from_iterable(chain.from_iterable(lives))}

    def read_to(self, plan: GroupPlan, place: Place, members: Sequence[Member]) -> int:
        """The first record of a lane that its group was not handed, in the log as it is now."""
        partitions = self._cluster.topics[place.topic].partitions
        partition = place.lane % len(partitions)
        handed = self._handed(plan, members)
        return min(
            (
                at
                for at, (key, number) in self._records[place.topic, partition].items()
                if number not in handed
                and self._place(place.topic, partition, key) == place
                and self._is_seen(plan, number)
            ),
            default=partitions[partition].log.end,
        )

    def _is_handed_out(self, plan: GroupPlan, members: Sequence[Member]) -> bool:
        """Return whether members were handed all there is; of logs that were cut, are past it."""
        handed = self._handed(plan, members)
        partitions = self._cluster.topics[plan.topic].partitions
        group = [member for member in members if member.habits.group == plan.name]
        positions = dict(chain.from_iterable(member.positions.items() for member in group))
        return not any(
            self._is_seen(plan, number)
            and number not in handed
            and not (
                self._cuts.get((plan.topic, each.index))
                and offset < positions.get(self._place(plan.topic, each.index, key), -1)
            )
            for each in partitions
            for offset, (key, number) in self._records[plan.topic, each.index].items()
        )

    def _behind(self, members: Sequence[Member] | None = None) -> Iterator[str]:
        """Partitions whose stable offset has not come as far as it must, or too far.

        members: at the end; what they have passed by right is no reason then.
        """
        for plan in self._scenario.groups:
            group = self._cluster.groups.get(plan.name)
            for partition in self._cluster.topics[plan.topic].partitions:
                place, end = (plan.topic, partition.index), partition.log.end
                wanted = self._wanted(plan, partition)
                stored = None if group is None else group.offsets.get(place)
                stands = -1 if stored is None else stored.offset
                if wanted is None or wanted <= stands <= end:
                    continue
                is_left = self._is_left(plan.name, partition, stands, is_over=members is not None)
                if is_left or (members and self._is_passed(plan, partition, stands, members)):
                    continue
                yield f"stalls: {plan.name} {place} at {stands}, not {wanted} to {end}"

    def _is_left(self, group: str, partition: Partition, stands: int, *, is_over: bool) -> bool:
        """Return whether the log begins behind the stable offset, which a second commit moves.

        is_over: there will be no other; else the first one is waited for.
        """
        commits = self._since[partition.topic, partition.index][group]
        is_behind = 0 <= stands < partition.log.log_start
        return is_behind and (not is_over) <= commits < FOLLOWS_AFTER

    def _is_passed(
        self, plan: GroupPlan, partition: Partition, stands: int, members: Sequence[Member]
    ) -> bool:
        """Whether members passed a lane's first record there by a position of a log that was cut.

        As direct; those that commit by records never commit it. Whether it is lost is judged by
        itself.
        """
        place = partition.topic, partition.index
        if place not in self._cuts:
            return False
        firsts: dict[int, int] = {}
        for at, (key, number) in sorted(self._records[place].items()):
            if at >= stands:
                firsts.setdefault(self._lane(partition.topic, key), number)
        return not self._handed(plan, members).issuperset(firsts.values())

    def _wanted(self, plan: GroupPlan, partition: Partition) -> int | None:
        """Return the stable offset at the end of the run; None: no client commits.

        A lane commits behind the last record that its members see; what was aborted behind it
        counts as a record, and the lane stands somewhere before it. Members that commit by
        records commit nothing for a transaction's marker that comes when all is done, as direct.
        """
        records = self._records[partition.topic, partition.index]
        lasts: dict[int, int] = {}
        for offset, (key, number) in records.items():
            if self._is_seen(plan, number):
                lane = self._lane(partition.topic, key)
                lasts[lane] = max(offset, lasts.get(lane, -1))
        if not lasts:
            return None
        end = max(lasts.values()) + 1 if plan.by_record else partition.log.end
        held = (
            lasts.get(lane, partition.log.log_start - 1) + 1
            for offset, (key, _) in records.items()
            if offset > lasts.get(lane := self._lane(partition.topic, key), -1)
        )
        return min(end, min(held, default=end))

    def _is_seen(self, plan: GroupPlan, number: int) -> bool:
        return not (plan.is_committed and number in self._aborted)

    def _lane(self, topic: str, key: str) -> int:
        found = self._lanes.get((topic, key))
        if found is None:
            found = self._lanes[topic, key] = lane_of(key.encode(), 0, self._limits[topic])
        return found

    def _place_of(self, handed: Delivery) -> Place:
        topic = handed.place.topic
        return self._place(topic, handed.place.lane % self._topic(topic).partitions, handed.key)

    def _place(self, topic: str, partition: int, key: str) -> Place:
        """The lane of a key, in the finest layout of the topic."""
        return Place(topic, self._lane(topic, key) * self._topic(topic).partitions + partition)

    # At the end.
    def conclude(self, members: Sequence[Member]) -> tuple[list[str], list[str], dict[str, int]]:
        """Breaches, notes, counts."""
        breaches: list[str] = []
        notes: list[str] = []
        counts: dict[str, int] = defaultdict(int)
        for plan in self._scenario.groups:
            topic = self._topic(plan.topic)
            group = self._group_history(plan, members)
            verdict = judge(self._history(plan), group)
            breaches += [f"{each.kind}: {each.text}" for each in verdict.breaches]
            notes += [f"{each.kind}: {each.text}" for each in verdict.notes]
            for name, count in verdict.counts.items():
                counts[name] += count
            if plan.is_consumer:
                had = self._cluster.memberships[plan.name]
                breaches += judge_hands(plan, members, had, self.served_s)
            else:
                breaches += two_at_once(group, self._cluster.deleted)
            breaches += self._above(plan, group)
            if plan.is_transactional:
                breaches += self._not_once(plan, members)
            if not self._scenario.nodes:  # others learn of a cut a moment later
                breaches += stale(plan, topic.partitions, members, self._cuts, self._written_s)
        breaches += self._passed[:1] + self._kafka.back[:1]
        breaches += self._behind(members)
        breaches += self._waits.breaches(self._cluster.held)
        breaches += self._owners.breaches[:1] if self._owners else []
        return breaches, notes, dict(counts)

    def _topic(self, name: str) -> TopicPlan:
        return next(plan for plan in self._scenario.topics if plan.name == name)

    def _history(self, plan: GroupPlan) -> History:
        """Return the history as a group's members see it."""
        logs = {}
        for topic in self._cluster.topics.values():
            for each in topic.partitions:
                records = {
                    offset: record
                    for offset, record in self._records[topic.name, each.index].items()
                    if self._is_seen(plan, record[1])
                }
                logs[topic.name, each.index] = Log(each.log.log_start, records)
        safe = frozenset(topic.name for topic in self._cluster.topics.values() if topic.is_safe)
        produced = [each for each in self._produced if self._is_seen(plan, each.number)]
        return History(produced=produced, logs=logs, safe_topics=safe, known_cuts=self._cuts)

    def _group_history(self, plan: GroupPlan, members: Sequence[Member]) -> GroupHistory:
        topic = self._topic(plan.topic)

        def lane(name: str, partition: int, key: str) -> int:
            return self._lane(name, key) * topic.partitions + partition

        events = [
            part
            for member in members
            if member.habits.group == plan.name
            for event in member.events
            for part in in_parts(
                event, topic.partitions, member.parts[event.member], self._place_of
            )
        ]
        events += (each for each in self._events[plan.name] if not self._is_early(each))
        # A node that finds an offset gone under members that it has not seen join cannot know
        # whether they went on from it: to go on from there loses nothing.
        for _, place, at_s, generation in (e for e in self._expired if e[0] == plan.name):
            known_s = at_s if generation == self._generation else inf
            events.append(Commit("kafka", place, GONE, -1, at_s, known_s))
        events += self._joins.commits(topic, events, self._cuts)
        return GroupHistory(
            group=plan.name,
            partitions={plan.topic: topic.partitions},
            lane_of=lane,
            events=events,
        )

    def _is_early(self, event: Event) -> bool:
        """Whether a tool that asks for no metadata is answered before anybody can know of a cut.

        Where no client reads, keylane asks the leader each few seconds.
        """
        if not isinstance(event, Answer) or not event.member.startswith(WATCHES):
            return False
        topic = event.place.topic
        cuts = self._cuts.get((topic, event.place.lane % self._topic(topic).partitions), ())
        return any(cut.begin_s < event.asked_s < cut.end_s + KNOWN_S for cut in cuts)

    def _above(self, plan: GroupPlan, group: GroupHistory) -> list[str]:
        """Return answers beyond uncommitted records, of a register's possible values.

        Offsets in transactions are left out, as what becomes of them is known later.
        """
        if plan.is_transactional or not self._cluster.topics[plan.topic].is_safe:
            return []
        commits: dict[Place, list[Commit]] = defaultdict(list)
        for commit in group.of(Commit):
            commits[commit.place].append(commit)
        floors = {place: CommitFloor(each) for place, each in commits.items()}
        count = self._topic(plan.topic).partitions
        for answer in group.of(Answer):
            floor = floors.get(answer.place)
            stands = max(0, floor.stands(answer) if floor else 0)
            if answer.offset > stands:
                stands = max(stands, self._joins.kept(answer, commits))
            if answer.offset <= stands:
                continue
            records = self._records[plan.topic, answer.place.lane % count]
            for offset, (key, number) in records.items():
                place = self._place(plan.topic, answer.place.lane % count, key)
                is_before = self._written_s[number] < answer.asked_s
                if stands <= offset < answer.offset and place == answer.place and is_before:
                    return [f"above: {plan.name}: {answer}, where {stands} stands"]
        return []

    def _not_once(self, plan: GroupPlan, members: Sequence[Member]) -> list[str]:
        """Inputs that are in the output of transactions more than once, or never."""
        counts = Counter(
            output
            for member in members
            if member.habits.group == plan.name
            for output in member.visible
        )
        if not self._cluster.topics[plan.topic].is_safe or plan.name in self._were_set:
            return []
        found = [f"twice: {plan.name} {each}" for each, count in counts.items() if count > 1]
        for partition in self._cluster.topics[plan.topic].partitions:
            for offset, (_, number) in self._records[plan.topic, partition.index].items():
                each = plan.topic, partition.index, offset
                if self._is_seen(plan, number) and not counts[each]:
                    found.append(f"never: {plan.name} {each}")
        return found


def _keeps_answers(hosts: Sequence[str]) -> bool:
    """Return whether a client is among these that are in trouble, or it is one node by itself."""
    is_client = any(not host.startswith(("127.", "kafka")) for host in hosts)
    return is_client or (len(hosts) == 1 and hosts[0].startswith("127."))
