"""The page's snippets run as they stand, one after the other."""

import re
from pathlib import Path

import pytest
from helpers import training_sae
from sae_lens import HookedSAETransformer

PAGE = Path(__file__).parents[2] / "docs" / "analysis.md"


def test_the_snippets_run(
    tiny_model: HookedSAETransformer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    for name, mode in (("my_sae", "per_feature"), ("other_sae", "global")):
        sae = training_sae(d_in=tiny_model.cfg.d_model, exponent_mode=mode)
        sae.cfg.metadata.hook_name = "blocks.0.hook_resid_post"
        sae.save_inference_model(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(snippets) == 7
    namespace: dict[str, object] = {"model": tiny_model}
    for snippet in snippets:
        exec(compile(snippet, str(PAGE), "exec"), namespace)
    assert "per_feature" in capsys.readouterr().out
