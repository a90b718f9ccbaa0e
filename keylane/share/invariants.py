"""Invariants of a window of records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from keylane.share.held import HeldRecord
from keylane.share.states import DONE, GONE, HELD, OUT


def check_window(
    records: Mapping[int, HeldRecord],
    gone: Mapping[int, HeldRecord],
    unsent: Sequence[HeldRecord],
    counts: tuple[int, int],
    several_per_key: int,
) -> None:
    """Assert them. counts: records that are ready, and records at members."""
    assert counts[0] == sum(record.is_ready for record in records.values())
    assert counts[1] == sum(record.state == OUT for record in records.values())
    free = [record for record in records.values() if record.is_free]
    assert all(r.state == DONE and r not in r.key.records and not r.is_copying for r in free)
    for key in {id(r.key): r.key for r in records.values() if not r.is_free}.values():
        offsets = [record.offset for record in key.records]
        assert offsets == sorted(set(offsets)) and offsets
        assert key.busy == sum(record.state != HELD for record in key.records)
        out = [record for record in key.records if record.state == OUT]
        assert len(out) <= several_per_key
        assert len({record.member for record in out}) <= 1
        assert not any(r.is_ready for r in key.records[1:])
        assert not (key.busy and key.records[0].is_ready)
        assert key.busy or key.records[0].is_ready or key.records[0].not_before_s
    unlocked = {o: r for o, r in records.items() if not r.is_locked}
    assert gone == {o: r for o, r in unlocked.items() if not r.is_finished}
    at_rest = [r for r in records.values() if r.state in {HELD, GONE}]
    assert all(r.is_locked == (r.state == HELD) for r in at_rest)
    assert all(r.state == DONE and r.is_locked and not r.is_sent for r in unsent)
    assert len(set(unsent)) == len(unsent)
    copying = [r for r in records.values() if r.is_copying]
    assert all(r.state == DONE and not r.is_sent and r not in unsent for r in copying)
