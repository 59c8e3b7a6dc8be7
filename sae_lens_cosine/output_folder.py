"""A folder of results that appears when it is complete."""

import os
import shutil
from pathlib import Path


def check_output(out: Path, marker: str, overwrite: bool) -> None:
    """Refuse an output folder before anything is computed.

    Args:
        out: the folder to be written.
        marker: a file by which an earlier result of the same command is known.
        overwrite: whether such a result may be replaced.

    Raises:
        FileExistsError: if ``out`` exists, and is no result that may be replaced.
        NotADirectoryError: if a folder on the way to it is a file.
    """
    if out.exists() and not overwrite:
        raise FileExistsError(
            f"{out} exists: choose another --out, or replace it with --overwrite."
        )
    if out.exists() and not (out / marker).is_file():
        raise FileExistsError(
            f"{out} holds no results of this command, so --overwrite would delete "
            "something else: choose another --out."
        )
    existing = next(folder for folder in out.absolute().parents if folder.exists())
    if not existing.is_dir():
        raise NotADirectoryError(f"{existing} is a file: choose another --out.")


def move_into_place(work: Path, out: Path, overwrite: bool) -> None:
    """Give a complete folder its final name, in place of what may be replaced.

    Raises:
        OSError: if ``out`` has appeared meanwhile and may not be replaced.
    """
    replaced = out.with_name(out.name + ".replaced")
    if overwrite and out.exists():
        os.replace(out, replaced)
    os.replace(work, out)
    shutil.rmtree(replaced, ignore_errors=True)
