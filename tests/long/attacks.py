"""Attacks, one after the other, beside a group that must keep its pace.

`python -m tests.long.attacks --seconds 60`: for each attack a fresh keylane (node 0 of one), a
group of stock consumers on lanes and a producer at a fixed rate; then the pace before, during and
after. Prints a table; exit code 1 when the pace falls below 0.8 of that without the attack,
/livez takes longer than a second, memory passes the bound, keylane does not start again, or the
attacker gets what it must not (`HARM`).
`--only "bomb,idle"` plays these, `--list` names all.

In:    seconds of each attack.  Out: lines on stdout.

A pace is records per second in windows of five seconds, and its median counts. The producer's rate
is fixed and moderate: the attacker, Kafka, keylane and the group share one machine, and a group
that lives on all that is left of it would slow down by the attacker's own CPU time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from keylane.embedded.child import ChildEnded
from tests.integration.keylane_process import KeylaneProcess
from tests.long.attack_client import HARM, Places
from tests.long.attack_kinds import ATTACKS, Attack, Got
from tests.long.attack_load import RECORDS_PER_S, Load, ratio
from tests.long.hostile_stage import MEMORY_MIB, HostileStage, descriptors
from tests.long.watch import Look, Watch

RATIO_MIN: Final = 0.8
LIVEZ_S_MAX: Final = 1.0
FILES: Final = 20_000
QUIET_S: Final = 15.0
LEAVE_S: Final = 60.0
"""Seconds that an attacker may take to end once its time is up."""
GROUP, TOPIC = "load", "orders"
GOT_SHOWN: Final = 6


@dataclass(slots=True)
class Row:
    """Result of one attack."""

    name: str
    before: list[float] = field(default_factory=list)
    during: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    got: Got = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Pace of the attack by that without."""
        return ratio(self.during, self.before + self.after)

    def judge(self, memory_mib: float) -> None:
        """Note figures that are out of bounds."""
        if self.ratio < RATIO_MIN:
            self.failures.append(f"pace {self.ratio:.2f}")
        if self.worst("livez_own_s") > LIVEZ_S_MAX:
            self.failures.append(f"/livez {self.worst('livez_own_s'):.1f} s")
        if self.worst("rss_mib") > memory_mib:
            self.failures.append(f"{self.worst('rss_mib'):.0f} MiB")
        self.failures += [f"{name} x{count}" for name, count in self.got.items() if HARM in name]
        if failed := sum(look.failed for look in self.looks):
            self.failures.append(f"{failed} probes failed")

    def worst(self, name: str) -> float:
        """The highest of a figure in all looks."""
        return max((float(getattr(look, name)) for look in self.looks), default=0.0)

    def line(self) -> str:
        """Return the row of the table."""
        least = min(self.during, default=0.0)
        got = ", ".join(f"{name} x{count}" for name, count in self.got.most_common(GOT_SHOWN))
        verdict = "; ".join(self.failures) or "ok"
        return (
            f"{self.name:24}{self.ratio:>7.2f}{least / RECORDS_PER_S:>7.2f}"
            f"{self.worst('livez_s'):>8.2f}{self.worst('livez_own_s'):>7.2f}"
            f"{self.worst('rss_mib'):>8.0f}  {verdict}\n{'':24}  got: {got}"
        )


HEAD: Final = f"{'attack':24}{'ratio':>7}{'least':>7}{'/livez':>8}{'own':>7}{'RSS MiB':>8}"


def run_attack(stage: HostileStage, attack: Attack, seconds: float, memory_mib: float) -> Row:
    """Play one row, with its own keylane and group."""
    name = f"{attack.name}, few files" if attack.descriptors else attack.name
    row = Row(name)
    proxy = stage.keylane("authorization_ttl_s=10", node=0)
    try:
        with descriptors(attack.descriptors) if attack.descriptors else nullcontext():
            proxy.start()
        places = Places(
            keylane=proxy.bootstrap,
            control=proxy.control,
            brokers=stage.direct,
            admin=stage.kafka.bootstrap,
            load_group=GROUP,
            load_topic=TOPIC,
        )
        with Load(stage.kafka.bootstrap, proxy.bootstrap, TOPIC, GROUP, stage.folder) as load:
            _play(row, attack, load, proxy, places, seconds)
    except (ChildEnded, AssertionError) as error:
        row.failures.append(f"keylane or the group did not start: {str(error).splitlines()[-1]}")
    except Exception as error:  # noqa: BLE001  the other attacks are still worth a row
        traceback.print_exc()
        row.failures.append(f"broke: {error}")
    finally:
        proxy.stop()
        stage.forget()
    row.judge(memory_mib)
    if "Traceback" in proxy.log:
        row.failures.append("a stack trace in the log")
    return row


def _play(
    row: Row,
    attack: Attack,
    load: Load,
    proxy: KeylaneProcess,
    places: Places,
    seconds: float,
) -> None:
    """Quiet, the attack, quiet again."""
    row.before, look = _while(load, proxy, QUIET_S)
    row.looks.append(look)
    with attacking(attack, places, seconds, row.got) as until_s:
        half_s = seconds / 2 if attack.restarts else seconds
        during, look = _while(load, proxy, half_s)
        row.during += during
        row.looks.append(look)
        if attack.restarts:
            proxy.restart()
            during, look = _while(load, proxy, max(half_s, until_s - time.monotonic()))
            row.during += during
            row.looks.append(look)
    row.after, look = _while(load, proxy, QUIET_S)
    row.looks.append(look)


def _while(load: Load, proxy: KeylaneProcess, seconds: float) -> tuple[list[float], Look]:
    """The paces and the look of a while."""
    with Watch(proxy.pid, proxy.control) as watch:
        from_s = time.monotonic()
        time.sleep(seconds)
        return load.paces(from_s, time.monotonic()), watch.cut()


@contextmanager
def attacking(attack: Attack, places: Places, seconds: float, got: Got) -> Iterator[float]:
    """Run the attack in another process; yield its end, in seconds. Kill it if it is late."""
    spawn = multiprocessing.get_context("spawn")
    results, theirs = spawn.Pipe()
    arguments = (ATTACKS.index(attack), places, theirs)
    child = spawn.Process(target=_attack, args=arguments, daemon=True)
    child.start()
    theirs.close()
    try:
        results.recv()  # it has imported what it needs
        until_s = time.monotonic() + seconds
        results.send(until_s)
        yield until_s
    finally:
        try:
            got.update(results.recv() if results.poll(LEAVE_S) else {"did not end": 1})
        except EOFError:
            got["the attacker died"] += 1
        child.join(1)
        if child.is_alive():
            child.kill()
            child.join()


def _attack(number: int, places: Places, results: Any) -> None:
    results.send("ready")
    until_s = results.recv()
    with descriptors(FILES):
        try:
            results.send(ATTACKS[number].play(places, until_s))
        except Exception as error:  # noqa: BLE001  what ended an attacker is what it got
            results.send(Counter({f"ended: {type(error).__name__}: {error}"[:100]: 1}))


def main() -> int:
    """Run and print the table."""
    names = sorted({attack.name for attack in ATTACKS})
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="of each attack")
    parser.add_argument("--only", default="", help="only these, by comma")
    parser.add_argument("--list", action="store_true", help="name all attacks")
    parser.add_argument(
        "--memory-mib", type=float, default=MEMORY_MIB, help="`memory_max` of keylane"
    )
    parser.add_argument("--folder", type=Path, help="where logs stay")
    args = parser.parse_args()
    if args.list:
        print("\n".join(names))
        return 0
    wanted = set(filter(None, args.only.split(",")))
    if unknown := wanted - set(names):
        parser.error(f"--only: no attack is called {', '.join(sorted(unknown))}")
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with descriptors(FILES), HostileStage(folder, args.memory_mib) as stage:
            for attack in ATTACKS:
                if not wanted or attack.name in wanted:
                    rows.append(run_attack(stage, attack, args.seconds, args.memory_mib))
                    print(f"{HEAD}\n{rows[-1].line()}", flush=True)
    print(f"\n{RECORDS_PER_S} records per second, {args.seconds:g} s of each attack\n{HEAD}")
    print("\n".join(row.line() for row in rows))
    ratios = [row.ratio for row in rows]
    failed = [row.name for row in rows if row.failures]
    median = statistics.median(ratios) if ratios else 0.0
    print(
        f"median ratio {median:.2f}: " + (f"FAILED: {', '.join(failed)}" if failed else "all held")
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
