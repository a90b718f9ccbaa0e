"""The plot of an advice: speed-up over members, for several lane counts, with its ceiling."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from keylane.advise.speedup import sweep
from keylane.errors import ConfigInvalid, PackageMissing
from keylane.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from keylane.advise.advice import Advice

FORMATS: Final = (".svg", ".png")
POINTS_MAX: Final = 24
"""Numbers of members that are drawn."""
FACTORS: Final = (0.25, 1, 4)
"""Lane counts that are drawn, in times those of the advice."""
LANES_DRAWN_MAX: Final = 1024


def check_plot(path: Path) -> None:
    """Raises: ConfigInvalid, no such format; PackageMissing, matplotlib."""
    if path.suffix not in FORMATS:
        raise ConfigInvalid(f"--plot {path}: expected a name that ends in {' or '.join(FORMATS)}")
    try:
        import matplotlib as mpl  # noqa: F401, PLC0415 -- of an extra
    except ImportError:
        raise PackageMissing("--plot needs matplotlib: pip install 'keylane[plot]'") from None


def draw_speedup(advice: Advice) -> Figure:
    """Return the figure."""
    from matplotlib.figure import Figure  # noqa: PLC0415 -- no pyplot: there may be no screen

    speedup = advice.speedup
    reach = max(2 * speedup.members, 8)
    members = sorted(
        {1, speedup.members, *(reach * n // POINTS_MAX for n in range(1, POINTS_MAX + 1))} - {0}
    )
    lanes = sorted({min(LANES_DRAWN_MAX, max(1, int(speedup.lanes * f))) for f in FACTORS})
    figure = Figure(figsize=(8, 5), layout="constrained")
    axis = figure.subplots()
    axis.plot(members, members, color="0.8", linewidth=1, label="as many as members")
    for count, found in sweep(advice.keys, members, lanes).items():
        label = f"{count} {'lane' if count == 1 else 'lanes'} per partition"
        axis.plot(members, [each.parallel for each in found], marker=".", label=label)
    axis.axhline(advice.direct, color="0.4", linestyle=":", label="one member per partition")
    top = 1.1 * max(members[-1] if advice.ceiling is None else 0, speedup.bound, advice.direct)
    if advice.ceiling is not None:
        axis.axhline(advice.ceiling, color="tab:red", linestyle="--", label="hottest key")
        top = max(top, min(1.1 * advice.ceiling, 1.1 * members[-1]))
    axis.plot(speedup.members, speedup.parallel, "o", color="black", label="this advice")
    axis.set(xlabel="members", ylabel="times the work of one member", ylim=(0, top))
    axis.set_xlim(0, members[-1])
    axis.set_title(f"{advice.keys.topic}: {len(advice.keys.partitions)} partitions")
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right", fontsize="small")
    return figure


def save_plot(advice: Advice, path: Path) -> None:
    """Draw to a file. Raises: OSError."""
    with replacing(path) as partial:
        draw_speedup(advice).savefig(partial, format=path.suffix[1:])
