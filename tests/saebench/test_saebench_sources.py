"""SAEs and models from objects, folders and names."""

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from sae_lens import SAE, TrainingSAE, TrainingSAEConfig
from tiny_lm import CONTEXT, make_texts, make_tokenizer
from transformers import LlamaForCausalLM

from sae_lens_cosine.saebench import run_sparse_probing
from sae_lens_cosine.saebench.sources import load_model, load_saes, parse_sources

HOOK = "blocks.0.hook_resid_post"


def run(saes: Any, model: Any, folder: Path, **kwargs: Any) -> Any:
    settings = {"datasets": [make_texts("t")], "context_size": CONTEXT, "ks": (1, 2)}
    return run_sparse_probing(
        saes, model=model, output=folder, show_progress=False, **settings | kwargs
    )


@pytest.mark.parametrize(
    ("text", "name", "source"),
    [
        ("t/lr=1e-3", "lr=1e-3", Path("t/lr=1e-3")),
        ("n=t/lr=1e-3", "n", Path("t/lr=1e-3")),
        ("t/a:b", "a:b", Path("t/a:b")),
        ("n=t/a:b", "n", Path("t/a:b")),
        ("r:i", "r/i", ("r", "i")),
        ("n=r:i", "n", ("r", "i")),
        ("n=r:lr=1e-3", "n", ("r", "lr=1e-3")),
        ("me/r:lr=1e-3", "me/r/lr=1e-3", ("me/r", "lr=1e-3")),
        # Nothing of the kind exists: the message shows what was given.
        ("t/lr=2", "lr=2", Path("t/lr=2")),
    ],
)
def test_sources_of_the_command_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    name: str,
    source: Path | tuple[str, str],
) -> None:
    for folder in ("lr=1e-3", "a:b"):
        (tmp_path / "t" / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert parse_sources([text]) == {name: source}


def test_folders_give_the_numbers_of_the_objects(
    llama: Path, sae_folder: Path, tmp_path: Path
) -> None:
    from_folders = run([sae_folder], llama, tmp_path / "folders")
    assert list(from_folders) == ["my-sae"]
    model = load_model(llama)
    from_objects = run({"x": SAE.load_from_disk(sae_folder)}, model, tmp_path / "objs")
    assert from_objects["x"].eval_result_metrics == (
        from_folders["my-sae"].eval_result_metrics
    )
    assert from_folders["my-sae"].eval_config.model_name == "tiny-llama"
    assert (tmp_path / "folders" / "activations").is_dir()


def test_local_model_computes_what_hugging_face_computes(llama: Path) -> None:
    model = load_model(str(llama))
    tokens = torch.tensor([[0, 4, 9, 11, 5, 8]])
    with torch.no_grad():
        expected = LlamaForCausalLM.from_pretrained(llama)(tokens).logits
        assert torch.allclose(model(tokens), expected, atol=1e-5)


def test_transformer_bridge(llama: Path, sae_folder: Path, tmp_path: Path) -> None:
    bridges = pytest.importorskip("transformer_lens.model_bridge")
    bridge = bridges.TransformerBridge.boot_transformers(
        str(llama), device="cpu", tokenizer=make_tokenizer()
    )
    bridge.tokenizer = make_tokenizer()
    got = run([sae_folder], bridge, tmp_path / "bridge")["my-sae"]
    expected = run([sae_folder], llama, tmp_path / "hooked")["my-sae"]
    # Not the same kernels: a prompt may move across a probe's boundary.
    for part in ("llm", "sae"):
        pairs = zip(
            asdict(getattr(got.eval_result_metrics, part)).values(),
            asdict(getattr(expected.eval_result_metrics, part)).values(),
            strict=True,
        )
        for a, b in pairs:
            assert a == pytest.approx(b, abs=2 / 24)


def test_unfit_sae_sources(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no-such.*no cfg\.json"):
        load_saes([tmp_path / "no-such"])
    with pytest.raises(ValueError, match="cannot load the SAE 'b' of release 'a'"):
        load_saes([("a", "b")])
    with pytest.raises(ValueError, match="same name"):
        load_saes([("r", "i"), ("r", "i")])
    with pytest.raises(TypeError, match="pass a list"):
        load_saes("folder")  # type: ignore[arg-type]
    config = TrainingSAEConfig.from_dict(
        {"architecture": "cosine_batchtopk", "d_in": 32, "d_sae": 48, "k": 4}
    )
    TrainingSAE.from_dict(config.to_dict()).save_model(tmp_path / "checkpoint")
    with pytest.raises(
        ValueError, match=r"cosine_batchtopk.*save_inference_model"
    ) as e:
        load_saes([tmp_path / "checkpoint"])
    assert str(e.value).count("training checkpoint") == 1
    (tmp_path / "checkpoint" / "cfg.json").write_text("{")
    with pytest.raises(ValueError, match=r"cfg\.json is no JSON"):
        load_saes([tmp_path / "checkpoint"])


def test_unfit_model_sources(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no config\.json"):
        load_model(tmp_path)
    with pytest.raises(
        ValueError, match="'no-model' is neither 'demo', nor a fold"
    ) as e:
        load_model("no-model")
    assert "Yi-34B" not in str(e.value)  # the first of TransformerLens's names


def test_another_process_gets_the_same_numbers(
    llama: Path, sae_folder: Path, table: Path, tmp_path: Path
) -> None:
    args = {"text": "sentence", "label": "colour"}
    code = f"""
from sae_lens_cosine.saebench import TextTable, run_sparse_probing
report = run_sparse_probing(
    [{str(sae_folder)!r}], model={str(llama)!r}, output={str(tmp_path / "there")!r},
    datasets=[TextTable({str(table)!r}, **{args!r})], context_size={CONTEXT},
    mask_sinks="first_token", probe_seeds=2, show_progress=False,
)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    from sae_lens_cosine.saebench import TextTable

    def here(folder: Path) -> Any:
        return run_sparse_probing(
            [sae_folder],
            model=llama,
            output=folder,
            datasets=[TextTable(table, **args)],
            context_size=CONTEXT,
            mask_sinks="first_token",
            probe_seeds=2,
            show_progress=False,
        )

    cold = here(tmp_path / "here")  # its own caches
    for part in ("sparse_probing", "answers", "activations"):
        names = [
            sorted(
                str(p.relative_to(tmp_path / w))
                for p in (tmp_path / w / part).rglob("*")
            )
            for w in ("here", "there")
        ]
        assert names[0] == names[1]  # the same keys
    summary = (tmp_path / "there" / cold.summary_filename).read_text()
    assert cold.summary.model_dump_json(indent=1) == summary
    read = here(tmp_path / "there")  # what the other process wrote
    assert asdict(read["my-sae"].eval_result_metrics) == asdict(
        cold["my-sae"].eval_result_metrics
    )
