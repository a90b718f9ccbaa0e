"""What is seen of the workers: metrics, the progress line, spans; and signals that stop them."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from keylane.client.raw_headers import write_headers
from keylane.client.values import ConsumerRecord
from keylane.client.workers import Workers
from keylane.client.workers.progress_line import ProgressLine, format_line
from keylane.client.workers.signals import stop_signals
from keylane.client.workers.spans import with_spans
from keylane.client.workers.tallies import WORK_BUCKETS_S, Tallies
from keylane.client.workers.view import WorkersView
from keylane.tasks import spawn
from tests.reference.worker_source import P0, FakeSource, make_record, make_records
from tests.virtual_time import run_virtual

VIEW = WorkersView(3, 1_200, 40, 2, 5_000, 1, None)


async def nothing(record: ConsumerRecord) -> Any:
    return record.offset


class MeasuredSource(FakeSource):
    def metrics(self) -> dict[str, float]:
        return {"records_behind": 17.0}


def test_metrics_of_a_run():
    """The registry shows counts, gauges and times of two workers while they are open."""

    async def main() -> str:
        registry = CollectorRegistry()
        source = MeasuredSource(*make_records(P0, [b"ada", b"ben"]))
        options: Any = {"signals": False, "progress": False, "metrics": registry}
        async with (
            Workers(source, nothing, name="a", **options) as workers,
            Workers(FakeSource(), nothing, name="b", **options),
        ):
            running = spawn(workers.run(), "run")
            await asyncio.sleep(0.1)
            workers.stop()
            await running
            text = generate_latest(registry).decode()
        assert b"keylane" not in generate_latest(registry)
        return text

    lines = run_virtual(main).splitlines()

    for line in (
        'keylane_workers_done_total{workers="a"} 2.0',
        'keylane_workers_done_total{workers="b"} 0.0',
        'keylane_workers_commits_total{workers="a"} 1.0',
        'keylane_workers_in_flight{workers="a"} 0.0',
        'keylane_workers_lag{workers="a"} 17.0',
        'keylane_workers_work_seconds_bucket{le="0.0001",workers="a"} 2.0',
        'keylane_workers_work_seconds_bucket{le="+Inf",workers="a"} 2.0',
        'keylane_workers_work_seconds_count{workers="a"} 2.0',
    ):
        assert line in lines
    assert not any(line.startswith('keylane_workers_lag{workers="b"}') for line in lines)


def test_times_fall_into_buckets():
    """A time on a bound is below it, one above all is counted last."""
    tallies = Tallies()

    for work_s in (0.0, WORK_BUCKETS_S[0], WORK_BUCKETS_S[1], 1e9):
        tallies.worked(work_s)

    assert tallies.work_counts[:2] == [2, 1]
    assert tallies.work_counts[-1] == 1


def test_progress_line():
    """The line has the rate since the last one and the counts; the lag where it is known."""
    out = io.StringIO()
    line = ProgressLine(out, 10.0)

    line.show(VIEW, 500, 7, 12.0)
    line.show(VIEW._replace(lag=12_345.0), 500, 7, 13.0)
    line.end()

    first, second = out.getvalue().split("\r")[1:]
    assert first == ("250 records/s  3 in flight  1,200 queued  40 keys waiting  7 retries\x1b[K")
    assert second.startswith("0 records/s")
    assert second.endswith("lag 12,345\x1b[K\n")
    assert format_line(VIEW, 0, 0.0).startswith("0 records/s")


def test_progress_of_a_run(monkeypatch: pytest.MonkeyPatch):
    """A run shows the line on a terminal, and none elsewhere."""
    out = io.StringIO()
    out.isatty = lambda: True  # type: ignore[method-assign]  # a terminal
    monkeypatch.setattr(sys, "stderr", out)

    async def main() -> None:
        source = FakeSource(*make_records(P0, [b"ada"]))
        async with Workers(source, nothing, signals=False) as workers:
            running = spawn(workers.run(), "run")
            await asyncio.sleep(1.2)
            workers.stop()
            await running

    run_virtual(main)
    shown = out.getvalue().count("records/s")
    assert shown == 3

    out.isatty = lambda: False  # type: ignore[method-assign]  # a file
    run_virtual(main)
    assert out.getvalue().count("records/s") == shown


class Tracer:
    """Stands for OpenTelemetry: notes spans, and whether the work is inside."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        self.depth = 0

    def get_tracer(self, name: str) -> Tracer:
        return self

    @contextlib.contextmanager
    def start_as_current_span(self, name: str, **options: Any) -> Iterator[None]:
        self.spans.append({"name": name, **options})
        self.depth += 1
        yield
        self.depth -= 1


class ProxyTracerProvider:
    pass


def install(monkeypatch: pytest.MonkeyPatch, provider: Any) -> None:
    trace, propagate = ModuleType("opentelemetry.trace"), ModuleType("opentelemetry.propagate")
    vars(trace).update(
        get_tracer_provider=lambda: provider,
        ProxyTracerProvider=ProxyTracerProvider,
        SpanKind=SimpleNamespace(CONSUMER="consumer"),
    )
    vars(propagate).update(extract=lambda carrier: ("context", carrier))
    monkeypatch.setitem(sys.modules, "opentelemetry", ModuleType("opentelemetry"))
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", trace)
    monkeypatch.setitem(sys.modules, "opentelemetry.propagate", propagate)


async def test_span_per_record(monkeypatch: pytest.MonkeyPatch):
    """A record's span is below that of its headers, and has its place but nothing it holds."""
    tracer = Tracer()
    install(monkeypatch, tracer)
    depths: list[int] = []

    async def handle(record: ConsumerRecord) -> int:
        depths.append(tracer.depth)
        return record.offset

    headers = write_headers([("Traceparent", b"00-ab"), ("other", None)])

    result = await with_spans(handle, "billing")(make_record(P0, 7, b"ada", headers=headers))

    [span] = tracer.spans
    assert (result, depths) == (7, [1])
    assert span["name"] == "process orders"
    assert span["context"] == ("context", {"traceparent": "00-ab"})
    assert span["attributes"]["messaging.kafka.offset"] == 7
    assert span["attributes"]["messaging.consumer.group.name"] == "billing"
    assert "ada" not in str(span["attributes"])


def test_no_spans_without_a_provider(monkeypatch: pytest.MonkeyPatch):
    """Without the package or a provider the call itself comes back: spans cost nothing."""
    install(monkeypatch, ProxyTracerProvider())
    assert with_spans(nothing, None) is nothing

    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    assert with_spans(nothing, None) is nothing


async def test_signals_reach_the_loop_and_are_put_back():
    """Each signal calls the function on the loop; the handlers of before are back afterwards."""
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    came: asyncio.Queue[int] = asyncio.Queue()

    with stop_signals(lambda: came.put_nowait(threading.get_ident()), is_wanted=True):
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
            assert await asyncio.wait_for(came.get(), 30) == threading.get_ident()

    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


async def test_no_signals_in_other_threads():
    """In another thread, or where they are not wanted, no handler changes."""
    before = signal.getsignal(signal.SIGTERM)

    def in_thread() -> Any:
        with stop_signals(lambda: None, is_wanted=True):
            return signal.getsignal(signal.SIGTERM)

    assert await asyncio.to_thread(in_thread) == before
    with stop_signals(lambda: None, is_wanted=False):
        assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("signal_count", [1, 2])
async def test_signals_stop_a_run(signal_count: int):
    """One signal lets work in progress end and commits; the second cancels it, without."""
    source = FakeSource(*make_records(P0, [b"ada", b"ada"]))
    may_end, cancelled = asyncio.Event(), []

    async def handle(record: ConsumerRecord) -> None:
        try:
            await may_end.wait()
        except asyncio.CancelledError:
            cancelled.append(record.offset)
            raise

    async with Workers(source, handle, progress=False) as workers, asyncio.timeout(30):
        running = spawn(workers.run(), "run")
        while not workers.view().in_flight:  # noqa: ASYNC110 - begun is no event
            await asyncio.sleep(0)
        for _ in range(signal_count):
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.01)
        if signal_count == 1:
            may_end.set()
        await running

    assert [each.offset for each in source.done] == ([0] if signal_count == 1 else [])
    assert len(source.commits) == (1 if signal_count == 1 else 0)
    assert cancelled == ([] if signal_count == 1 else [0])
