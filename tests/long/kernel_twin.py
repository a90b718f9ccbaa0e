"""The long run: the kernel against its twin over as many random batches as asked for.

python -m tests.long.kernel_twin --batches 100000
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter

from keylane.keyrange.key_split import KeySplit, even_split
from keylane.keyrange.space import HASH_MAX
from tests.reference import kernel as reference
from tests.reference import pick
from tests.reference.batches import CODEC_FORMS, seal
from tests.reference.random_batches import random_block

BYTES_MAX = 1 << 22
BLOCK_BATCHES = 8
FORM_SETS = [[form] for form in sorted(CODEC_FORMS)] + [sorted(CODEC_FORMS)]


def main(arguments: list[str] | None = None) -> int:
    """Run; 0 when kernel and twin never differed."""
    parser = argparse.ArgumentParser(description="compare the kernel with its naive twin")
    parser.add_argument("--batches", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    per_set = -(-options.batches // len(FORM_SETS))
    for forms in FORM_SETS:
        name = forms[0] if len(forms) == 1 else "all mixed"
        started_s = time.monotonic()
        counts: Counter[str] = Counter()
        while counts["batches"] < per_set:
            seed = f"{options.seed}/{name}/{counts['batches']}"
            try:
                compare_block(seed, forms, counts)
            except Exception as error:
                error.add_note(f"seed {seed}")
                raise
        took_s = time.monotonic() - started_s
        reported = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
        print(f"{name}: equal in {took_s:.0f} s over {reported}", flush=True)
    return 0


def compare_block(seed: str, forms: list[str], counts: Counter[str]) -> None:
    """Make one block from its seed, maybe cut or damage it, and compare the answers."""
    rng = random.Random(seed)
    block = random_block(rng, BLOCK_BATCHES, forms)
    counts["batches"] += len(block)
    key_split = _random_split(rng)
    plain_bytes_max = rng.choice((BYTES_MAX, BYTES_MAX, 3_000))
    whole = b"".join(block)
    reference.assert_same_answer(whole, key_split, plain_bytes_max, BYTES_MAX)
    pick.assert_same_answer(whole, plain_bytes_max, BYTES_MAX)
    expected = reference.split_block(
        whole, key_split.limits.tolist(), plain_bytes_max=BYTES_MAX, batch_bytes_max=BYTES_MAX
    )
    assert expected is not None
    counts["records"] += expected.record_count
    cut = whole[: rng.randrange(len(whole))]
    reference.assert_same_answer(cut, key_split, BYTES_MAX, BYTES_MAX)
    pick.assert_same_answer(cut, BYTES_MAX, BYTES_MAX)
    counts["cuts"] += 1
    damaged = bytearray(whole)
    damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
    reference.assert_same_answer(bytes(damaged), key_split, BYTES_MAX, BYTES_MAX)
    pick.assert_same_answer(bytes(damaged), BYTES_MAX, BYTES_MAX)
    counts["bit flips"] += 1
    _compare_lying_records(rng, block, key_split, counts)


def _compare_lying_records(
    rng: random.Random, block: list[bytes], key_split: KeySplit, counts: Counter[str]
) -> None:
    """Damage the records of one batch and seal it again, so that only the walk can find it."""
    index = rng.randrange(len(block))
    batch = bytearray(block[index])
    if batch[22] & 7:
        return  # two decoders may differ in what damage they notice
    for _ in range(rng.randrange(1, 4)):
        batch[rng.randrange(23, len(batch))] = rng.randrange(256)
    lying = b"".join([*block[:index], seal(bytes(batch)), *block[index + 1 :]])
    reference.assert_same_answer(lying, key_split, BYTES_MAX, BYTES_MAX)
    pick.assert_same_answer(lying, BYTES_MAX, BYTES_MAX)
    counts["lying records"] += 1


def _random_split(rng: random.Random) -> KeySplit:
    if rng.random() < 0.5:
        return even_split(rng.choice((1, 2, 4, 16, 100)))
    cuts = {rng.randrange(1, HASH_MAX) for _ in range(rng.randrange(20))}
    return KeySplit(sorted(cuts))


if __name__ == "__main__":
    sys.exit(main())
