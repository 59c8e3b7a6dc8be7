"""The README's snippets run as they stand, one after the other."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.slow
def test_the_three_ways_in(tmp_path, monkeypatch, capsys):
    snippets = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(snippets) >= 3
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for snippet in snippets:
        exec(compile(snippet, str(README), "exec"), namespace)
    accuracy = float(capsys.readouterr().out.splitlines()[0])
    assert 0 < accuracy <= 1
    assert (tmp_path / "my_sae" / "cfg.json").exists()
    assert list((tmp_path / "results").rglob("*_eval_results.json"))
