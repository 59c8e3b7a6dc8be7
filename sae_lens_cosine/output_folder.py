"""Folders of results: checked before anything is computed, complete when they appear."""

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path


def check_writable(argument: str, folder: Path) -> None:
    """Refuse a folder in which nothing can be written, whether it exists or not.

    Tried, with a file without a name: permissions alone say little of what root, a
    read-only disk or ``/proc`` allows.

    Args:
        argument: what messages begin with, such as ``--out=x``.
        folder: where files or folders are going to be created.

    Raises:
        NotADirectoryError: if it, or a folder on the way to it, is a file.
        OSError: if nothing can be created there.
    """
    path = folder.absolute()
    existing = next(p for p in (path, *path.parents) if os.path.exists(p))
    if not existing.is_dir():
        raise NotADirectoryError(f"{argument}: {existing} is a file: give a folder.")
    try:
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        raise OSError(
            f"{argument}: nothing can be written in {existing} ({error.strerror}): "
            "give another folder."
        ) from error


def check_output(out: Path, writes: Sequence[str], overwrite: bool) -> None:
    """Refuse an output folder before anything is computed.

    Args:
        out: the folder to be written.
        writes: as for :func:`check_own`.
        overwrite: whether an earlier result of the same command may be replaced.

    Raises:
        FileExistsError: if ``out`` exists, and is no result that may be replaced.
        OSError: as :func:`check_writable`.
    """
    if out.exists() and not overwrite:
        raise FileExistsError(
            f"{out} exists: choose another --out, or replace it with --overwrite."
        )
    if out.exists():
        check_own(out, writes)
    check_writable(f"--out={out}", out.resolve().parent)


def check_own(folder: Path, writes: Sequence[str]) -> None:
    """Refuse to delete a folder that holds anything but what the command writes.

    Args:
        folder: an existing one.
        writes: patterns of the command's files below it, as for ``Path.glob``; by the
            first one a folder of the command is known.

    Raises:
        FileExistsError: if another file is there, or the first is missing.
    """
    if not any(folder.glob(writes[0])):
        raise FileExistsError(
            f"{folder} holds no results of this command, so --overwrite would delete "
            "something else: choose another --out."
        )
    own = {path for pattern in writes for path in folder.glob(pattern)}
    found = (path for path in folder.rglob("*") if not path.is_dir())
    if foreign := sorted(path for path in found if path not in own):
        raise FileExistsError(
            f"{foreign[0]} is not of this command, and --overwrite would delete it: "
            "move it elsewhere, or choose another --out."
        )


def move_into_place(work: Path, out: Path, overwrite: bool) -> None:
    """Give a complete folder its final name, in place of what may be replaced.

    Raises:
        OSError: if ``out`` has appeared meanwhile and may not be replaced.
    """
    if not (overwrite and out.exists()):
        os.replace(work, out)
        return
    replaced = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    os.replace(out, replaced / out.name)
    os.replace(work, out)
    shutil.rmtree(replaced)
