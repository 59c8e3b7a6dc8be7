"""The main job on the real model, with a small budget."""

import json
import subprocess
import sys

import pytest
from pydantic import ValidationError
from sae_lens import SAE

from sae_lens_cosine.demo import run
from sae_lens_cosine.demo.results import Results
from sae_lens_cosine.demo.run import DemoOptions, evaluate, run_demo


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("tokens", 5, "greater than or equal to 10240"),
        ("layer", 30, "less than or equal to 29"),
        ("arms", ("topk",), "name at least one of batchtopk, cosine_global"),
        ("arms", ("batchtopk", "batchtopk"), "each once"),
    ],
)
def test_options_name_the_way_out(field, value, message):
    with pytest.raises(ValidationError, match=message):
        DemoOptions(**{field: value})


def test_bad_input_ends_with_one_line_and_code_2(tmp_path):
    command = [sys.executable, "-m", "sae_lens_cosine", "demo", "--layer", "31"]
    result = subprocess.run(
        [*command, "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert (
        result.stderr.strip().splitlines()[-1].startswith("sae-lens-cosine: --layer=31")
    )
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_refused_before_anything_is_done(tmp_path):
    kept = tmp_path / "out" / "mine.txt"
    kept.parent.mkdir()
    kept.write_text("mine")
    with pytest.raises(FileExistsError, match="--overwrite"):
        run_demo(DemoOptions(), kept.parent)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_an_interrupted_run_with_other_options_is_not_mixed_in(tmp_path):
    work = tmp_path / "out.unfinished"
    work.mkdir()
    (work / "options.json").write_text(DemoOptions(seed=1).model_dump_json())
    with pytest.raises(FileExistsError, match="interrupted run with other options"):
        run_demo(DemoOptions(seed=2), tmp_path / "out")
    assert (work / "options.json").exists()
    (work / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"notes\.txt is not of this command"):
        run_demo(DemoOptions(seed=2), tmp_path / "out", overwrite=True)
    assert (work / "notes.txt").exists()


@pytest.mark.slow
def test_the_whole_job(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "EVALUATION_TOKENS", 2048)
    monkeypatch.setattr(run, "LOSS_TOKENS", 512)
    monkeypatch.setattr(
        run, "PROBING_ROWS", {"train_per_class": 8, "test_per_class": 4}
    )
    monkeypatch.setattr(run, "PROBING_CONTEXT_SIZE", 32)
    monkeypatch.setattr(run, "DEMO_TASKS", ("ag_news", "code_language"))
    options = DemoOptions(
        tokens=10_240, d_sae=256, k=16, arms=("batchtopk", "cosine_sinks")
    )
    out = tmp_path / "out"

    # interrupted after training: nothing under the final name, and the SAEs are kept
    with monkeypatch.context() as patch:
        patch.setattr(
            run, "evaluate", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            run_demo(options, out)
    assert not out.exists()
    kept = (
        tmp_path / "out.unfinished/saes/batchtopk/sae_weights.safetensors"
    ).read_bytes()

    results = run_demo(options, out)
    assert not (tmp_path / "out.unfinished").exists()
    assert (out / "saes/batchtopk/sae_weights.safetensors").read_bytes() == kept
    assert set(results.arms) == {"batchtopk", "cosine_sinks"}
    saved = Results.model_validate(json.loads((out / "results.json").read_text()))
    assert saved == results
    for arm in results.arms.values():
        assert set(arm.probing) == {"ag_news", "code_language"}
        assert set(arm.probing["ag_news"]) == {"1", "2", "5"}
    assert "plotly" in (out / "report.html").read_text()

    # the table is true: the saved SAEs give the same numbers again
    saes = {arm: SAE.load_from_disk(out / "saes" / arm) for arm in results.arms}
    again = evaluate(saes, run.load_demo_model(), options)
    for arm, measured in again.items():
        assert measured.reconstruction == results.arms[arm].reconstruction
        assert measured.loss == results.arms[arm].loss

    sinks = results.arms["cosine_sinks"].reconstruction
    assert sinks is not None
    assert sinks.all_tokens.explained_variance > 0.99
    assert saes["cosine_sinks"].sink_latents

    with pytest.raises(FileExistsError, match="--overwrite"):
        run_demo(options, out)
    run.check_output(out, run.WRITES, overwrite=True)  # it knows all its files


def test_overwrite_replaces_nothing_but_a_result_of_its_own(tmp_path):
    thesis = tmp_path / "project" / "thesis.tex"
    thesis.parent.mkdir()
    thesis.write_text("mine")
    with pytest.raises(FileExistsError, match="would delete something else"):
        run_demo(DemoOptions(), thesis.parent, overwrite=True)
    with pytest.raises(FileExistsError, match="would delete something else"):
        run_demo(DemoOptions(), thesis, overwrite=True)
    assert thesis.read_text() == "mine"
    assert [p.name for p in tmp_path.iterdir()] == ["project"]


def test_more_latents_a_token_than_there_are_is_refused_at_once():
    with pytest.raises(ValidationError, match="k=600 is more than d_sae=512"):
        DemoOptions(k=600, d_sae=512)


def test_a_missing_package_names_the_demo_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "find_spec", lambda name: None if name == "gguf" else 1)
    with pytest.raises(ImportError, match=r'gguf.*"sae-lens-cosine\[demo\]"'):
        run_demo(DemoOptions(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
