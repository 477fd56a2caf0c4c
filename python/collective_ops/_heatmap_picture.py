"""The picture of heatmap.py: pair matrices, balance of the ranks, and the findings in words."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.patches import Rectangle  # noqa: E402

if TYPE_CHECKING:
    from .heatmap import Traffic

MATRIX = 4.6  # inches
VALUES_UP_TO = 12  # ranks whose cells have room for a number
INK = "#1f2933"
FAINT = "#7b8794"
HOT = "#d62728"
PHASES = (
    ("outside of calls (compute)", "outside", "#9fb3c8"),
    ("waiting", "waited", "#e8833a"),
    ("moving bytes", "moved", "#2f6db3"),
    ("other, inside of calls", "other", "#d9dde2"),
)
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": "#c5ccd3",
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "svg.hashsalt": "comm_heatmap",
}
SIZES = ((1024**4, "TiB"), (1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"), (1, "B"))
TIMES = ((1e6, "s"), (1e3, "ms"), (1, "us"))


def scale_of(largest: float, units: tuple[tuple[float, str], ...]) -> tuple[float, str]:
    """The unit in which the largest value is at least 1."""
    return next((unit for unit in units if largest >= unit[0]), units[-1])


def number(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:.0f}" if value >= 99.5 else f"{value:.2g}" if value < 9.95 else f"{value:.3g}"


def tick_ranks(count: int) -> list[int]:
    step = next(step for step in (1, 2, 4, 8, 16, 32, 64, 128, count) if count / step <= 20)
    return list(range(0, count, step))


def place(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes at inches from the left and upper edge of the picture."""
    whole_width, whole_height = figure.get_size_inches()
    bottom = whole_height - top - height
    return figure.add_axes(
        (left / whole_width, bottom / whole_height, width / whole_width, height / whole_height)
    )


def draw_matrix(
    figure: Figure,
    corner: tuple[float, float],
    matrix: np.ndarray,
    title: str,
    labels: tuple[str, str],
    units: tuple[tuple[float, str], ...],
    colours: str,
) -> Axes:
    """A square of MATRIX inches whose upper left corner lies at `corner`, with its scale to the right."""
    axes = place(figure, *corner, MATRIX, MATRIX)
    count = len(matrix)
    shown = np.ma.masked_array(matrix, mask=np.eye(count, dtype=bool))
    largest = float(shown.max()) if count > 1 else 0.0
    divisor, unit = scale_of(largest, units)
    colour_map = matplotlib.colormaps[colours].with_extremes(bad="#eef0f2")
    # From zero: two cells whose colours differ by half differ by half.
    image = axes.imshow(shown / divisor, cmap=colour_map, vmin=0, vmax=max(largest / divisor, 1e-9))
    axes.set_title(f"{title} [{unit}]", pad=9)
    axes.set_ylabel(labels[0])
    axes.set_xlabel(labels[1])
    ticks = tick_ranks(count)
    axes.set_xticks(ticks, [str(rank) for rank in ticks])
    axes.set_yticks(ticks, [str(rank) for rank in ticks])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if count <= 32:
        axes.set_xticks(np.arange(-0.5, count), minor=True)
        axes.set_yticks(np.arange(-0.5, count), minor=True)
        axes.grid(which="minor", color="white", linewidth=1.2)
        axes.tick_params(which="minor", length=0)
    bar = figure.colorbar(image, cax=place(figure, corner[0] + MATRIX + 0.12, corner[1], 0.16, MATRIX))
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=8)
    if count <= VALUES_UP_TO:
        write_values(axes, matrix / divisor)
    return axes


def write_values(axes: Axes, matrix: np.ndarray) -> None:
    count, largest = len(matrix), matrix.max()
    for row, column in np.argwhere(~np.eye(count, dtype=bool)):
        value = matrix[row, column]
        ink = "white" if value > 0.55 * largest else INK
        size = 8.5 if count <= 8 else 7
        axes.text(column, row, number(value), ha="center", va="center", fontsize=size, color=ink)


def remark(axes: Axes, text: str, colour: str) -> None:
    """A few words above the right end of a matrix."""
    axes.text(1, 1.018, text, transform=axes.transAxes, ha="right", va="bottom", color=colour, fontsize=9.5)


def mark_link(axes: Axes, link: dict[str, Any] | None, count: int) -> None:
    if link is None:
        return
    colour = HOT if link["hot"] else INK
    width = 2.2 if count <= 32 else 1.4
    corner = (link["to"] - 0.5, link["from"] - 0.5)
    axes.add_patch(
        Rectangle(corner, 1, 1, fill=False, edgecolor=colour, linewidth=width, clip_on=False, zorder=5)
    )
    kind = "hot link" if link["hot"] else "hottest"
    remark(axes, f"{kind}: {link['from']} \N{RIGHTWARDS ARROW} {link['to']}", colour)


def draw_balance(axes: Axes, traffic: Traffic) -> None:
    count = traffic.world_size
    divisor, unit = scale_of(max(totals.window for totals in traffic.ranks), TIMES)
    left = np.zeros(count)
    rows = np.arange(count)
    for label, name, colour in PHASES:
        lengths = (
            np.array([getattr(totals, name) if totals.calls else 0.0 for totals in traffic.ranks]) / divisor
        )
        # Without gaps where a rank has only a few pixels: uneven ones would look like a pattern.
        height = 0.72 if count <= 32 else 1.0
        shown = label if lengths.any() else None  # no legend for what is nowhere
        axes.barh(rows, lengths, left=left, height=height, color=colour, label=shown, linewidth=0)
        if count <= 16:
            for row, length, start in zip(rows, lengths, left, strict=True):
                whole = traffic.ranks[row].window / divisor
                if whole > 0 and length / whole >= 0.03:
                    text = f"{length / whole:.0%}"
                    ink = "white" if colour in ("#2f6db3", "#e8833a") else INK
                    axes.text(
                        start + length / 2, row, text, ha="center", va="center", fontsize=7.5, color=ink
                    )
        left += lengths
    for rank in range(count):
        if not traffic.ranks[rank].calls:
            axes.text(0, rank, " no calls", va="center", fontsize=8, color=FAINT)
    ticks = tick_ranks(count)
    axes.set_yticks(ticks, [str(rank) for rank in ticks])
    axes.set_ylim(count - 0.4, -0.6)
    axes.set_ylabel("rank")
    axes.set_xlabel(f"time [{unit}]")
    axes.set_xlim(0, max(float(left.max()), 1e-9) * 1.005)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.set_title("Balance: where each rank's time went", pad=26)
    axes.legend(
        loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=4, frameon=False, fontsize=8, handlelength=1.0,
        columnspacing=1.2, handletextpad=0.4, borderaxespad=0.1,
    )  # fmt: skip


def write_words(figure: Figure, traffic: Traffic, findings: dict[str, Any], width_chars: int) -> None:
    calls = sum(totals.calls for totals in traffic.ranks)
    job = f"job {traffic.job}, " if traffic.job else ""
    ranks = f"{traffic.world_size} rank{'s' * (traffic.world_size > 1)}"
    height = figure.get_figheight()
    figure.text(
        0.035, 1 - 0.28 / height, "Communication of the ranks", fontsize=16, fontweight="bold", va="top"
    )
    figure.text(
        0.965, 1 - 0.33 / height, textwrap.shorten(f"{job}{ranks}, {calls:,} calls", 70),
        fontsize=9.5, color=FAINT, va="top", ha="right",
    )  # fmt: skip
    for line, sentence in enumerate(findings["sentences"]):
        topic, _, rest = sentence.partition(": ")
        y = 1 - (0.74 + 0.235 * line) / height
        figure.text(0.035, y, topic, fontsize=10, fontweight="bold", va="top")
        figure.text(0.035 + 0.75 / figure.get_figwidth(), y, rest, fontsize=10, va="top")
    if findings["notes"]:
        text = textwrap.shorten("Note: " + "; ".join(findings["notes"]) + ".", 2 * width_chars)
        figure.text(
            0.035, 0.16 / height, textwrap.fill(text, width_chars), fontsize=8, color=FAINT, va="bottom"
        )


def draw_pairs(figure: Figure, traffic: Traffic, findings: dict[str, Any]) -> None:
    first, second, left = 2.05, 2.05 + MATRIX + 1.1, 0.85
    right = left + MATRIX + 1.3
    size = draw_matrix(
        figure, (left, first), traffic.bytes, "Bytes", ("from rank", "to rank"), SIZES, "Blues"
    )
    waiting = draw_matrix(
        figure, (right, first), traffic.waited, "Waiting", ("rank that waited", "for rank"), TIMES, "Oranges"
    )
    draw_matrix(
        figure, (left, second), traffic.moved, "Transfer time", ("from rank", "to rank"), TIMES, "Purples"
    )
    draw_balance(place(figure, right, second, MATRIX + 0.28, MATRIX), traffic)
    mark_link(size, findings["hottest_link"], traffic.world_size)
    most = findings["most_waited_for"]
    if most is not None and traffic.world_size > 2:
        remark(waiting, f"most for rank {most['rank']}: {most['share']:.0%}", INK)


def draw(traffic: Traffic, findings: dict[str, Any], path: Path) -> None:
    """Writes the picture; the format follows the ending of `path`. Raises OSError."""
    with plt.rc_context(STYLE):
        if traffic.world_size == 1:
            figure = plt.figure(figsize=(12.4, 3.6))
            draw_balance(place(figure, 0.85, 2.2, 11.0, 0.55), traffic)
        else:
            figure = plt.figure(figsize=(12.4, 2.05 + 2 * MATRIX + 1.1 + 1.0))
            draw_pairs(figure, traffic, findings)
        write_words(figure, traffic, findings, 165)
        figure.savefig(path, dpi=130, facecolor="white")
        plt.close(figure)
