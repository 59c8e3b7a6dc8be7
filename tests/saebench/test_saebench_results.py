"""Repeatable numbers, an untouched caller, and results as files."""

import copy
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
from pydantic import TypeAdapter
from sae_bench.evals.sparse_probing.eval_output import SparseProbingEvalOutput
from sae_bench.sae_bench_utils import graphing_utils
from tiny_lm import CONTEXT, Probe, make_sae
from transformer_lens import HookedTransformer

from sae_lens_cosine.labelled_texts import LabelledTexts
from sae_lens_cosine.saebench import run_sparse_probing


def numbers(output: SparseProbingEvalOutput) -> dict[str, Any]:
    """Everything measured, without time stamp and run id."""
    everything = asdict(output)
    kept = ("eval_result_metrics", "eval_result_details", "eval_result_unstructured")
    return {key: everything[key] for key in kept}


def test_same_numbers_cold_warm_and_after_other_work(
    probe: Probe, colours: LabelledTexts, tmp_path: Path
) -> None:
    sae = make_sae("topk", k=4)
    cold = probe(sae, colours)
    torch.rand(5)
    warm = probe(sae, colours)
    cold_elsewhere = probe(sae, colours, artifacts_dir=tmp_path / "elsewhere")
    assert numbers(cold) == numbers(warm) == numbers(cold_elsewhere)
    assert numbers(probe(sae, colours, seed=1)) != numbers(cold)


def test_several_saes_share_activations_and_do_not_influence_each_other(
    probe: Probe, model: HookedTransformer, colours: LabelledTexts, tmp_path: Path
) -> None:
    saes = {"one": make_sae(seed=1), "two": make_sae(seed=2)}
    together = run_sparse_probing(
        saes,
        model=model,
        datasets=[colours],
        artifacts_dir=tmp_path / "artifacts",
        context_size=CONTEXT,
        llm_batch_size=7,
        sae_batch_size=5,
        show_progress=False,
    )
    files = list((tmp_path / "artifacts").rglob("*.pt"))
    assert [f.name for f in files] == ["demo_colours_activations.pt"]
    assert list(together) == ["one", "two"]
    for name, sae in saes.items():
        assert numbers(probe(sae, colours)) == numbers(together[name])


def test_caller_is_left_alone(probe: Probe, colours: LabelledTexts) -> None:
    # Normalisation writes into the SAE that encodes (`ln_mu`): not into this one.
    sae = make_sae(normalize_activations="layer_norm").to(dtype=torch.float64)
    before = copy.deepcopy(sae.__dict__)
    cfg_before = copy.deepcopy(sae.cfg.__dict__)
    torch.manual_seed(3)
    random.seed(3)
    state = torch.get_rng_state(), random.getstate()
    with torch.no_grad():
        probe(sae, colours)
        assert not torch.is_grad_enabled()
    with torch.inference_mode():
        probe(sae, colours)

    assert sae.__dict__.keys() == before.keys()
    assert sae.cfg.__dict__ == cfg_before
    assert sae.dtype == sae.W_enc.dtype == torch.float64
    for name, parameter in before["_parameters"].items():
        assert torch.equal(getattr(sae, name), parameter)
    assert torch.equal(torch.get_rng_state(), state[0])
    assert random.getstate() == state[1]
    assert jaxtyping.config.jaxtyping_disable is False


def test_results_are_written_and_reused_by_content_not_by_name(
    probe: Probe, colours: LabelledTexts, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    sae = make_sae()
    first = probe(sae, colours, output=out)
    (path,) = (out / "sparse_probing").iterdir()
    assert path.name == f"sae_{first.sae_lens_id}_eval_results.json"
    TypeAdapter(SparseProbingEvalOutput).validate_json(path.read_bytes())
    (graphed,) = graphing_utils.get_eval_results([str(path)]).values()
    assert graphed["sae_top_1_test_accuracy"] == (
        first.eval_result_metrics.sae.sae_top_1_test_accuracy
    )

    again = probe(sae, colours, output=out)
    assert again == first  # time stamp and run id too: read, not computed
    forced = probe(sae, colours, output=out, force=True)
    assert forced.eval_id != first.eval_id
    assert numbers(forced) == numbers(first)

    with torch.no_grad():
        sae.b_enc += 0.5  # another SAE under the same name
    other = probe(sae, colours, output=out)
    assert numbers(other) != numbers(first)
    probe(sae, colours, output=out, seed=1)
    assert len(list((out / "sparse_probing").iterdir())) == 3


@pytest.mark.parametrize("content", [b"", b'{"eval_id": ', b"PK\x03\x04 cut short"])
@pytest.mark.parametrize("pattern", ["sparse_probing/*.json", "answers/*.npz"])
def test_damaged_result_is_reported(
    probe: Probe, colours: LabelledTexts, tmp_path: Path, pattern: str, content: bytes
) -> None:
    first = probe(make_sae(), colours, output=tmp_path)
    (path,) = tmp_path.glob(pattern)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{path.name} is damaged.*pass force=True"):
        probe(make_sae(), colours, output=tmp_path)
    probe(make_sae(), colours, output=tmp_path, force=True)
    assert numbers(probe(make_sae(), colours, output=tmp_path)) == numbers(first)


@pytest.mark.parametrize("content", [b"", b"no torch file", b"PK\x03\x04 cut short"])
@pytest.mark.parametrize("pattern", ["*_activations.pt", "baseline_*.json"])
def test_damaged_cache_is_reported(
    probe: Probe, colours: LabelledTexts, tmp_path: Path, pattern: str, content: bytes
) -> None:
    first = probe(make_sae(), colours)
    (path,) = (tmp_path / "artifacts").rglob(pattern)
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=f"{path.name} is damaged .*: delete it to comp"
    ):
        probe(make_sae(), colours, force=True)
    path.unlink()
    assert numbers(probe(make_sae(), colours)) == numbers(first)
