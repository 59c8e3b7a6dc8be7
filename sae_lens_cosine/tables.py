"""Texts and tables of text in the user's files."""

import warnings
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

import pandas as pd

READERS = {
    # Every cell as it stands there, "NA" and "007" too; an empty one is missing.
    ".csv": partial(pd.read_csv, dtype=str, keep_default_na=False, na_values=[""]),
    ".parquet": pd.read_parquet,
    ".jsonl": partial(pd.read_json, lines=True, dtype=object, convert_dates=False),
}
"""By the file's suffix."""

TEXT = ".txt"
"""Suffix of a file that is one text."""


def read_table(path: Path) -> pd.DataFrame:
    """A CSV, Parquet or JSON Lines file.

    Raises:
        ValueError: if there is no such file, it is none of these, or damaged.
    """
    _check_file(path, READERS)
    try:
        return READERS[path.suffix](path)
    except (ValueError, OSError, AttributeError) as error:  # the last: rows of no keys
        raise ValueError(
            f"{path} cannot be read as {path.suffix}: {str(error).strip()}"
        ) from error


def read_cells(table: pd.DataFrame, column: str) -> list[str | None]:
    """Values of a column as text; None where one is missing or blank.

    Whole numbers beside missing ones, which pandas keeps as floats, are whole again.
    """
    values = table[column].convert_dtypes()
    cells = [
        None if missing else str(value)
        for value, missing in zip(values, values.isna(), strict=True)
    ]
    return [cell if cell and cell.strip() else None for cell in cells]


def read_texts(path: Path | None, column: str, n_tokens: int) -> Sequence[str]:
    """The user's texts, or else held-out texts from the package ``sae-probes``.

    Rows without text are left out, with a warning that counts them.

    Args:
        path: a text file (one text), or a CSV, Parquet or JSON Lines file.
        column: of the texts, in a table.
        n_tokens: as much of the embedded text is read.

    Raises:
        ImportError: if ``sae-probes`` is missing.
        ValueError: if the file or its column is missing, or there is no text.
    """
    if path is None:
        from sae_lens_cosine.demo.text import evaluation_rows

        return evaluation_rows(n_tokens)["text"]
    _check_file(path, (TEXT, *READERS))
    if path.suffix == TEXT:
        try:
            return [path.read_text(encoding="utf-8")]
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} cannot be read as text: {error}") from error
    table = read_table(path)
    if column not in table:
        raise ValueError(
            f"{path} has no column {column!r}, only "
            f"{', '.join(map(str, table.columns))}: name one with --text-column."
        )
    texts = [cell for cell in read_cells(table, column) if cell is not None]
    if not texts:
        raise ValueError(f"{path} has no text in column {column!r}.")
    if missing := len(table) - len(texts):
        warnings.warn(
            f"{path}: {missing} of {len(table)} rows have no text in column "
            f"{column!r} and are left out.",
            stacklevel=2,
        )
    return texts


def _check_file(path: Path, suffixes: Collection[str]) -> None:
    if path.suffix not in suffixes:
        raise ValueError(f"{path} is none of {', '.join(suffixes)}.")
    if not path.is_file():
        raise ValueError(f"There is no file {path}.")
