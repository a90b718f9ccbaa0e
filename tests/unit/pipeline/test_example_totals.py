"""The example job: its fold, and that it gets to executors when it is started by `python -m`."""

from __future__ import annotations

import runpy
import struct
from contextlib import nullcontext
from pathlib import Path

from pyspark import cloudpickle

from keylane.pipeline import example_totals


def test_the_fold_counts_and_sees_drops() -> None:
    """Records, total, last amount, largest drop between neighbours; no number counts as zero."""
    state = None
    for value in (b"5", b'{"amount": 2}', b"text", None):
        state = example_totals.add_amount(state, b"key", 0, value)

    assert struct.unpack(example_totals.STATE, state or b"") == (4, 7.0, 0.0, 3.0)


def test_what_is_started_by_its_name_can_be_pickled() -> None:
    """Functions of `__main__` are sent by value, with all that they name."""
    started = runpy.run_path(str(Path(example_totals.__file__)), run_name="started")

    fold = cloudpickle.loads(cloudpickle.dumps(started["add_amount"]))

    assert fold(None, b"key", 0, b"3") == example_totals.add_amount(None, b"key", 0, b"3")


def test_options_of_one_client_are_not_given_to_the_other(monkeypatch, capsys) -> None:
    """Java's names of a login mean nothing to librdkafka; before anything is asked."""
    monkeypatch.setattr(example_totals, "start_session", lambda *_args, **_named: nullcontext())
    command = ["--bootstrap", "h:1", "--topic", "orders", "--lanes", "4", "--folder", "out"]

    code = example_totals.main([*command, "--source", "keylane", "--option", "kafka.a=b"])

    assert code == 2
    assert capsys.readouterr().err.startswith("example_totals: --option: is for Spark's Kafka")
