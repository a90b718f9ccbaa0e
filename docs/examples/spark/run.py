"""A program for spark-submit, which starts files, and not modules.

    spark-submit run.py keylane spark audit --bootstrap kafka:9092 ...
    spark-submit run.py keylane.pipeline.example_totals --bootstrap keylane:19092 ...

A file inside the package would not do: Python finds the modules beside a file first, and
keylane/pipeline/profile is no module of Python's own of that name.
"""

from __future__ import annotations

import runpy
import sys

if __name__ == "__main__":
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
