"""A Hugging Face cache on disk, as downloads leave it behind, with small files."""

from pathlib import Path
from typing import Any

import pandas as pd
from datasets.data_files import DataFilesDict
from datasets.load import configure_builder_class
from datasets.packaged_modules.parquet.parquet import Parquet, ParquetConfig
from sae_lens import SAE

REVISION = "0123456789abcdef0123456789abcdef01234567"

Row = dict[str, Any]


def snapshot(home: Path, kind: str, repo: str) -> Path:
    """The files of a repository: ``hub/models--owner--name/snapshots/<revision>``."""
    folder = home / "hub" / f"{kind}--{repo.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True, exist_ok=True)
    (folder / "refs" / "main").write_text(REVISION)
    files = folder / "snapshots" / REVISION
    files.mkdir(parents=True, exist_ok=True)
    return files


def add_sae(home: Path, repo: str, sae_id: str, sae: SAE[Any]) -> None:
    """Files of an SAE, and the note that the repository has no sparsity file."""
    files = snapshot(home, "models", repo)
    sae.save_model(files / sae_id)
    absent = files.parents[1] / ".no_exist" / REVISION / sae_id
    absent.mkdir(parents=True)
    (absent / "sparsity.safetensors").touch()


def add_data_set(
    home: Path, repo: str, splits: dict[str, list[Row]], config: str = "default"
) -> None:
    """A data set as ``datasets.load_dataset`` leaves it: its files and Arrow tables.

    The tables are made by its own builder for repositories of Parquet files.
    """
    folder = snapshot(home, "datasets", repo) / config
    folder.mkdir()
    files = {split: folder / f"{split}-00000-of-00001.parquet" for split in splits}
    for split, rows in splits.items():
        pd.DataFrame(rows).to_parquet(files[split])
    data_files = DataFilesDict.from_patterns({s: [str(p)] for s, p in files.items()})
    name = repo.split("/")[1]
    configs = [ParquetConfig(name=config, data_files=data_files)]
    builder = configure_builder_class(Parquet, configs, config, name)  # type: ignore[arg-type]
    builder(
        cache_dir=str(home / "datasets"),
        repo_id=repo,
        dataset_name=name,
        hash=REVISION,
    ).download_and_prepare()
