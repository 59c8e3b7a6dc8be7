"""Texts in the user's files: one way of reading for all commands."""

from pathlib import Path

import pytest

from sae_lens_cosine.tables import read_table, read_texts


def test_rows_without_text_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text('text,n\n0039,1\n,2\n" ",3\nnan,4\n')
    with pytest.warns(UserWarning, match=r"mine\.csv: 2 of 4 rows have no text"):
        assert read_texts(path, "text", 0) == ["0039", "nan"]
    path.write_text("text,n\n,1\n")
    with pytest.raises(ValueError, match=r"mine\.csv has no text in column 'text'"):
        read_texts(path, "text", 0)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("latin.csv", "text\ncafé\n".encode("latin-1")),
        ("utf_16.csv", "text\ncafé\n".encode("utf-16")),
        ("utf_16.jsonl", '{"text": "café"}\n'.encode("utf-16")),
        ("empty.csv", b""),
        ("ragged.csv", b"text,label\n1,2\n1,2,3\n"),
        ("cut.jsonl", b'{"text": "a"}\n{"text":'),
        ("no_rows.jsonl", b'{"text": "a"}\n"b"\n'),
        ("no.parquet", b"text"),
        ("latin.txt", "café".encode("latin-1")),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{name} cannot be read as ") as caught:
        read_texts(path, "text", 0)
    assert len(str(caught.value).splitlines()) == 1


def test_message_names_what_is_accepted(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none of \.txt, \.csv, \.parquet, \.jsonl"):
        read_texts(tmp_path / "README.md", "text", 0)
    with pytest.raises(ValueError, match=r"none of \.csv, \.parquet, \.jsonl"):
        read_table(tmp_path / "README.md")
