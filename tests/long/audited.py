"""The demo's consumers for minutes, members killed on the way, judged by `keylane spark audit`.

`python -m tests.long.audited --minutes 5`: eight stock consumers of three libraries report what
they do; Spark says whether anything was lost, repeated, out of order or at two members at once.
Exit code as the audit's: 0 clean, 1 findings, 2 inconclusive.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from keylane.embedded import EmbeddedKafka
from keylane.pipeline.audit.cli import render
from keylane.pipeline.audit.job import AuditRequest, run_audit
from keylane.pipeline.start import open_session
from tests.integration.keylane_process import KeylaneProcess
from tests.spark.audited_group import AuditedGroup, GroupRun

PARTITIONS, LANES, AUDIT_PARTITIONS = 2, 8, 4
RATE_PER_S = 1500.0


def run(minutes: float, folder: Path) -> int:
    """One run; the audit's exit code."""
    with EmbeddedKafka(folder / "kafka") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        topics = [NewTopic("orders", PARTITIONS, 1), NewTopic("audit", AUDIT_PARTITIONS, 1)]
        for future in admin.create_topics(topics).values():
            future.result(60)
        proxy = KeylaneProcess(
            broker.bootstrap, [f"orders={LANES}"], log_path=folder / "keylane.log"
        ).start()
        group = AuditedGroup(
            GroupRun(
                kafka=broker.bootstrap,
                proxy=proxy.bootstrap,
                topic="orders",
                audit_topic="audit",
                partitions=PARTITIONS,
                lanes=LANES,
                folder=folder,
                orders=round(minutes * 60 * RATE_PER_S),
                rate_per_s=RATE_PER_S,
                timeout_s=minutes * 60 + 300,
            )
        )
        ledger = group.play()
        print(f"the members reported {ledger.counts.deliveries} deliveries", flush=True)
        assert proxy.stop() == 0
        with open_session("audited", master="local[2]") as spark:
            request = AuditRequest(
                bootstrap=broker.bootstrap,
                input_topic="orders",
                audit_topic="audit",
                out=str(folder / "out"),
            )
            verdict = run_audit(spark, request)
    print(render(verdict))
    return verdict.exit_code


def main() -> int:
    """Run and print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return run(args.minutes, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
