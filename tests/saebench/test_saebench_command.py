"""The command line over probes and the core eval."""

import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_lm import CONTEXT

from sae_lens_cosine import cli


def command(monkeypatch: pytest.MonkeyPatch, *args: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["sae-lens-cosine", *map(str, args)])
    cli.main()


def test_command(
    llama: Path,
    sae_folder: Path,
    table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    args = ["--sae", sae_folder, "--sae", f"again={sae_folder}", "--model", llama]
    args += ["--dataset", table, "--text-column", "sentence", "--label-column"]
    args += ["colour", "--out", out, "--mask-sinks", "first_token"]
    args += ["--probe-seeds", 2, "--train-rows", 40, "--test-rows", 20]
    args += ["--context-size", CONTEXT]
    with pytest.raises(SystemExit) as ended:
        command(monkeypatch, "probe", *args)
    assert ended.value.code == 0
    printed = capsys.readouterr()
    assert "my-sae" in printed.out
    words = " ".join(printed.out.split())
    assert "sinks masked" in words
    assert "Rows of a class: 20 train, 10 test." in words
    assert "Sparse probing: 100%" in printed.err
    (summary,) = out.glob("probing_summary_*.json")
    assert str(summary) in printed.out
    # Two SAEs of one content under two names, masked and not.
    assert len(list((out / "sparse_probing").iterdir())) == 4


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--suite", "online"], "--suite=online: choose one of saebench, offline"),
        ([], "Give --suite, --dataset, or both"),
        (
            ["--suite", "sae_probes", "--mask-sinks", "norm", "--context-size", "9"],
            "--mask-sinks, --context-size: --suite=sae_probes has no such option",
        ),
        (["--suite", "sae_probes", "--dataset", "no"], "datasets=['no']"),
        (["--dataset", "nothing"], "There is no data set 'nothing'"),
        (["--dataset", "no.csv"], "There is no file no.csv"),
        (["--suite", "offline", "--ks", "one"], "--ks=one: give numbers"),
        (["--suite", "offline", "--ks", "3"], r"ks=(3,)"),
        (["--suite", "offline", "--train-rows", "1"], "train_rows=1 must be a whole"),
        (["--suite", "offline", "--mask-sinks", "x"], "mask_sinks='x' is unknown"),
        (["--suite", "offline", "--sae", "elsewhere"], "elsewhere is not the folder"),
        (["--suite", "offline", "--sae", "no:such"], "of release 'no'"),
    ],
)
def test_command_refuses_with_one_line(
    sae_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    message: str,
) -> None:
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as ended:
        command(
            monkeypatch,
            "probe",
            "--sae",
            sae_folder,
            "--model",
            "demo",
            "--out",
            out,
            *args,
        )
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("name", "option"),
    [("probe", "--out"), ("probe", "--activations"), ("core", "--out")],
)
def test_unwritable_folders_are_refused_before_anything_is_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    option: str,
) -> None:
    (tmp_path / "ok.csv").touch()
    folder = tmp_path / "ok.csv" / "x"
    args = ["--sae", "nowhere", "--model", "nothing", "--out", tmp_path / "out"]
    args += ["--suite", "offline"] * (name == "probe")
    with pytest.raises(SystemExit) as ended:
        command(monkeypatch, name, *args, option, folder)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert f"{option}={folder}: {folder.parent} is a file" in error


def test_probe_of_the_last_token(
    llama: Path,
    sae_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    args = ["--sae", sae_folder, "--model", llama, "--out", out, "--ks", "1,3"]
    args += ["--suite", "sae_probes", "--dataset", "95_toxic_is"]  # the smallest
    with pytest.raises(SystemExit) as ended:
        command(monkeypatch, "probe", *args)
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "Last token, tasks: 1" in printed
    assert "k = 3" in printed
    (path,) = (out / "sparse_probing_sae_probes").iterdir()
    assert path.name.startswith("my-sae_")


def test_core(
    llama: Path,
    sae_folder: Path,
    table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    args = ["--sae", sae_folder, "--model", llama, "--out", out, "--contexts", 8]
    args += ["--context-size", CONTEXT, "--text", table]
    with pytest.raises(SystemExit) as ended:
        command(monkeypatch, "core", *args)
    assert ended.value.code == 2
    assert "has no column 'text', only sentence, colour" in capsys.readouterr().err
    assert not out.exists()
    with pytest.raises(SystemExit) as ended:
        command(monkeypatch, "core", *args, "--text-column", "sentence")
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    for figure in ("explained variance", "L0", "loss recovered", "share alive"):
        assert figure in printed
    (path,) = (out / "core").iterdir()
    assert path.name.startswith("my-sae_")
