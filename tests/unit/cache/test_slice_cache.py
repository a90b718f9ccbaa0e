"""The cache never holds more than its bound; the oldest goes first."""

from __future__ import annotations

from keylane.cache.slice_cache import SliceCache


class Piece:
    def __init__(self) -> None:
        self.is_evicted = False

    def evicted(self) -> None:
        self.is_evicted = True


def test_what_waited_longest_goes_first() -> None:
    """A new entry takes the room of the oldest ones, and of no more than needed."""
    cache = SliceCache(bytes_max=100)
    pieces = [Piece() for _ in range(4)]
    kept = [cache.put(piece, 30, may_evict=True) for piece in pieces[:3]]

    kept.append(cache.put(pieces[3], 50, may_evict=True))

    assert all(kept)
    assert [piece.is_evicted for piece in pieces] == [True, True, False, False]
    assert (cache.bytes_used, cache.eviction_count, len(cache)) == (80, 2, 2)
    cache.check()


def test_a_slice_without_a_waiter_pushes_nothing_out() -> None:
    """Without `may_evict` an entry takes free room only."""
    cache = SliceCache(bytes_max=100)
    first, second, third = Piece(), Piece(), Piece()
    cache.put(first, 60, may_evict=False)

    refused = cache.put(second, 50, may_evict=False)
    taken = cache.put(third, 40, may_evict=False)

    assert (refused, taken) == (False, True)
    assert not first.is_evicted
    cache.check()


def test_an_entry_larger_than_the_cache_is_refused() -> None:
    """And nothing goes for it."""
    cache = SliceCache(bytes_max=100)
    small = Piece()
    cache.put(small, 1, may_evict=True)

    assert not cache.put(Piece(), 101, may_evict=True)

    assert not small.is_evicted
    cache.check()


def test_removed_entries_free_their_bytes_once() -> None:
    """Removing what is not there changes nothing."""
    cache = SliceCache(bytes_max=100)
    piece = Piece()
    cache.put(piece, 100, may_evict=True)

    cache.remove(piece)
    cache.remove(piece)

    assert cache.bytes_used == 0
    cache.check()
