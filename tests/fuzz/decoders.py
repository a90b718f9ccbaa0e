"""`python -m tests.fuzz.decoders --seconds N`: coverage-guided fuzzing of every own decoder.

In:    tests/fuzz/corpus and generated seeds.  Out: a line of figures; a finding is a file and
       exit code 1.
Source: atheris (libFuzzer for Python). Kernels run as plain Python (NUMBA_DISABLE_JIT=1), so
that their branches count as coverage and their indexes are checked.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

CORPUS: Final = Path(__file__).parent / "corpus"
INPUT_BYTES_MAX: Final = 1024
MEMORY_MB_MAX: Final = 1500
CORPUS_FILES_MAX: Final = 290
INPUT_SECONDS_MAX: Final = 10
"""A decoder that takes longer than this for 1 KiB is a finding too."""
CHILD: Final = "child"
FIGURES: Final = re.compile(rb"#(\d+)\s+\w+\s+cov: (\d+) ft: (\d+) corp: (\d+)/\S+")


def main(arguments: list[str] | None = None) -> int:
    """Run for the time asked; 0 if nothing was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--keep", action="store_true", help="add what was reached to the corpus")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        return fuzz(Path(folder), args.seconds, keep=args.keep)


def fuzz(folder: Path, seconds: int, *, keep: bool) -> int:
    """Fuzz in a child process, print the figures, keep findings and the corpus."""
    from tests.fuzz.seeds import write_seeds

    seeds, grown = folder / "seeds", folder / "grown"
    for one in (grown, CORPUS):
        one.mkdir(parents=True, exist_ok=True)
    seed_count = write_seeds(seeds)
    code, log = _child(
        f"-max_total_time={seconds}", f"-max_len={INPUT_BYTES_MAX}",
        f"-timeout={INPUT_SECONDS_MAX}", f"-rss_limit_mb={MEMORY_MB_MAX}",
        f"-artifact_prefix={folder}/finding-", "-print_final_stats=1",
        str(grown), str(CORPUS), str(seeds),
    )  # fmt: skip
    figures = FIGURES.findall(log)
    runs, coverage, features, corpus = map(int, figures[-1]) if figures else (0, 0, 0, 0)
    print(f"runs={runs} coverage={coverage} features={features} corpus={corpus} seeds={seed_count}")
    findings = sorted(folder.glob("finding-*"))
    for finding in findings:
        (CORPUS / finding.name).write_bytes(finding.read_bytes())
        print(f"finding: tests/fuzz/corpus/{finding.name}")
    if code != 0:
        sys.stdout.write(log.decode(errors="replace")[-6000:])
    elif keep:
        keep_some([*grown.iterdir(), *CORPUS.iterdir(), *seeds.iterdir()])
    return 1 if findings or code != 0 else 0


def _child(*flags: str) -> tuple[int, bytes]:
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    # A list of arguments that we made: no shell, nothing of the user's in it.
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.decoders", CHILD, *flags],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def keep_some(reached: list[Path]) -> None:
    """The corpus becomes a choice of what reached new code: of each decoder, of every size.

    libFuzzer keeps an input only when it reaches something that no other does, so each is
    worth having; its own merge cannot be used, for it starts argv[0] as a program.
    """
    from tests.fuzz.targets import TARGETS

    share = CORPUS_FILES_MAX // len(TARGETS)
    inputs = sorted({path.read_bytes() for path in reached}, key=lambda data: (len(data), data))
    chosen = []
    for number in range(len(TARGETS)):
        own = [data for data in inputs if data and data[0] % len(TARGETS) == number]
        chosen += [own[n * len(own) // share] for n in range(share)] if len(own) > share else own
    for path in CORPUS.iterdir():
        if not path.name.startswith("finding-"):
            path.unlink()
    for data in chosen:
        name = hashlib.sha1(data, usedforsecurity=False).hexdigest()[:16]
        (CORPUS / name).write_bytes(data)


def run_atheris(flags: list[str]) -> int:
    """The child: instrument, then hand over to libFuzzer, which ends the process."""
    import atheris  # type: ignore[import-untyped,import-not-found,unused-ignore]

    with atheris.instrument_imports(include=["keylane"]):
        from tests.fuzz.targets import run_one

    def one_input(data: bytes) -> None:
        run_one(data)  # libFuzzer wants a function that returns nothing

    atheris.Setup([sys.argv[0], *flags], one_input)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(run_atheris(sys.argv[2:]) if sys.argv[1:2] == [CHILD] else main())
