"""The notebooks run from top to bottom, and are committed as such a run left them."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MAX_BYTES = 1_500_000


def test_there_are_two():
    assert len(NOTEBOOKS) == 2


def read(path: Path) -> tuple[NotebookNode, list[NotebookNode]]:
    """The notebook and its cells of code."""
    notebook = nbformat.read(path, as_version=4)
    return notebook, [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(cells: list[NotebookNode]) -> list[NotebookNode]:
    return [output for cell in cells for output in cell.outputs]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_committed_run_is_complete_and_clean(path):
    notebook, cells = read(path)
    nbformat.validate(notebook)
    assert path.stat().st_size < MAX_BYTES
    counts = [cell.execution_count for cell in cells]
    assert counts == list(range(1, len(cells) + 1))
    found = outputs(cells)
    assert not [o for o in found if o.output_type == "error"]
    assert not [o for o in found if o.get("name") == "stderr"]
    assert sum("image/png" in o.get("data", {}) for o in found) >= 3
    assert sum("text/html" in o.get("data", {}) for o in found) >= 5


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_committed_outputs_name_no_place_on_a_machine(path):
    _, cells = read(path)
    for output in outputs(cells):
        shown = output.get("text", "") + "".join(
            content
            for kind, content in output.get("data", {}).items()
            if kind.startswith("text/")
        )
        assert not re.search(r"(/tmp|/home|/root|/work|/Users|site-packages)\b", shown)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_again_with_a_small_budget(path, tmp_path, monkeypatch):
    monkeypatch.setenv("SAE_LENS_COSINE_NOTEBOOK_BUDGET", "small")
    # Where the notebook puts what it trains.
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook, cells = read(path)
    committed = [[o.output_type for o in cell.outputs] for cell in cells]
    NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    # The same cells show the same kinds of output, whatever the numbers.
    assert [[o.output_type for o in cell.outputs] for cell in cells] == committed
    assert not [o for o in outputs(cells) if o.get("name") == "stderr"]
