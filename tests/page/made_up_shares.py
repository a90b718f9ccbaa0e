"""Made-up share groups in the order of keys, for the live page: calm, held up, and stopped."""

from __future__ import annotations

import random
from typing import Any


def made_up_shares(*, seed: int) -> list[dict[str, Any]]:
    """Return a group with a key that is held up, and one that is well."""
    chance = random.Random(seed)
    return [
        {
            "name": "payments-workers",
            "state": "Stable",
            "members": 12,
            "lag": 48_200 + seed,
            "partitions": [
                partition("payments", 3, 0, 31_000, error="CORRUPT_MESSAGE", members=12),
                partition("payments", 1, 0, 9_400, is_settled=False, members=12),
                partition(
                    "payments", 0, 1_870, 7_100, in_flight=12, ready=30, waiting=540, released=3,
                    oldest_s=768.0, members=12, handed_out=52_100, redelivered=1_560,
                    last_attempts=2,
                    keys=[("8812096401244417722", 214, 768.0), ("1204411890111877402", 38, 11.0)],
                ),
                partition(
                    "payments", 2, 1_120, 700, in_flight=12, ready=210, waiting=460,
                    oldest_s=21.4, members=12, handed_out=48_800, redelivered=12,
                    keys=[("4402096401244417731", 31, 21.4)],
                ),
                elsewhere("payments", 4),
                elsewhere("payments", 5, node=None),
            ],
            "partitions_left_out": 0,
        },
        {
            "name": "thumbnails",
            "state": "Stable",
            "members": 3,
            "lag": 12,
            "partitions": [
                partition(
                    "images-uploaded", index, 20 + chance.randrange(60), 4, in_flight=8,
                    ready=5 + chance.randrange(9), waiting=2, oldest_s=chance.uniform(0.1, 0.9),
                    members=3, handed_out=9_000,
                )
                for index in range(3)
            ],
            "partitions_left_out": 0,
        },
    ]  # fmt: skip


def partition(
    topic: str,
    number: int,
    span: int,
    lag: int,
    *,
    keys: list[tuple[str, int, float]] | None = None,
    **values: Any,
) -> dict[str, Any]:
    """Return a partition with its window; what is not named is 0, and it is settled."""
    window = {
        "members": 0,
        "ready": 0,
        "in_flight": 0,
        "waiting": 0,
        "unconfirmed": 0,
        "released": 0,
        "last_attempts": 0,
        "oldest_offset": 120_400 if span else None,
        "oldest_s": None,
        "end_offset": 120_399 + span,
        "span": span,
        "look_ahead": 2000,
        "handed_out": 0,
        "redelivered": 0,
        "is_settled": True,
        "error": None,
        "hottest_keys": [
            {"hash": point, "records": records, "oldest_offset": 120_400 + 7 * at, "held_s": held_s}
            for at, (point, records, held_s) in enumerate(keys or ())
        ],
        **values,
    }
    return {"topic": topic, "partition": number, "lag": lag, "node": None, "window": window}


def elsewhere(topic: str, number: int, node: str | None = "http://node-2:9100") -> dict[str, Any]:
    """Return a partition whose window is at another node, or closed."""
    return {"topic": topic, "partition": number, "lag": None, "node": node, "window": None}
