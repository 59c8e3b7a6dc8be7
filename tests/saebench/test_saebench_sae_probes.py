"""SAEBench's second probing eval, with a model that no hub has."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from sae_bench.evals.sparse_probing_sae_probes.eval_output import (
    SparseProbingSaeProbesEvalOutput,
)
from sae_probes.run_sae_evals import run_sae_evals
from tiny_lm import RESIDUAL, make_sae
from transformer_lens import HookedTransformer

from sae_lens_cosine.saebench.sae_probes_eval import run_sae_probes

DATASET = "95_toxic_is"  # the smallest


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artifacts")


def run(model: Any, saes: Any, output: Path, artifacts: Path, **kwargs: Any) -> Any:
    settings = {"datasets": [DATASET], "ks": (1, 3), "llm_baseline": False}
    return run_sae_probes(
        saes,
        model=model,
        output=output,
        artifacts_dir=artifacts,
        show_progress=False,
        **settings | kwargs,
    )


def test_equals_a_direct_call_and_is_keyed_by_content(
    model: HookedTransformer, tmp_path: Path, artifacts: Path
) -> None:
    side = model.tokenizer.truncation_side  # type: ignore[union-attr]
    saes = {"sae": make_sae(), "other": make_sae("topk", seed=1, k=4)}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*penalty.*")  # of scikit-learn
        outputs = run(model, saes, tmp_path, artifacts)
    assert model.tokenizer.truncation_side == side  # type: ignore[union-attr]
    (cache,) = (artifacts / "sae-probes").iterdir()
    files = sorted((tmp_path / "sparse_probing_sae_probes").iterdir())
    assert len(files) == 2
    for path in files:
        TypeAdapter(SparseProbingSaeProbesEvalOutput).validate_json(path.read_bytes())

    run_sae_evals(
        make_sae(),
        "tiny",
        RESIDUAL,
        "l1",
        "normal",
        ks=[1, 3],
        results_path=tmp_path / "direct",
        model_cache_path=cache,
        datasets=[DATASET],
        device="cpu",
    )
    (path,) = (tmp_path / "direct").rglob("*.json")
    direct = {entry["k"]: entry["test_acc"] for entry in json.loads(path.read_text())}
    by_k = outputs["sae"].sae_metrics_by_k
    assert {k: by_k[k]["test_accuracy"] for k in (1, 3)} == direct
    assert outputs["other"].sae_metrics_by_k != by_k

    # Read back; and another SAE of the same name is another result.
    again = run(model, saes, tmp_path, artifacts)
    assert again["sae"].eval_id == outputs["sae"].eval_id
    changed = make_sae()
    with torch.no_grad():
        changed.b_enc += 0.5
    other = run(model, {"sae": changed}, tmp_path, artifacts)["sae"]
    assert other.sae_lens_id != outputs["sae"].sae_lens_id


def test_binarized_probes_are_read_and_baseline_is_there(
    model: HookedTransformer, tmp_path: Path, artifacts: Path
) -> None:
    saes = {"sae": make_sae()}
    plain = run(model, saes, tmp_path, artifacts, llm_baseline=True)["sae"]
    assert 0.4 < plain.eval_result_metrics.llm.llm_test_accuracy < 1
    binarized = run(model, saes, tmp_path, artifacts, binarize=True)["sae"]
    assert set(binarized.sae_metrics_by_k) == {1, 3}
    assert binarized.eval_config.binarize
    for path in tmp_path.glob("sparse_probing_sae_probes/*"):
        path.write_bytes(b"{")
    with pytest.raises(ValueError, match=r"json is damaged .*pass force=True"):
        run(model, saes, tmp_path, artifacts, binarize=True)


def test_bad_requests(model: HookedTransformer, tmp_path: Path) -> None:
    saes = {"sae": make_sae()}
    for settings, message in (
        ({"datasets": ["no"]}, r"datasets=\['no'\].*113 of sae-probes"),
        ({"ks": 5}, "ks=5: give a list of at least one k"),
        ({"ks": (0,)}, "k=0 must be a whole number, 1 or more"),
        ({"ks": (1, 49)}, "k=49 is more than the d_sae=48 of 'sae'"),
        ({"llm_batch_size": 0}, "llm_batch_size=0 must"),
        ({"reg_type": "l3"}, "reg_type='l3' is unknown"),
    ):
        with pytest.raises(ValueError, match=message):
            run(model, saes, tmp_path, tmp_path, **settings)
    assert not list(tmp_path.iterdir())
