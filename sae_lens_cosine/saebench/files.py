"""Files that are either complete or absent, or else damaged from outside."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

FORCE = "delete it, or pass force=True to compute it again"
"""The way out where a result is damaged."""


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary neighbour, then move it to ``path``.

    An interrupted or failed write leaves ``path`` as it was, so that whatever exists
    under the name is whole.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def reading(path: Path, way_out: str) -> Iterator[None]:
    """Name the file that cannot be read in this block, and the way out.

    Raises:
        ValueError: for any error but one of the file system, which names the file.
    """
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        # Only its type: the texts of torch and pydantic are pages of other advice.
        raise ValueError(
            f"{path} is damaged ({type(error).__name__}): {way_out}."
        ) from error
