"""Where SAEBench's graphing code finds its results, and where it does not."""

import os
import warnings
from pathlib import Path

import pytest
from sae_bench.sae_bench_utils import graphing_utils
from three_evals import core, last_token, probing
from tiny_lm import make_sae
from transformer_lens import HookedTransformer

EVALS = {
    "sparse_probing": (probing, "sae_top_1_test_accuracy"),
    "core": (core, "explained_variance"),
    "sparse_probing_sae_probes": (last_token, "sae_top_1_test_accuracy"),
}


def results(folder: Path, evaluation: str) -> list[str]:
    return [str(path) for path in (folder / evaluation).iterdir()]


@pytest.mark.parametrize("evaluation", EVALS)
def test_path_that_saebench_misreads(
    model: HookedTransformer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    evaluation: str,
) -> None:
    evaluate, metric = EVALS[evaluation]
    plain, trap = tmp_path / "runs", tmp_path / "scratch" / "runs"
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="SAEBench's graphing code")
        evaluate({"sae": make_sae()}, model, plain)
    for found in graphing_utils.get_eval_results(results(plain, evaluation)).values():
        assert metric in found

    with pytest.warns(UserWarning, match="takes .*scratch.* for results of another"):
        evaluate({"sae": make_sae()}, model, trap)
    with pytest.raises(KeyError, match="scr_metrics"):
        graphing_utils.get_eval_results(results(trap, evaluation))
    # The way out that the warning names.
    monkeypatch.chdir(trap)
    relative = [os.path.relpath(path) for path in results(trap, evaluation)]
    for found in graphing_utils.get_eval_results(relative).values():
        assert metric in found


def test_name_of_an_sae_is_part_of_the_path(
    model: HookedTransformer, tmp_path: Path
) -> None:
    saes = {"from_scratch": make_sae()}
    with pytest.warns(UserWarning, match=r"from_scratch.*\(and 1 more\).*rename the"):
        probing(saes, model, tmp_path)
