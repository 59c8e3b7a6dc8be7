"""Both commands on a tiny local model, and what they refuse."""

import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import train, training_sae
from sae_lens import SAE, SAEConfig
from tiny_words import WORDS, make_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from sae_lens_cosine.analysis import command
from sae_lens_cosine.analysis.results import Analysis

pytest.importorskip("plotly")
pytest.importorskip("sae_bench")

HOOK = "blocks.0.hook_resid_post"
D_MODEL = 16


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a text and three SAEs, all as files."""
    folder = tmp_path_factory.mktemp("inputs")
    tokenizer = make_tokenizer(folder / "tokenizer")
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=D_MODEL,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=64,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    model.save_pretrained(folder / "tiny")
    tokenizer.save_pretrained(folder / "tiny")
    words = random.Random(0)
    (folder / "text.txt").write_text(" ".join(words.choices(WORDS, k=700)))
    rows = [{"body": " ".join(words.choices(WORDS, k=50))} for _ in range(20)]
    (folder / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    for name, cfg in {
        "cosine": {"exponent_mode": "per_feature"},
        "global": {"initial_exponent": 0.2},
        "topk": {"architecture": "cosine_topk"},
    }.items():
        sae = training_sae(**{"d_in": D_MODEL, **cfg})
        sae.cfg.metadata.hook_name = HOOK
        sae.save_inference_model(folder / name)
    return folder


def cli(*args: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sae_lens_cosine", *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
    )


def run(inputs: Path, out: Path, *names: str, **options: Any) -> None:
    settings = {
        "saes": [str(inputs / name) for name in names],
        "model": str(inputs / "tiny"),
        "out": out,
        "text": inputs / "text.txt",
        "text_column": "text",
        "tokens": 512,
        "context_size": 32,
        "overwrite": False,
    }
    command.run(**settings | options)


def test_compare_end_to_end(inputs: Path, tmp_path: Path):
    out = tmp_path / "new" / "out"
    saes = [arg for n in ("cosine", "global", "topk") for arg in ("--sae", inputs / n)]
    result = cli(
        *("compare", *saes, "--model", inputs / "tiny", "--out", out),
        *("--text", inputs / "text.txt", "--tokens", 512, "--context-size", 32),
    )
    assert result.returncode == 0, result.stderr
    assert "Explained variance" in result.stdout
    assert "cosine / global" in " ".join(result.stdout.split())
    assert sorted(path.name for path in out.iterdir()) == [
        "analysis.json",
        "report.html",
    ]
    assert list(out.parent.iterdir()) == [out]

    found = Analysis.model_validate_json((out / "analysis.json").read_text())
    assert found.settings.tokens == 512
    assert found.settings.model == "tiny"
    assert list(found.arms) == ["cosine", "global", "topk"]
    assert [(p.first, p.second) for p in found.pairs] == [
        ("cosine", "global"),
        ("cosine", "topk"),
        ("global", "topk"),
    ]
    for name, arm in found.arms.items():
        assert arm.features.n_tokens == arm.reconstruction.n_tokens == 512
        fired = np.nansum(arm.features.density)
        assert fired == pytest.approx(arm.reconstruction.all_tokens.l0)
        sae = SAE.load_from_disk(inputs / name)
        assert arm.architecture == sae.cfg.architecture()
    assert found.arms["cosine"].exponent_density is not None
    assert found.arms["global"].exponents == pytest.approx(0.2)
    assert found.arms["topk"].other_score is None  # it has no threshold

    page = (out / "report.html").read_text()
    assert not re.search(r"<(script|link|img|iframe)[^>]*\s(src|href)=", page)
    assert "default-src 'none'" in page
    assert page.count('class="plotly-graph-div"') == page.count("<section><h2>") - (
        page.count("Not measured in this run.") + 1  # settings
    )
    for title in ("Are there latents that detect length?", "How many features do two"):
        assert title in page


def test_diagnose_reads_a_table_and_says_what_it_writes(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "out"
    table = {"text": inputs / "rows.jsonl", "text_column": "body"}
    run(inputs, out, "cosine", **table)
    printed = " ".join(capsys.readouterr().out.split())
    assert "512 tokens of rows.jsonl" in printed
    assert str(out / "report.html") in printed
    assert "Pairs of SAEs" not in printed
    page = (out / "report.html").read_text()
    assert "<h2>Results on rows.jsonl</h2>" in page
    assert "held-out" not in page
    first = json.loads((out / "analysis.json").read_text())

    with pytest.raises(FileExistsError, match="--overwrite"):
        run(inputs, out, "cosine", **table)
    run(inputs, out, "cosine", **table, overwrite=True)
    again = json.loads((out / "analysis.json").read_text())
    assert again["arms"] == first["arms"]  # the same numbers, to the last digit
    assert list(tmp_path.iterdir()) == [out]


def test_interrupted_before_the_end_nothing_is_written(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def interrupt(*_: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "render", interrupt)  # the JSON is written by then
    with pytest.raises(KeyboardInterrupt):
        run(inputs, tmp_path / "out", "cosine")
    assert list(tmp_path.iterdir()) == []


def test_bad_input_ends_with_one_line_and_code_2(inputs: Path, tmp_path: Path):
    one = ("--sae", inputs / "cosine", "--model", inputs / "tiny")
    result = cli("compare", *one, "--out", tmp_path / "out")
    assert result.returncode == 2
    assert result.stderr.strip().splitlines()[-1].endswith("or use `diagnose`.")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"saes": ["nowhere"]}, "nowhere is not the folder of an SAE"),
        ({"text": Path("no.csv")}, r"There is no file no\.csv"),
        ({"text": Path("no.pdf")}, r"no\.pdf is none of \.txt, \.csv"),
        ({"tokens": 31}, r"--tokens=31 is less than one context of 32"),
        ({"context_size": 65}, "context_size=65 is more than the 64 tokens"),
        ({"tokens": 10**4}, "give more text, or ask for fewer tokens"),
    ],
)
def test_refusals(inputs: Path, tmp_path: Path, options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        run(inputs, tmp_path / "out", "cosine", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_column_is_named(inputs: Path, tmp_path: Path):
    with pytest.raises(ValueError, match="no column 'text', only body"):
        run(inputs, tmp_path / "out", "cosine", text=inputs / "rows.jsonl")


def test_a_folder_that_holds_something_else_is_kept(inputs: Path, tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(FileExistsError, match="would delete something else"):
        run(inputs, tmp_path, "cosine", overwrite=True)
    (tmp_path / "analysis.json").write_text("{}")  # of an earlier run, beside it
    with pytest.raises(FileExistsError, match=r"thesis\.tex is not of this command"):
        run(inputs, tmp_path, "cosine", overwrite=True)
    with pytest.raises(NotADirectoryError, match=r"thesis\.tex is a file"):
        run(inputs, tmp_path / "thesis.tex" / "out", "cosine")
    assert (tmp_path / "thesis.tex").read_text() == "mine"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hook_name": None}, "'odd' does not say where it reads"),
        ({"hook_name": "blocks.1.hook_resid_post"}, "read different hooks"),
        ({"hook_head_index": 1}, "reads head 1 alone"),
    ],
)
def test_saes_that_cannot_be_compared(
    inputs: Path, tmp_path: Path, change: dict[str, Any], message: str
):
    sae = SAE.load_from_disk(inputs / "cosine")
    for key, value in change.items():
        setattr(sae.cfg.metadata, key, value)
    sae.save_model(tmp_path / "odd")
    saes = [str(inputs / "cosine"), str(tmp_path / "odd")]
    with pytest.raises(ValueError, match=message):
        run(inputs, tmp_path / "out", saes=saes)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"architecture": "temporal", "n_heads": 2, "bottleneck_factor": 4},
            "'odd' is a TemporalSAE, whose latents of a token depend on",
        ),
        (
            {"architecture": "transcoder", "d_out": 5, "apply_b_dec_to_input": False},
            "'odd' is a Transcoder, which reads .* to another hook",
        ),
    ],
)
def test_architectures_without_a_reconstruction_of_single_tokens(
    inputs: Path, tmp_path: Path, fields: dict[str, Any], message: str
):
    config = SAEConfig.from_dict({"d_in": D_MODEL, "d_sae": 24, **fields})
    config.metadata.hook_name = HOOK
    SAE.from_dict(config.to_dict()).save_model(tmp_path / "odd")
    with pytest.raises(TypeError, match=message):
        run(inputs, tmp_path / "out", saes=[str(tmp_path / "odd")])
    assert [path.name for path in tmp_path.iterdir()] == ["odd"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "5 of 24 thresholds are 0"),
        ({"normalize_activations": "layer_norm"}, "cannot be combined with a cosine"),
    ],
)
def test_an_sae_without_another_score_has_the_rest_of_the_report(
    inputs: Path, tmp_path: Path, fields: dict[str, Any], reason: str
):
    fields = {"architecture": "jumprelu", "d_in": D_MODEL, "d_sae": 24, **fields}
    sae = SAE.from_dict(SAEConfig.from_dict(fields).to_dict())
    sae.cfg.metadata.hook_name = HOOK
    sae.state_dict()["threshold"][5:] = 0.1
    sae.save_model(tmp_path / "odd")
    saes = [str(tmp_path / "odd"), str(inputs / "cosine")]
    with pytest.warns(UserWarning, match=f"'odd' is not read with another.*{reason}"):
        run(inputs, tmp_path / "out", saes=saes)
    text = (tmp_path / "out" / "analysis.json").read_text()
    arms = Analysis.model_validate_json(text).arms
    assert arms["odd"].other_score is None
    assert arms["cosine"].other_score is not None


def test_an_sae_of_another_width_or_hook_is_refused(inputs: Path, tmp_path: Path):
    sae = train(training_sae(), n_steps=1)  # d_in 8
    sae.cfg.metadata.hook_name = HOOK
    sae.save_inference_model(tmp_path / "narrow")
    with pytest.raises(ValueError, match=f"'narrow' has d_in=8.*width {D_MODEL}"):
        run(inputs, tmp_path / "out", saes=[str(tmp_path / "narrow")])
    sae.cfg.metadata.hook_name = "blocks.7.hook_resid_post"
    sae.save_inference_model(tmp_path / "deep")
    with pytest.raises(ValueError, match=r"no hook 'blocks\.7\.hook_resid_post'"):
        run(inputs, tmp_path / "out", saes=[str(tmp_path / "deep")])
