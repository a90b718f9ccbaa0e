"""The plot: lines of the model, in a file of either format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from keylane.advise.advice import AdviceQuestion, Evidence, give_advice
from keylane.advise.plot import check_plot, draw_speedup, save_plot
from keylane.advise.speedup import find_speedup
from keylane.errors import ConfigInvalid
from tests.reference.advise_topics import even_keys

ADVICE = give_advice(AdviceQuestion(bootstrap="b", members=4, lanes=8), Evidence(keys=even_keys(2)))


def test_lines_are_those_of_the_model() -> None:
    """A line for 2, 8 and 32 lanes; the ceiling, and one member per partition."""
    (axis,) = draw_speedup(ADVICE).axes

    lines = {str(line.get_label()): line for line in axis.lines}
    assert {"2 lanes per partition", "8 lanes per partition", "32 lanes per partition"} < set(lines)
    drawn = dict(np.asarray(lines["8 lanes per partition"].get_xydata()).tolist())
    assert drawn[4] == find_speedup(ADVICE.keys, 4, 8).parallel
    assert np.asarray(lines["hottest key"].get_ydata())[0] == ADVICE.ceiling
    assert np.asarray(lines["one member per partition"].get_ydata())[0] == pytest.approx(2)


@pytest.mark.parametrize(("name", "head"), [("a.svg", b"<?xml"), ("a.png", b"\x89PNG")])
def test_files_have_the_format_of_their_name(tmp_path: Path, name: str, head: bytes) -> None:
    """Written whole or not at all, beside nothing."""
    save_plot(ADVICE, tmp_path / name)

    assert (tmp_path / name).read_bytes().startswith(head)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_other_formats_are_refused_before_anything_is_read() -> None:
    """One line names the two that there are."""
    with pytest.raises(ConfigInvalid, match=r"expected a name that ends in \.svg or \.png"):
        check_plot(Path("speed.pdf"))
