"""Run the demo: start everything, do what the scenario says, keep the books, end everything."""

from __future__ import annotations

import tempfile
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console

from keylane.advise.errors import AdviceFailed
from keylane.demo import scenario
from keylane.demo.events import Event, SessionEnd
from keylane.demo.forecast import Seen, check_forecast, forecast_speedup
from keylane.demo.front import ProxyFront
from keylane.demo.ledger import Check, Ledger, build_ledger, judge
from keylane.demo.members import MemberProcess, Members, last_words
from keylane.demo.producer import CODECS, CODECS_OF_ALL_CLIENTS, OrderProducer
from keylane.demo.screen import (
    LiveScreen,
    MemberView,
    PlainScreen,
    Screen,
    ScreenView,
    print_line,
    render_verdict,
)
from keylane.embedded import EmbeddedKafka

TOPIC: Final = "orders"
GROUP: Final = "orders-demo"
TURN_S: Final = 0.1
"""Longest wait of one turn of the loop: how late a beat may come."""
UPDATE_INTERVAL_S: Final = 0.5
RATE_WINDOW: Final = 4
"""Updates that a shown rate is taken over."""
ADMIN_TIMEOUT_S: Final = 30.0
EXCESS_MAX: Final = 1.25
"""Of the busiest member: keylane moves no lane within 1.10, and has measured a part of the show."""
JUDGED_SECONDS: Final = 50.0
"""In a shorter show killed members may still be in the group when keylane is killed."""
STATES: Final[Mapping[SessionEnd | None, str]] = {
    SessionEnd.KILLED: "killed",
    SessionEnd.LEFT: "left",
    SessionEnd.LOST: "failed",
}
"""States of members whose process has ended, as the viewer sees them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """Settings from the command line."""

    seconds: float
    members: int
    partitions: int
    lanes: int
    rate_per_s: float
    customers: int
    plain: bool
    direct: bool
    """Without keylane, for comparison."""
    workers: bool = False
    """Members are `Workers` of `keylane.client`, in the place of stock clients."""

    @property
    def is_judged(self) -> bool:
        """Return whether the show is long enough to judge loads of members."""
        return self.seconds >= JUDGED_SECONDS

    @property
    def slot_count(self) -> int:
        """Number of members that can have work."""
        return self.partitions * (1 if self.direct else self.lanes)


def run_demo(settings: DemoSettings, console: Console) -> int:
    """Run the show in a temporary folder; 0 when every check passed, 1 when one failed.

    Whatever way it is left, children end: they watch a pipe that this process holds.

    Raises:
        KeylaneError: Kafka or the proxy did not start.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keylane-demo-")))
        print_line(console, f"keylane demo: starting Kafka (data in {folder}, deleted at the end)")
        # A small heap: the show holds a few MB of records. Killed at the end, since the
        # data is not needed again and a clean stop takes seconds.
        kafka = EmbeddedKafka(folder / "kafka", heap_mb=384)
        stack.callback(kafka.kill)
        kafka.start()
        _create_topic(kafka.bootstrap, settings.partitions)
        front, bootstrap = None, kafka.bootstrap
        if not settings.direct:
            print_line(
                console,
                "keylane demo: starting keylane (the first time ever it compiles its kernels)",
            )
            front = ProxyFront(kafka.bootstrap, topic=TOPIC, lanes=settings.lanes, folder=folder)
            stack.callback(front.stop)
            front.launch()
            front.await_ready()
            bootstrap = front.bootstrap
        print_line(console, f"keylane demo: clients connect to {bootstrap}")
        members = Members(bootstrap=bootstrap, topic=TOPIC, group=GROUP, folder=folder)
        stack.callback(members.close)
        screen: Screen = PlainScreen(console) if settings.plain else LiveScreen(console)
        stack.callback(screen.close)
        # Producers stay as they are: they go on writing to Kafka itself.
        producer = OrderProducer(
            bootstrap=kafka.bootstrap,
            topic=TOPIC,
            rate_per_s=settings.rate_per_s,
            customers=settings.customers,
            codecs=CODECS_OF_ALL_CLIENTS if settings.direct else CODECS,
        )
        show = Show(settings, front=front, members=members, producer=producer, screen=screen)
        show.run()
        screen.close()
        checks = [*show.judge(), _check_group_offsets(kafka.bootstrap, settings.partitions)]
        if show.seen is not None:
            checks.append(_check_advice(kafka.bootstrap, show.seen, settings))
        console.print(render_verdict(checks))
        for member in members.failed:
            console.print(f"member {member.number}: {last_words(member)}", markup=False)
        return 0 if all(check.passed for check in checks) else 1


class Show:
    """One run of the scenario.

    `_events` is everything that was reported, for the verdict; `_ledger` is the live view of it,
    which may take two events of different members the wrong way round.
    """

    def __init__(
        self,
        settings: DemoSettings,
        *,
        front: ProxyFront | None,
        members: Members,
        producer: OrderProducer,
        screen: Screen,
    ) -> None:
        self._settings, self._front, self._members = settings, front, members
        self._producer, self._screen = producer, screen
        self._began_s = time.monotonic()
        self._ledger, self._events = Ledger(), list[Event]()
        self._front_is_starting = False
        self._failed_seen = 0
        self._excess: float | None = None
        """Of the busiest member, before the members stop; None: a lane had no member then."""
        self.seen: Seen | None = None
        """Of stock members, at the same time."""
        self._samples: deque[tuple[float, dict[int, int]]] = deque(maxlen=RATE_WINDOW + 1)
        self._scenario = scenario.Scenario(
            scenario.ShowSettings(
                seconds=settings.seconds,
                members=settings.members,
                kills_proxy=front is not None,
                clients=(scenario.WORKERS,) if settings.workers else scenario.CLIENTS,
            )
        )

    def run(self) -> None:
        """Play until the scenario is done."""
        update_due_s = 0.0
        while self._scenario.phase is not scenario.Phase.DONE:
            self._book(self._members.read(timeout_s=TURN_S))
            self._watch_processes()
            for action in self._scenario.step(self._facts()):
                self._take(action)
            if time.monotonic() >= update_due_s:
                update_due_s = time.monotonic() + UPDATE_INTERVAL_S
                self._screen.update(self._view())
        self._screen.update(self._view())

    def judge(self) -> list[Check]:
        """The verdict, from all events in order of time."""
        ledger = build_ledger(self._events)
        wanted = min(self._settings.members, self._settings.slot_count)
        checks = judge(
            ledger,
            self._producer.produced(),
            members_started=len(self._members.by_number),
            members_wanted=wanted,
        )
        if self._excess is not None:
            is_judged = self._settings.is_judged
            name = "busiest member's load, in times of the ideal"
            name += "" if is_judged else " (too short to judge)"
            is_good = self._excess <= EXCESS_MAX or not is_judged
            checks.append(Check(name, f"{self._excess:.2f}", is_good))
        errors, failed = self._producer.error_count, len(self._members.failed)
        return [
            *checks,
            Check("records that no broker acknowledged", f"{errors:,}", errors == 0),
            Check("members that ended by themselves", f"{failed}", failed == 0),
        ]

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def _book(self, events: Iterable[Event]) -> None:
        for event in events:
            self._events.append(event)
            self._ledger.apply(event)

    def _say(self, text: str) -> None:
        self._screen.say(self._elapsed_s, text)

    def _facts(self) -> scenario.Facts:
        alive = len(self._members.alive)
        under_way = self._producer.started and not self._producer.finished
        waiting = self._ledger.lost_count(self._producer.produced())
        return scenario.Facts(
            now_s=time.monotonic(),
            alive=alive,
            reading=len({owner.member for owner in self._ledger.lane_owners.values()}),
            reading_possible=min(alive, self._settings.slot_count),
            # One that the producer still holds waits as well.
            waiting_records=waiting + under_way,
        )

    def _take(self, action: scenario.Action) -> None:
        match action:
            case scenario.Say(text=text):
                self._say(text)
            case scenario.StartMember(number=number, client=client):
                self._members.start(number, client)
            case scenario.KillMember(number=number):
                self._members.kill(number)
            case scenario.Cue.KILL_MEMBERS:
                self._book(self._members.kill_all())
            case scenario.Cue.KILL_PROXY:
                assert self._front is not None, "the scenario kills what there is"
                self._front.kill()
                self._front.launch()
                self._front_is_starting = True
            case scenario.Cue.START_PRODUCER:
                self._producer.start()
            case scenario.Cue.STOP_PRODUCER:
                self._producer.stop()
            case scenario.Cue.STOP_MEMBERS:
                if self._front is not None:
                    self._excess = self._ledger.excess()
                    self._look_at_speed()
                self._members.ask_to_stop()

    def _look_at_speed(self) -> None:
        speedup = self._ledger.speedup(self._settings.partitions)
        if speedup is not None and self._excess is not None and not self._settings.workers:
            self.seen = Seen(len(self._ledger.loads()), speedup, self._excess)

    def _watch_processes(self) -> None:
        """Say what happened by itself: keylane is back, a member failed."""
        if self._front is not None and self._front_is_starting and self._front.is_ready():
            self._front_is_starting = False
            self._say("keylane serves again")
        failed = self._members.failed
        for member in failed[self._failed_seen :]:
            self._say(f"member {member.number} ended by itself: {last_words(member)}")
        self._failed_seen = len(failed)

    def _view(self) -> ScreenView:
        ledger, now_s = self._ledger, time.monotonic()
        produced = self._producer.produced()
        self._samples.append((now_s, dict(ledger.member_deliveries)))
        then_s, then = self._samples[0]
        span_s = max(now_s - then_s, TURN_S)
        rates = {
            number: (count - then.get(number, 0)) / span_s
            for number, count in ledger.member_deliveries.items()
        }
        behind, loads = ledger.behind_by_member(produced), ledger.loads()
        return ScreenView(
            elapsed_s=self._elapsed_s,
            title=_title(self._settings),
            members=tuple(
                self._member_view(
                    member,
                    rates.get(number, 0.0),
                    behind=behind.get(number, 0),
                    load=loads.get(number, 0.0),
                )
                for number, member in sorted(self._members.by_number.items())
            ),
            owners=self._owners(),
            produced=sum(produced.values()),
            delivered=ledger.delivered_count(),
            rate_per_s=sum(rates.values()),
            keys=len(ledger.keys),
            counts=ledger.counts,
            excess=None if self._front is None else ledger.excess(),
        )

    def _member_view(
        self, member: MemberProcess, rate_per_s: float, *, behind: int, load: float
    ) -> MemberView:
        owners = self._ledger.lane_owners.items()
        lanes = tuple(sorted(lane for lane, owner in owners if owner.member == member.number))
        return MemberView(
            number=member.number,
            client=member.client,
            state=STATES.get(member.end, "reading" if lanes else "joining"),
            lanes=lanes,
            rate_per_s=rate_per_s,
            records=self._ledger.member_deliveries.get(member.number, 0),
            behind=behind,
            load=load,
        )

    def _owners(self) -> tuple[tuple[int | None, ...], ...]:
        """Lane index = lane * partitions + partition; shown as a row per partition."""
        owners, partitions = self._ledger.lane_owners, self._settings.partitions
        lanes = range(self._settings.slot_count // partitions)
        return tuple(
            tuple(
                owner.member if (owner := owners.get(lane * partitions + partition)) else None
                for lane in lanes
            )
            for partition in range(partitions)
        )


def _title(settings: DemoSettings) -> str:
    if settings.direct:
        return f"Kafka alone: topic {TOPIC}, {settings.partitions} partitions"
    return f"keylane: topic {TOPIC}, {settings.partitions} partitions x {settings.lanes} lanes"


def _create_topic(bootstrap: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, partitions, 1)])[TOPIC].result(ADMIN_TIMEOUT_S)


def _check_advice(bootstrap: str, seen: Seen, settings: DemoSettings) -> Check:
    try:
        forecast = forecast_speedup(bootstrap, TOPIC, members=seen.members, lanes=settings.lanes)
    except AdviceFailed as error:
        # A line of the verdict, and not its end: what the show found about records is seen.
        return Check(f"advice: {error}", "-", passed=False)
    return check_forecast(forecast, seen, is_judged=settings.is_judged)


def _check_group_offsets(bootstrap: str, partitions: int) -> Check:
    """Kafka's own view of the group: at the log end, it can go on without keylane from there."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    try:
        wanted = [TopicPartition(TOPIC, partition) for partition in range(partitions)]
        committed = consumer.committed(wanted, timeout=ADMIN_TIMEOUT_S)
        ends = [consumer.get_watermark_offsets(p, timeout=ADMIN_TIMEOUT_S)[1] for p in wanted]
    finally:
        consumer.close()
    done = sum(max(0, c.offset) == end for c, end in zip(committed, ends, strict=True))
    name = "partitions whose offset in Kafka is at the log end"
    return Check(name, f"{done} of {partitions}", done == partitions)
