"""Folders that are written, and what is left alone."""

from pathlib import Path

import pytest

from sae_lens_cosine.output_folder import (
    check_output,
    check_own,
    check_writable,
    move_into_place,
)

WRITES = ("results.json", "saes/*/cfg.json")


def write(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def test_where_something_can_be_written_nothing_is(tmp_path: Path):
    check_writable("--out=x", tmp_path)
    check_writable("--out=x", tmp_path / "new" / "x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("below", ["", "x", "new/x"])
def test_a_file_on_the_way_is_named(tmp_path: Path, below: str):
    write(tmp_path, "ok.csv")
    with pytest.raises(NotADirectoryError, match=r"^--out=x: .*ok\.csv is a file"):
        check_writable("--out=x", tmp_path / "ok.csv" / below)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a folder of Linux")
@pytest.mark.parametrize("folder", ["/proc", "/proc/x", "/proc/new/x"])
def test_a_folder_that_even_root_cannot_write_is_refused(folder: str):
    with pytest.raises(OSError, match="--out=x: nothing can be written in /proc"):
        check_writable("--out=x", Path(folder))


def test_only_a_result_without_other_files_is_replaced(tmp_path: Path):
    out = write(tmp_path / "out", "results.json", "saes/a/cfg.json")
    with pytest.raises(FileExistsError, match="with --overwrite"):
        check_output(out, WRITES, overwrite=False)
    check_output(out, WRITES, overwrite=True)
    for name in ("notes.txt", "saes/a/notes.txt", "mine/results.json"):
        write(out, name)
        with pytest.raises(FileExistsError, match=f"{name} is not of this command"):
            check_own(out, WRITES)
        (out / name).unlink()
    (out / "results.json").unlink()
    with pytest.raises(FileExistsError, match="would delete something else"):
        check_own(out, WRITES)


def test_neighbours_of_a_replaced_folder_stay(tmp_path: Path):
    out = write(tmp_path / "out", "results.json")
    write(tmp_path / "out.replaced", "mine.txt")
    for overwrite in (True, False):
        work = write(tmp_path / "work", "new.json")
        move_into_place(work, out, overwrite)
        assert [path.name for path in out.iterdir()] == ["new.json"]
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "out",
            "out.replaced",
        ]
        assert (tmp_path / "out.replaced" / "mine.txt").exists()
        out.rename(work)
