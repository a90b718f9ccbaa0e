"""Every input that fuzzing kept is read or refused, never anything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.seeds import make_seeds
from tests.fuzz.targets import ALLOWED, TARGETS, run_one

CORPUS = sorted((Path(__file__).parent / "corpus").iterdir())


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_a_kept_input_is_no_finding(path: Path) -> None:
    """Outcome "read" or "refused" of one corpus file; a finding raises."""
    assert run_one(path.read_bytes()) in {"read", "refused"}


def test_the_corpus_is_small() -> None:
    """Fewer than 300 files of at most 4 KiB."""
    assert len(CORPUS) < 300
    assert all(path.stat().st_size <= 4096 for path in CORPUS)


def test_every_seed_is_read() -> None:
    """A seed that is refused would not lead the fuzzer into its decoder."""
    for seed in make_seeds():
        try:
            TARGETS[seed[0]](seed[1], seed[2:])
        except ALLOWED as error:
            pytest.fail(f"{TARGETS[seed[0]].__name__} {seed[1]}: {error}")
