"""keylane/pipeline/migration on made-up sides: by hand, and against a twin in plain Python."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

from pyspark.sql import SparkSession

from keylane.pipeline.migration import sides

ROWS = "side int, keyless boolean, k bigint, k2 bigint, d bigint, size int, p int, o bigint"
PLACES = ("p_before", "o_before", "p_after", "o_after")
Place = tuple[int | None, int | None]
Found = tuple[Any, ...]


def run(spark: SparkSession, rows: list[tuple[Any, ...]], *, any_order: bool = False):
    """Marks, differences, and first differences of rows."""
    numbered = sides.numbered(spark.createDataFrame(rows, ROWS), any_order=any_order).persist()
    marks = sides.key_marks(numbered).persist()
    differing = sides.differing(numbered, marks).persist()
    first = sides.first_differences(differing)
    return marks, sides.differences(differing), first


def side(number: int, values: str, *, key: int = 1, partition: int = 0, start: int = 0):
    """Rows of one key on one side; each letter is a value."""
    return [
        (number, False, key, 0, ord(letter), 1, partition, start + at)
        for at, letter in enumerate(values)
    ]


def test_differences_by_hand(spark: SparkSession) -> None:
    """Lost, added, twice, and moved, each in a key by itself; a key that is the same has none."""
    rows = [
        *side(0, "abc", key=1), *side(1, "abc", key=1, partition=5, start=70),
        *side(0, "abc", key=2), *side(1, "ac", key=2),
        *side(0, "abc", key=3), *side(1, "abxc", key=3),
        *side(0, "abc", key=4), *side(1, "abab", key=4), *side(1, "c", key=4, start=4),
        *side(0, "abc", key=5), *side(1, "cab", key=5),
    ]  # fmt: skip

    marks, differences, first = run(spark, rows)

    found = {
        (row["k"], row["kind"], chr(row["d"]), row["o_before"], row["o_after"])
        for row in differences.collect()
    }
    assert found == {
        (2, "missing", "b", 1, None),
        (3, "extra", "x", None, 2),
        (4, "duplicated", "a", None, 2),
        (4, "duplicated", "b", None, 3),
        (5, "reordered", "c", 2, 0),
    }
    (moved,) = differences.where("kind = 'reordered'").collect()
    # It came before b, which stands before it on the other side.
    assert (moved["previous_o_before"], moved["previous_o_after"]) == (1, 2)
    parts = {row["k"]: (row["seq"], row["o_before"], row["o_after"]) for row in first.collect()}
    assert parts == {2: (2, 1, 1), 3: (3, 2, 2), 4: (3, 2, 2), 5: (1, 0, 0)}
    assert marks.where("differs").count() == 4
    assert marks.where("unordered").count() == 0


def test_a_key_in_several_partitions_has_no_order_that_could_differ(spark: SparkSession) -> None:
    """Alike in each partition is the same; else only its records are compared."""
    rows = [
        *side(0, "ab", key=1), *side(0, "c", key=1, partition=1),
        *side(1, "ab", key=1), *side(1, "c", key=1, partition=1),
        *side(0, "ab", key=2), *side(0, "c", key=2, partition=1),
        *side(1, "cba", key=2),
        *side(0, "ab", key=3), *side(0, "c", key=3, partition=1),
        *side(1, "cb", key=3),
    ]  # fmt: skip

    marks, differences, first = run(spark, rows)

    assert {row["k"] for row in marks.where("unordered").collect()} == {2, 3}
    assert [(row["k"], row["kind"], chr(row["d"])) for row in differences.collect()] == [
        (3, "missing", "a")
    ]
    assert first.count() == 0


def test_records_without_a_key_are_counted_and_not_ordered(spark: SparkSession) -> None:
    """Two equal ones are not none, although they cancel in an exclusive or."""
    keyless = [(0, True, 0, 0, ord(x), 1, p, o) for x, p, o in [("a", 0, 0), ("b", 0, 1)]]
    keyless += [(1, True, 0, 0, ord(x), 1, p, o) for x, p, o in [("b", 3, 0), ("a", 1, 0)]]
    pair = [(0, True, 0, 0, ord("x"), 1, 0, 7), (0, True, 0, 0, ord("x"), 1, 0, 8)]
    pair += [(1, True, 0, 0, ord("y"), 1, 0, 7), (1, True, 0, 0, ord("y"), 1, 0, 8)]

    marks, differences, _ = run(spark, keyless + pair)

    found = sorted((row["kind"], chr(row["d"])) for row in differences.collect())
    assert found == [("extra", "y"), ("extra", "y"), ("missing", "x"), ("missing", "x")]
    assert marks.where("unordered").count() == 0


def test_without_an_order_only_the_records_count(spark: SparkSession) -> None:
    """The keys of before, of which one was moved, are the same by their records."""
    rows = [*side(0, "abcb"), *side(1, "cbba")]

    marks, differences, _ = run(spark, rows, any_order=True)

    assert marks.where("differs or unordered").count() == 0
    assert differences.count() == 0


def test_differences_are_those_of_a_twin(spark: SparkSession) -> None:
    """Random sides, a key for each case, with and without a key, in one partition and in two."""
    chance = random.Random(11)
    rows = []
    for case in range(150):
        before = [chance.choice("abcd") for _ in range(chance.randint(0, 7))]
        after = list(before)
        for _ in range(chance.choice([0, 0, 1, 1, 2, 3])):
            at = chance.randint(0, max(len(after) - 1, 0))
            kind = chance.choice(["drop", "add", "twice", "swap"])
            if kind == "drop" and after:
                del after[at]
            elif kind == "add":
                after.insert(at, chance.choice("abcdxy"))
            elif kind == "twice" and after:
                after.insert(at, after[at])
            elif len(after) > 1:
                after[at], after[0] = after[0], after[at]
        keyless, scattered = chance.random() < 0.2, chance.random() < 0.2
        for number, values in enumerate((before, after)):
            places = [(chance.randint(0, 1) if scattered else case % 3) for _ in values]
            rows += [
                (number, keyless, 0 if keyless else case, 0, 100 * case + ord(value), 1, p, o)
                for o, (value, p) in enumerate(zip(values, places, strict=True))
            ]

    marks, differences, _ = run(spark, rows)

    found = sorted(
        (row["kind"], row["d"], *(-1 if row[name] is None else row[name] for name in PLACES))
        for row in differences.collect()
    )
    expected, unordered = twin(rows)
    assert found == expected
    assert {row["k"] for row in marks.where("unordered").collect()} == unordered


def twin(rows: list[tuple[Any, ...]]) -> tuple[list[Found], set[int]]:
    """Differences, and keys whose order cannot be judged, key by key."""
    keys: defaultdict[tuple[bool, int], tuple[list[Any], list[Any]]] = defaultdict(lambda: ([], []))
    for number, keyless, k, _, d, _, p, o in rows:
        keys[keyless, k][number].append((p, o, d))
    expected: list[Found] = []
    unordered_keys = set()
    for (keyless, k), (before, after) in keys.items():
        before.sort()
        after.sort()
        scattered = any(len({p for p, _, _ in rows}) > 1 for rows in (before, after))
        alike = [(p, d) for p, _, d in before] == [(p, d) for p, _, d in after]
        is_unordered = keyless or (scattered and not alike)
        if is_unordered and not keyless:
            unordered_keys.add(k)
        expected += compare(before, after, is_unordered=is_unordered)
    return sorted(expected), unordered_keys


def compare(before: list[Any], after: list[Any], *, is_unordered: bool) -> list[Found]:
    """Differences of one key."""
    free: defaultdict[int, list[Any]] = defaultdict(list)
    for seq, (p, o, d) in enumerate(after):
        free[d].append((seq, p, o))
    found: list[Found] = []
    latest = -1
    for p, o, d in before:
        if not free[d]:
            found.append(("missing", d, p, o, -1, -1))
            continue
        seq, after_p, after_o = free[d].pop(0)
        if seq < latest and not is_unordered:
            found.append(("reordered", d, p, o, after_p, after_o))
        latest = max(latest, seq)
    had = {d for _, _, d in before}
    for d, places in free.items():
        kind = "duplicated" if d in had else "extra"
        found += [(kind, d, -1, -1, p, o) for _, p, o in places]
    return found
