"""Share groups with `confirm: received`: a poll is answered before the broker has written."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest

from keylane.config.node import ProxyConfig
from keylane.proxy.nodes.lease import LEASE_SHARE
from tests.integration.keylane_process import PATIENCE
from tests.integration.share_stage import Member, Scene, ShareStage
from tests.integration.share_wire import ACCEPT, RELEASE

pytestmark = pytest.mark.timeout(400)  # kernels may have to be compiled first
LEASE_S = LEASE_SHARE * ProxyConfig.model_fields["node_session_timeout_ms"].default / 1000
STILL_S = 5.0
"""Far more than all polls of a test take."""


@contextmanager
def standstill(stage: ShareStage) -> Iterator[threading.Event]:
    """The broker holds its connections and says nothing, for `STILL_S` at most.

    keylane answers early for a second (`PROMPT_S`). If a machine takes longer between two polls,
    the second one waits for the broker. The event says that the broker went on by itself.
    """
    pid = stage.broker.nodes[0].pid
    assert pid is not None
    went_on = threading.Event()

    def go_on() -> None:
        with suppress(ProcessLookupError):  # a test may have killed it
            os.kill(pid, signal.SIGCONT)

    def go_on_late() -> None:
        went_on.set()
        go_on()

    timer = threading.Timer(STILL_S, go_on_late)
    os.kill(pid, signal.SIGSTOP)
    timer.start()
    try:
        yield went_on
    finally:
        timer.cancel()
        timer.join()
        go_on()


def skip_if_late(went_on: threading.Event) -> None:
    """Skip the test if the broker went on before it was to."""
    if went_on.is_set():
        pytest.skip("this machine took longer between two polls than keylane answers early")


def begin(shown: Scene, *keys: str) -> Member:
    """Return a member that has the first record of each key."""
    shown.write(*keys)
    member = shown.join()
    assert member.take(len(set(keys))) == {keys.index(key): 1 for key in set(keys)}
    return member


def poll(member: Member, *accepted: int) -> dict[int, int]:
    """Accept records with a poll; return what it brings."""
    answer = member.fetch(acks=[(each, each, [ACCEPT]) for each in accepted], max_wait_ms=10_000)
    assert answer.codes == (0, 0, 0), answer
    return answer.part.counts


def test_a_key_goes_on_while_the_broker_stands_still(scene, share_stage) -> None:
    """Three polls accept three records of a key; the broker writes all when it goes on."""
    shown = scene("early")
    member = begin(shown, "a", "a", "b", "a", "a")

    with standstill(share_stage) as went_on:
        found = [poll(member, 0)]
        assert not went_on.is_set(), "the first poll is answered early, whenever it comes"
        found += [poll(member, 1), poll(member, 3)]

    skip_if_late(went_on)
    assert found == [{1: 1}, {3: 1}, {4: 1}]
    assert member.ack(2, 4) == 0
    shown.wait_for_lag(0)


def test_a_commit_is_answered_when_the_broker_has_written_it(scene, share_stage) -> None:
    """Its key goes on for another member, and what commits waits."""
    shown = scene("early")
    member = begin(shown, "a", "a")
    other = shown.again(member.topic_id)
    assert other.gets_nothing()

    with ThreadPoolExecutor(1) as pool:
        with standstill(share_stage) as went_on:
            commit = pool.submit(member.ack, 0)
            found = other.take(1)
            is_early = commit.done()
        code = commit.result(30 * PATIENCE)

    skip_if_late(went_on)
    assert (found, is_early, code) == ({1: 1}, False, 0)
    assert other.ack(1) == 0
    shown.wait_for_lag(0)


def test_a_released_record_comes_before_the_next_of_its_key_all_the_same(scene) -> None:
    """The release of offset 0 is answered early, and offset 1 waits for it."""
    shown = scene("early")
    member = begin(shown, "a", "a")

    answer = member.fetch(acks=[(0, 0, [RELEASE])], max_wait_ms=10_000)
    found = answer.part.counts or member.take(1)

    assert (answer.codes, found) == ((0, 0, 0), {0: 2})
    assert poll(member, 0) == {1: 1}
    assert member.ack(1) == 0
    shown.wait_for_lag(0)


def test_finished_records_do_not_come_again_after_a_kill_of_the_broker(scene, share_stage) -> None:
    """It is killed before it has written three outcomes, and delivers these records once more.

    keylane ends them, and no member gets them again: only the one that was at a member.
    """
    shown = scene("early")
    member = begin(shown, "a", "a", "b", "a")

    began_s = time.monotonic()
    with standstill(share_stage):
        found = [poll(member, 0, 2), poll(member, 1)]
        share_stage.broker.kill()
    share_stage.broker.start()
    if time.monotonic() - began_s > LEASE_S:
        pytest.skip("the broker was away for longer than keylane's lease, with which they are lost")

    assert found == [{1: 1}, {3: 1}]
    again = shown.again(member.topic_id)
    taken = list(again.take(1))
    if (
        taken != [3] and time.monotonic() - began_s > LEASE_S
    ):  # keylane may be as slow as the broker
        pytest.skip("the broker was back after keylane's lease, with which outcomes are lost")
    assert taken == [3]  # brokers forget deliveries that were not written
    assert again.ack(3) == 0
    shown.wait_for_lag(0)
    assert again.gets_nothing()


def test_after_a_kill_of_keylane_the_last_outcomes_are_lost_and_no_record(
    scene, share_stage
) -> None:
    """What the broker had not written comes again, each key in its order.

    One request of keylane is under way, and the next outcome is at keylane alone.
    """
    shown = scene("early")
    member = begin(shown, "a", "a", "b", "a")

    with standstill(share_stage) as went_on:
        found = [poll(member, 0), poll(member, 1)]
        share_stage.proxy.kill()
    share_stage.proxy.start()
    skip_if_late(went_on)
    again, order = shown.again(member.topic_id), list[int]()
    while not {2, 3} <= set(order):
        taken = again.take(1)
        assert again.ack(*taken) == 0
        order += taken

    assert found == [{1: 1}, {3: 1}]
    assert [offset for offset in order if offset != 2] in ([1, 3], [0, 1, 3])
    shown.wait_for_lag(0)


def test_outcomes_are_written_before_keylane_stops(scene, share_stage) -> None:
    """A member is answered, keylane is stopped at once: its records are finished."""
    shown = scene("early")
    member = begin(shown, "a", "a", "b")

    found = poll(member, 0, 2)
    share_stage.proxy.restart()

    assert found == {1: 1}
    again = shown.again(member.topic_id)
    assert again.take(1) == {1: 2}
    assert again.ack(1) == 0
    shown.wait_for_lag(0)
