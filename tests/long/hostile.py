"""Millions of hostile inputs: at the decoders, then at the sockets of a real keylane.

`python -m tests.long.hostile --inputs 10000000 --seed 1 --minutes 60`: most inputs go to the
decoders in a process of their own, one in fifty (`--sockets`) through real connections: bytes,
TLS, logins, every API in every version, fetch sessions, share groups, the control port. Prints a
table and what is wrong; exit code 1 when something is. `--only sockets` leaves the decoders out,
`--show NUMBER` prints one input of the decoders.

In:    how many, a seed, minutes.  Out: lines on stdout; findings in tests/fuzz/corpus.

These must hold: no exception but the declared ones; no input takes a second; the event loop
answers /livez within a second (waits for a CPU taken off); memory within `--memory-mib`; no stack
trace, secret or byte of a client in the log, and no more lines than inputs; as many descriptors
after it as before.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from keylane.config.node import split_address
from tests.fuzz.mutate import make_input
from tests.fuzz.targets import TARGETS
from tests.integration.keylane_process import KeylaneProcess
from tests.long.hostile_log import judge_log
from tests.long.hostile_parsers import Tally, keep, run_parsers
from tests.long.hostile_sockets import SocketTally, play
from tests.long.hostile_stage import LANES, MEMORY_MIB, TOPICS, HostileStage
from tests.long.hostile_talk import Aim
from tests.long.watch import Look, Watch, descriptor_count

SOCKET_SHARE: Final = 50
LOOP_S_MAX: Final = 1.0
SETTLE_S: Final = 60.0
SOCKETS_S_MIN: Final = 60.0
"""Seconds that the sockets have at least, whatever the decoders and the starts took."""
DESCRIPTORS_SLACK: Final = 16 + 2 * sum(TOPICS[rule.partition("=")[0]] for rule in LANES)
"""keylane's own connections to brokers: up to two for each partition whose lanes were read, one
or two for each lane name in use, and some that are one moment there and not the next."""
WARM_INPUTS: Final = 300
TIMEOUTS: Final = ("beside_others=true", "frame_timeout_s=5", "idle_timeout_s=20")


@dataclass(slots=True)
class Siege:
    """Result of the part over sockets."""

    tally: SocketTally
    looks: dict[str, Look] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)


def besiege(folder: Path, seed: int, inputs: int, deadline_s: float, memory_mib: float) -> Siege:
    """Hostile clients at two keylanes, one with TLS, before one Kafka."""
    with HostileStage(folder, memory_mib) as stage, ExitStack() as watches:
        plain = stage.keylane(*TIMEOUTS).start()
        tls = stage.keylane(*TIMEOUTS, f"tls_certificate={stage.certificate}").start()
        proxies = {"plain": plain, "TLS": tls}
        places = [split_address(at) for at in (plain.bootstrap, tls.bootstrap, plain.control)]
        aim = Aim(places[0], places[1], places[2], stage.authority.ca)
        asyncio.run(play(seed + 1, WARM_INPUTS, aim, math.inf, reported=lambda _: None))
        before = {name: settled_descriptors(proxy) for name, proxy in proxies.items()}
        watching = {
            name: watches.enter_context(Watch(proxy.pid, proxy.control))
            for name, proxy in proxies.items()
        }
        until_s = max(deadline_s, time.monotonic() + SOCKETS_S_MIN)
        siege = Siege(asyncio.run(play(seed, inputs, aim, until_s, reported=report)))
        siege.findings += siege.tally.findings
        for name, watch in watching.items():
            siege.looks[name] = watch.cut()
            siege.findings += judge_look(name, siege.looks[name], memory_mib)
        watches.close()
        for name, proxy in proxies.items():
            siege.findings += judge_end(name, proxy, before[name])
            siege.lines[name] = len(proxy.log.splitlines())
            siege.findings += judge_log(
                proxy.log, inputs=siege.tally.total + WARM_INPUTS, name=name
            )
    return siege


def judge_look(name: str, look: Look, memory_mib: float) -> list[str]:
    """Check the figures of a while against the bounds."""
    found = []
    if look.failed:
        found.append(f"{name}: {look.failed} of {look.probes} probes of /livez failed")
    if look.livez_own_s > LOOP_S_MAX:
        found.append(f"{name}: /livez took {look.livez_own_s:.2f} s, CPU waits taken off")
    if look.loop_delay_own_s > LOOP_S_MAX:
        found.append(f"{name}: the loop was late by {look.loop_delay_own_s:.2f} s")
    if look.rss_mib > memory_mib:
        found.append(f"{name}: {look.rss_mib:.0f} MiB, at most {memory_mib:.0f} are allowed")
    return found


def judge_end(name: str, proxy: KeylaneProcess, before: int) -> list[str]:
    """It runs, with no more descriptors than before."""
    if not proxy.running:
        return [f"{name}: keylane has ended"]
    after = settled_descriptors(proxy, before + DESCRIPTORS_SLACK)
    if after > before + DESCRIPTORS_SLACK:
        return [f"{name}: {after} descriptors are open, {before} were before"]
    return []


def settled_descriptors(proxy: KeylaneProcess, wanted: int = 0) -> int:
    """How many stay open: as soon as there are `wanted`, or there have been no fewer for a while.

    What was left without a word is closed by `idle_timeout_s`.
    """
    deadline_s = time.monotonic() + SETTLE_S
    lowest, since_s = descriptor_count(proxy.pid), time.monotonic()
    while lowest > wanted and time.monotonic() < min(deadline_s, since_s + SETTLE_S / 2):
        time.sleep(0.2)  # /proc has no event; the deadline bounds it
        count = descriptor_count(proxy.pid)
        if count < lowest:
            lowest, since_s = count, time.monotonic()
    return lowest


def render_parsers(tally: Tally) -> str:
    """Inputs by decoder."""
    lines = [f"{'decoder':24}{'inputs':>10}{'read':>10}{'refused':>10}{'us':>8}{'worst ms':>10}"]
    for target in TARGETS:
        name = target.__name__
        read, refused = tally.counts[name, "read"], tally.counts[name, "refused"]
        count = read + refused + tally.counts[name, "finding"]
        if count:
            each_us = tally.seconds[name] / count * 1e6
            worst_ms = tally.worst_s.get(name, 0.0) * 1e3
            lines.append(
                f"{name.removeprefix('fuzz_'):24}{count:>10}{read:>10}{refused:>10}"
                f"{each_us:>8.0f}{worst_ms:>10.0f}"
            )
    growth = f"{tally.rss_growth_mib:.0f} MiB above the first thousand"
    lines.append(f"{'all':24}{tally.inputs:>10}   {tally.rss_mib:.0f} MiB at most, {growth}")
    return "\n".join(lines)


def render_siege(siege: Siege) -> str:
    """Inputs by kind, and what keylane was like."""
    tally = siege.tally
    lines = [f"{'over sockets':24}{'inputs':>10}{'connections':>13}{'not served':>12}"]
    lines += [
        f"{name:24}{tally.inputs[name]:>10}{tally.connections[name]:>13}{tally.lost[name]:>12}"
        for name in sorted(tally.connections)
    ]
    lines.append(f"{'all':24}{tally.total:>10}{sum(tally.connections.values()):>13}")
    lines.append(
        f"{'keylane':10}{'probes':>8}{'/livez s':>10}{'own s':>8}{'loop s':>8}{'own s':>8}"
        f"{'prober s':>10}{'RSS MiB':>9}{'files':>7}{'log lines':>11}"
    )
    for name, look in siege.looks.items():
        lines.append(
            f"{name:10}{look.probes:>8}{look.livez_s:>10.2f}{look.livez_own_s:>8.2f}"
            f"{look.loop_delay_s:>8.2f}{look.loop_delay_own_s:>8.2f}{look.prober_late_s:>10.2f}"
            f"{look.rss_mib:>9.0f}{look.descriptors_max:>7}{siege.lines[name]:>11}"
        )
    return "\n".join(lines)


def report(text: str) -> None:
    """Print the progress."""
    print(text, flush=True)


def run(args: argparse.Namespace, folder: Path) -> int:
    """Both parts; how many findings."""
    started_s = time.monotonic()
    deadline_s = started_s + args.minutes * 60
    sockets = args.inputs // SOCKET_SHARE if args.sockets is None else args.sockets
    findings: list[str] = []
    if args.only != "sockets":
        # What is left of the time belongs to the sockets.
        until_s = started_s + args.minutes * (60 if args.only else 40)
        tally = run_parsers(args.seed, args.inputs - sockets, until_s, report)
        for finding in tally.findings:
            path = keep(finding)
            kept = f", kept as {path.name}" if path else ""
            count = tally.kinds[finding.kind]
            findings.append(
                f"{finding.target} input {finding.number} ({count} alike): {finding.text}{kept}"
            )
        print(render_parsers(tally))
    if args.only != "parsers":
        siege = besiege(folder, args.seed, sockets, deadline_s, args.memory_mib)
        findings += siege.findings
        print(render_siege(siege))
    for text in findings:
        print(f"FINDING: {text}")
    took_s = time.monotonic() - started_s
    verdict = f"FAILED, {len(findings)} findings" if findings else "no finding"
    print(f"seed {args.seed}, {took_s / 60:.1f} minutes: {verdict}")
    return len(findings)


def main() -> int:
    """Run and print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000_000, help="of both parts")
    parser.add_argument("--sockets", type=int, help="of these over sockets; default a fiftieth")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60, help="it ends then at the latest")
    parser.add_argument("--only", choices=("parsers", "sockets"))
    parser.add_argument(
        "--memory-mib", type=float, default=MEMORY_MIB, help="`memory_max` of keylane"
    )
    parser.add_argument("--folder", type=Path, help="where logs stay")
    parser.add_argument("--show", type=int, help="print the decoders' input of this number")
    args = parser.parse_args()
    if args.show is not None:
        data = make_input(args.seed, args.show)
        print(TARGETS[data[0]].__name__, data[1], data[2:])
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        return 1 if run(args, folder) else 0


if __name__ == "__main__":
    sys.exit(main())
