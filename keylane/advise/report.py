"""The advice as text for people, and as a document for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from keylane.advise.advice import HOT_SHARE_KEYS, Advice, Judgement, command_of

DOCUMENT_VERSION: Final = 1
INDENT: Final = 11
SHARE_SHOWN: Final = 0.001
UNITS: Final = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def render(advice: Advice) -> str:
    """Return the advice in a line for each subject, and the command."""
    lines = (
        ("topic", _topic(advice)),
        ("flow", _flow(advice)),
        ("keys", _keys(advice)),
        ("hot keys", _hot_keys(advice)),
        ("today", _today(advice)),
        ("lanes", _lanes(advice)),
        ("limit", _limit(advice)),
        ("work", _work(advice)),
        ("cost", _cost(advice)),
        ("verdict", _verdict(advice)),
    )
    text = [f"{name:<{INDENT}}{'. '.join(parts)}." for name, parts in lines]
    return "\n".join([*text, f"{'command':<{INDENT}}{command_of(advice)}"])


def document_of(advice: Advice) -> dict[str, Any]:
    """Return all figures; shares are parts of 1, rates are per second, names have their units."""
    keys, speedup, sample = advice.keys, advice.speedup, advice.sample
    return {
        "version": DOCUMENT_VERSION,
        "verdict": advice.verdict.value,
        "reason": ". ".join(_verdict(advice)),
        "command": command_of(advice),
        "topic": _topic_document(advice),
        "group": None if advice.group is None else _group_document(advice),
        "sample": None
        if sample is None
        else {
            "records": sample.record_count,
            "records_in_range": round(sample.records_in_range),
            "seconds": round(sample.seconds, 3),
            "is_small": advice.is_sample_small,
            "records_by_partition": [part.record_count for part in sample.partitions],
        },
        "keys": {
            "distinct": _rounded(advice.distinct_keys, 0),
            "keyless_share": round(keys.keyless_share, 6),
            "hottest_share": round(keys.hottest_share, 6),
            f"hottest_{HOT_SHARE_KEYS}_share": round(advice.hot_share, 6),
            "hot": [
                {"partition": k.partition, "key_hash": str(k.key_hash), "share": round(k.share, 6)}
                for k in advice.hot_keys
            ],
            "partition_shares": [round(share, 6) for share in keys.partition_shares],
        },
        "speedup": {
            "members": speedup.members,
            "lanes": speedup.lanes,
            "parallel": round(speedup.parallel, 4),
            "parallel_first": round(speedup.parallel_first, 4),
            "interval": None if advice.interval is None else [round(v, 4) for v in advice.interval],
            "bound": round(speedup.bound, 4),
            "ceiling": _rounded(advice.ceiling, 4),
            "one_member_per_partition": round(advice.direct, 4),
            "plain_group": round(advice.plain, 4),
            "gain": round(advice.gain, 4),
            "workers": {
                "concurrency": advice.workers.concurrency,
                "plain_kafka": round(advice.workers.direct, 4),
                "lanes": round(advice.workers.lanes, 4),
            },
        },
        "rates": None if advice.rates is None else _rates_document(advice),
        "cost": {
            "records_per_s": round(advice.costs.records_per_s, 3),
            "cpu_cores": round(advice.costs.cpu_cores, 5),
            "memory_bytes": advice.costs.memory_bytes,
            "memory_bytes_max": advice.costs.memory_bytes_max,
            "from_brokers_bytes_per_s": round(advice.costs.from_brokers_bytes_per_s),
            "to_members_bytes_per_s": round(advice.costs.to_members_bytes_per_s),
            "latency_ms": advice.costs.latency_ms,
        },
    }


def _topic_document(advice: Advice) -> dict[str, Any]:
    keys, facts, sample = advice.keys, advice.topic, advice.sample
    found: dict[str, Any] = {
        "name": keys.topic,
        "partitions": len(keys.partitions),
        "records": round(keys.record_count),
        "record_bytes": round(keys.record_bytes, 2),
        "stored_bytes": None if sample is None else round(sample.wire_bytes, 2),
    }
    if facts is not None:
        found |= {
            "replication": facts.replication,
            "out_of_sync": facts.out_of_sync,
            "is_compacted": facts.is_compacted,
            "offsets_kept": facts.offsets_kept,
            "produced_per_s": round(facts.produced_per_s, 3),
            "produced_mean_per_s": _rounded(facts.produced_mean_per_s, 3),
            "looked_s": round(facts.looked_s, 3),
        }
    return found


def _group_document(advice: Advice) -> dict[str, Any]:
    group = advice.group
    assert group is not None, "asked for where there is one"
    return {
        "name": group.name,
        "members": group.member_count,
        "lag": group.lag,
        "consumed_per_s": round(group.consumed_per_s, 3),
        "partitions_committed": group.committed_count,
        "partitions_behind": group.behind_count,
        "work_ms": None if group.work_s is None else round(group.work_s * 1000, 4),
    }


def _rates_document(advice: Advice) -> dict[str, Any]:
    rates = advice.rates
    assert rates is not None, "asked for where there are some"
    return {
        "work_ms": round(rates.work_s * 1000, 4),
        "is_estimated": rates.is_estimated,
        "one_member_per_partition_per_s": round(rates.direct, 3),
        "lanes_per_s": round(rates.lanes, 3),
        "members_needed": rates.members_needed,
    }


# -- lines ------------------------------------------------------------------------------------


def _topic(advice: Advice) -> Iterator[str]:
    keys, facts, sample = advice.keys, advice.topic, advice.sample
    parts = _counted(len(keys.partitions), "partition")
    stored = "" if sample is None else f", {sample.wire_bytes:,.0f} as stored"
    size = f"{keys.record_bytes:,.0f} bytes each{stored}"
    if facts is None:
        yield f"{keys.topic}: {parts}, {keys.record_count:,.0f} records in the profile, {size}"
        return
    yield f"{keys.topic}: {parts}, replication {facts.replication}"
    about = "about " if sample is not None and sample.density < 1 else ""
    density = 1.0 if sample is None else sample.density
    yield f"It holds {about}{facts.offsets_kept * density:,.0f} records, {size}"
    if facts.out_of_sync:
        yield f"{_counted(facts.out_of_sync, 'partition')} with replicas that are behind"
    if facts.is_compacted:
        yield "It is compacted: what is left of old records says little of what comes"
    elif sample is not None and sample.density < 1 - 10 * SHARE_SHOWN:
        yield f"{1 - sample.density:.0%} of its offsets have no record (transactions)"


def _flow(advice: Advice) -> Iterator[str]:
    facts, group = advice.topic, advice.group
    if facts is None:
        yield "a profile has no rates: ask the brokers with --bootstrap"
        return
    mean = facts.produced_mean_per_s
    usual = "" if mean is None else f", {_rate(mean)} on average in the time looked at"
    yield f"{_rate(facts.produced_per_s)} records/s come in now{usual}"
    if group is None:
        yield "Name a group (--group) for its rate and lag"
        return
    members = "" if group.member_count is None else f" ({_counted(group.member_count, 'member')})"
    if not group.committed_count:
        yield f"Group {group.name}{members} has committed nothing of this topic"
        return
    falling = facts.produced_per_s - group.consumed_per_s
    trend = ""
    if group.lag and falling > 0.02 * facts.produced_per_s:
        trend = f", and {_rate(falling)} more each second"
    yield (
        f"Group {group.name}{members} consumes {_rate(group.consumed_per_s)}/s"
        f" and is {group.lag:,} behind{trend}"
    )


def _keys(advice: Advice) -> Iterator[str]:
    keys, sample = advice.keys, advice.sample
    if advice.distinct_keys is None:
        yield "distinct keys were not counted"
    else:
        about = "" if sample is None or sample.record_count >= sample.records_in_range else "about "
        yield f"{about}{_counted(round(advice.distinct_keys), 'distinct key')}"
    yield f"{keys.keyless_share:.1%} of the records have no key"
    if sample is not None:
        of = round(sample.records_in_range)
        text = f"Sample: {sample.record_count:,} of {of:,} records"
        yield text + (", TOO SMALL to plan by: raise --sample" if advice.is_sample_small else "")


def _hot_keys(advice: Advice) -> Iterator[str]:
    if not advice.hot_keys:
        known = advice.keys.knows_keys
        yield "none, as no record has a key" if known else "not known, the profile has no keys"
        return
    first, *others = advice.hot_keys
    yield (
        f"{first.share:.1%} of all records have one key (hash {first.key_hash},"
        f" partition {first.partition})"
    )
    if others:
        shares = ", ".join(f"{key.share:.1%} ({key.key_hash})" for key in others)
        yield f"The next ones have {shares}"
        yield f"The {HOT_SHARE_KEYS} hottest have {advice.hot_share:.0%}"


def _today(advice: Advice) -> Iterator[str]:
    shares = advice.keys.partition_shares
    count = len(shares)
    yield (
        f"one member per partition does {advice.direct:.1f} times the work of one member;"
        f" the fullest partition has {max(shares):.0%} (an even part is {1 / count:.0%})"
    )
    workers = advice.workers
    yield (
        f"Python's keylane.client.Workers, {workers.concurrency} records at once, do"
        f" {workers.direct:.1f} times as much, without a proxy"
    )


def _lanes(advice: Advice) -> Iterator[str]:
    speedup = advice.speedup
    text = (
        f"{_counted(speedup.members, 'member')} on {_counted(speedup.lanes, 'lane')} per partition"
        f" do {speedup.parallel:.1f} times the work of one"
    )
    if advice.interval is not None:
        low, high = advice.interval
        text += f" ({low:.1f} to {high:.1f} by the sample)"
    times = speedup.parallel / advice.direct
    yield f"{text}: {times:.1f} times that of one member per partition"
    if speedup.parallel_first < 0.97 * speedup.parallel:
        yield (
            f"At first {speedup.parallel_first:.1f}, until keylane has measured the load and"
            " moved lanes"
        )


def _limit(advice: Advice) -> Iterator[str]:
    speedup, ceiling = advice.speedup, advice.ceiling
    if ceiling is None:
        yield (
            "no key bounds the members" if advice.keys.knows_keys else "the hottest key is unknown"
        )
    else:
        yield (
            f"{ceiling:.1f} times the work of one member, whatever the number of members and"
            f" lanes: the hottest key is at one member at a time"
        )
    if speedup.bound < speedup.members:
        more = ceiling is None or speedup.bound < 0.97 * ceiling
        cure = " (more lanes, or a plan, divide it)" if more else ""
        yield f"With {speedup.lanes} lanes the heaviest lane ends it at {speedup.bound:.1f}{cure}"


def _work(advice: Advice) -> Iterator[str]:
    rates, speedup = advice.rates, advice.speedup
    if rates is None:
        yield "name the time that a record takes (--work 10ms) for rates and members"
        return
    source = ", as the group's own rate says" if rates.is_estimated else ""
    yield (
        f"at {_duration(rates.work_s)} per record{source}, one member per partition does"
        f" {_rate(rates.direct)} records/s and {speedup.members} on lanes {_rate(rates.lanes)}"
    )
    if advice.topic is None or advice.topic.usual_per_s <= 0:
        return
    produced = _rate(advice.topic.usual_per_s)
    if rates.members_needed is None:
        yield f"No number of members manages {produced} records/s with a quarter to spare"
    else:
        members = _counted(rates.members_needed, "member")
        verb = "manages" if rates.members_needed == 1 else "manage"
        yield f"{members} {verb} {produced} records/s with a quarter to spare"


def _cost(advice: Advice) -> Iterator[str]:
    costs = advice.costs
    yield (
        f"at {_rate(costs.records_per_s)} records/s about {costs.cpu_cores:.2f} cores,"
        f" {_size(costs.memory_bytes)} of memory ({_size(costs.memory_bytes_max)} while a member is"
        f" stuck), {_size(costs.from_brokers_bytes_per_s)}/s from brokers as today,"
        f" {_size(costs.to_members_bytes_per_s)}/s to members uncompressed,"
        f" {costs.latency_ms:g} ms per record"
    )


def _verdict(advice: Advice) -> Iterator[str]:
    speedup = advice.speedup
    match advice.verdict:
        case Judgement.HELPS:
            yield f"keylane helps: {advice.gain:.1f} times the rate of one member per partition"
            if advice.keeps_up:
                yield "The group keeps up now, and gains nothing before more comes"
            if advice.workers.direct >= speedup.parallel:
                yield "In Python try Workers first: they need no proxy"
        case Judgement.NO_KEYS:
            yield "keylane is the wrong answer: without keys there is no order to keep"
            yield "A share group (Kafka 4.2) shares the partitions without a proxy"
        case Judgement.HOT_KEY:
            share = advice.keys.hottest_share
            yield f"keylane is the wrong answer: one key has {share:.0%} of all records"
            yield "Divide that key, or make its work shorter; no consumer can do both for you"
        case Judgement.WORK_TOO_SHORT:
            yield "keylane is the wrong answer: the work is too short"
            yield "Members wait for bytes and not for work, and a proxy adds to that"
        case Judgement.PARTITIONS_ENOUGH:
            yield (
                f"keylane is the wrong answer for {_counted(speedup.members, 'member')}: a plain"
                f" group does {advice.plain:.1f} times one member's work, lanes do"
                f" {speedup.parallel:.1f}"
            )
        case Judgement.KEEPS_UP:
            yield "keylane is not needed: the group keeps up, with half of its time to spare"


# -- words ------------------------------------------------------------------------------------


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def _size(value: float) -> str:
    for unit, name in UNITS:
        if value >= unit:
            return (
                f"{value / unit:,.1f} {name}"
                if value < 10 * unit
                else f"{value / unit:,.0f} {name}"
            )
    return f"{value:,.0f} B"


def _duration(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
