"""The tables of an analysis for further work: columns of Python values, Arrow, pandas, Parquet. pyarrow and
pandas are used where they are asked for and need not be there otherwise."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas
    import pyarrow

Columns = dict[str, list[Any]]


def _typed(cells: list[str]) -> list[Any]:
    """Integers where all are, else numbers, else text; empty cells are None in the first two."""
    for kind in (int, float):
        try:
            return [kind(cell) if cell else None for cell in cells]
        except ValueError:
            continue
    return list(cells)


def read(path: Path) -> Columns:
    """The columns of a CSV file of results. A column without any value is text."""
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        rows = list(csv.reader(file))
    names = rows[0] if rows else []
    columns = {name: [row[i] if i < len(row) else "" for row in rows[1:]] for i, name in enumerate(names)}
    return {name: _typed(cells) if any(cells) else cells for name, cells in columns.items()}


def arrow(path: Path) -> pyarrow.Table:
    try:
        import pyarrow
    except ImportError:
        raise ImportError("this needs pyarrow: pip install pyarrow") from None
    return pyarrow.table(read(path))


def frame(path: Path) -> pandas.DataFrame:
    try:
        import pandas
    except ImportError:
        raise ImportError("this needs pandas: pip install pandas") from None
    return pandas.DataFrame(read(path))


def write_parquet(path: Path) -> Path:
    """Beside the CSV file; written whole or not at all."""
    table = arrow(path)
    import pyarrow.parquet

    target = path.with_suffix(".parquet")
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        pyarrow.parquet.write_table(table, part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return target
