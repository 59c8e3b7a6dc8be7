"""Tables of text in files."""

from functools import partial
from pathlib import Path

import pandas as pd

READERS = {
    ".csv": pd.read_csv,
    ".parquet": pd.read_parquet,
    ".jsonl": partial(pd.read_json, lines=True),
}
"""By the file's suffix."""


def read_table(path: Path) -> pd.DataFrame:
    """A CSV, Parquet or JSON Lines file.

    Raises:
        ValueError: if there is no such file, or it is none of these.
    """
    if path.suffix not in READERS:
        raise ValueError(f"{path} is none of {', '.join(READERS)}.")
    if not path.is_file():
        raise ValueError(f"There is no file {path}.")
    return READERS[path.suffix](path)
