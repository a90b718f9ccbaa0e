"""Progress of a partition against the naive twin: any order of reads, marks and commits."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from keylane.client.progress import PartitionProgress
from keylane.offsets.intervals import Range
from tests.reference.progress import NaiveProgress

STEPS = st.lists(
    st.sampled_from(["give", "give", "skip", "mark", "mark", "all", "commit", "stable"]),
    max_size=30,
)


def spread(ranges: list[Range]) -> set[int]:
    return {offset for first, last in ranges for offset in range(first, last + 1)}


@given(
    position=st.integers(0, 5),
    done=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4)), max_size=3),
    steps=STEPS,
    data=st.data(),
)
def test_progress_is_that_of_the_twin(
    position: int, done: list[tuple[int, int]], steps: list[str], data: st.DataObject
) -> None:
    """What is wanted, done, to be committed, open; ranges join and never overlap what is."""
    ranges = [(position + 1 + first, position + 1 + first + size) for first, size in done]
    tested, twin = PartitionProgress(position, ranges), NaiveProgress(position, ranges)
    for step in steps:
        _take(step, tested, twin, data)

        tested.check()
        assert tested.plain_offset() == twin.plain_offset()
        assert tested.next_offset == twin.next
        assert tested.open_count == twin.open_count()
        to_commit = tested.ranges_to_commit(1_000)
        assert spread(to_commit) == {each for each in twin.fresh() if each >= twin.position}
        assert all(a[1] + 1 < b[0] for a, b in pairwise(to_commit))
        assert spread(tested.wanted(twin.next - 3, twin.next + 20)) == twin.wanted(
            twin.next - 3, twin.next + 20
        )


def _take(step: str, tested: PartitionProgress, twin: NaiveProgress, data: st.DataObject) -> None:
    if step in ("give", "skip"):
        end = twin.next + data.draw(st.integers(1, 8))
        wanted = sorted(twin.wanted(twin.next, end - 1))
        chosen = sorted(data.draw(st.sets(st.sampled_from(wanted)))) if wanted else []
        if step == "skip" or not chosen:
            tested.skip(tested.next_offset, end - 1)
        else:
            is_whole = chosen[-1] - chosen[0] + 1 == len(chosen)
            tested.given(range(chosen[0], chosen[-1] + 1) if is_whole else chosen, end)
            twin.given += chosen
        twin.next = end
    elif step == "mark":
        offsets = data.draw(st.lists(st.integers(0, twin.next + 2), max_size=6))
        tested.done(offsets)
        twin.marked.update(set(offsets).intersection(twin.given))
    elif step == "all":
        tested.done_all()
        twin.marked.update(twin.given)
    elif step == "commit":
        sent = tested.ranges_to_commit(data.draw(st.integers(1, 3)))
        tested.committed(sent)
        twin.committed |= spread(sent)
    elif data.draw(st.integers(0, 3)) == 0:
        stable = data.draw(st.integers(0, twin.next + 3))
        tested.committed([], stable)
        if stable >= twin.plain_offset():
            twin.marked.update(offset for offset in twin.given if offset <= stable)
            twin.position = stable + 1
            twin.next = max(twin.next, stable + 1)
