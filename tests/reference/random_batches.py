"""Random blocks from a seed: fast enough for a hundred thousand batches."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.reference.batches import Batch, Record, control_batch, write_batch

INT64_MAX = 2**63 - 1


def random_record(rng: random.Random, delta: int) -> Record:
    """Make one record: null, empty, short and long keys and values, some with headers."""
    key = rng.choice(
        (None, b"", rng.randbytes(rng.randrange(12)), rng.randbytes(rng.randrange(90)))
    )
    value = rng.choice((None, b"", rng.randbytes(5) * rng.randrange(30), b"v" * rng.randrange(700)))
    headers = tuple(
        (rng.randbytes(rng.randrange(6)), rng.choice((None, b"", b"h" * rng.randrange(200))))
        for _ in range(rng.choice((0, 0, 0, 1, 3)))
    )
    timestamp = rng.choice((0, delta, -delta, rng.randrange(-(2**40), 2**40), INT64_MAX))
    return Record(delta, key, value, headers, timestamp)


def random_batch(rng: random.Random, base_offset: int, form: str) -> Batch:
    """Make a batch: one in ten a marker, one in ten empty, one in three with holes."""
    kind = rng.randrange(10)
    if kind == 0:
        return control_batch(base_offset, rng.randrange(9), commit=rng.random() < 0.5)
    records, delta = [], rng.choice((-1, -1, 3))
    has_holes = rng.random() < 0.33
    for _ in range(0 if kind == 1 else rng.choice((1, 2, 5, 20))):
        delta += rng.choice((1, 2, 9, 20_000)) if has_holes else 1
        records.append(random_record(rng, delta))
    last = max(delta, 0) + rng.choice((0, 0, 0, 1, 1_000))
    batch = Batch(
        base_offset,
        tuple(records),
        last_offset_delta=last,
        form=form,
        leader_epoch=rng.randrange(-1, 50),
        flags=rng.choice((0, 0x08, 0x10, 0x40)),
        base_timestamp=rng.choice((-1, 0, 1_700_000_000_000)),
        max_timestamp=rng.choice((-1, 1_700_000_999_999)),
    )
    if rng.random() < 0.3:
        pid = rng.choice((0, 7, INT64_MAX))
        batch = replace(batch, producer_id=pid, producer_epoch=1, base_sequence=rng.randrange(99))
    return batch


def random_block(rng: random.Random, batch_count: int, forms: list[str]) -> list[bytes]:
    """Make consecutive batches, some after a gap, each in one of the codec forms."""
    offset, block = rng.choice((0, 5, 2**31, 2**40)), []
    for _ in range(batch_count):
        batch = random_batch(rng, offset, rng.choice(forms))
        block.append(write_batch(batch))
        offset = batch.next_offset + rng.choice((0, 0, 0, 1, 50, 2**31))
    return block
