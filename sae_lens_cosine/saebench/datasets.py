"""Data sets by name, by suite, from tables: everything becomes `LabelledTexts`."""

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import datasets as hugging_face
import pandas as pd
from sae_bench.sae_bench_utils import dataset_info, dataset_utils

from sae_lens_cosine.demo.text import (
    PROBING_TASKS,
    ProbingTask,
    data_set_names,
    distinct_texts,
    read_data_set,
)
from sae_lens_cosine.labelled_texts import LabelledTexts
from sae_lens_cosine.saebench.host import quiet
from sae_lens_cosine.saebench.languages import LANGUAGES_TASK, language_texts
from sae_lens_cosine.saebench.splits import Size, split_texts, texts_by_label
from sae_lens_cosine.tables import READERS, read_cells, read_table
from sae_lens_cosine.validation import check_count


@dataclass(frozen=True)
class TextTable:
    """A table with a text and a label column."""

    source: str | os.PathLike[str] | hugging_face.Dataset | pd.DataFrame
    """A CSV, Parquet or JSON Lines file, or a loaded table."""
    text: str = "text"
    label: str = "label"
    name: str | None = None
    """What results call it; the file's name by default."""


DatasetSource: TypeAlias = (
    LabelledTexts | TextTable | str | os.PathLike[str] | hugging_face.Dataset
)

SAEBENCH_TASKS = tuple(dataset_info.chosen_classes_per_dataset)
"""SAEBench's eight data sets, which it loads from the Hugging Face hub."""

OFFLINE_TASKS = (
    *(name for name, task in PROBING_TASKS.items() if task.counterpart),
    LANGUAGES_TASK,
)
"""A counterpart for each of SAEBench's eight, from texts that packages ship."""

SUITES = {"saebench": SAEBENCH_TASKS, "offline": OFFLINE_TASKS}


def load_datasets(
    sources: DatasetSource | Sequence[DatasetSource],
    train_rows: int = 4000,
    test_rows: int = 1000,
    seed: int = 42,
) -> list[LabelledTexts]:
    """Find, split and balance data sets.

    Args:
        sources: one or several of: a suite (``"saebench"``, ``"offline"``), one of
            SAEBench's eight names, a task of the offline suite or another of
            ``PROBING_TASKS``, a data set of ``sae-probes``, a file, a
            ``datasets.Dataset``, a :class:`TextTable`, or :class:`.LabelledTexts`,
            which are taken as they are.
        train_rows: rows of a one-against-rest task; a class has half as many. A data
            set with too few rows keeps the proportion of train and test.
        test_rows: likewise.
        seed: of the choice of rows.

    Raises:
        ValueError: for no data set, an unknown name, two data sets of one name, a
            file without the columns, fewer than two classes, or empty ones.
    """
    listed = sources if isinstance(sources, list | tuple) else [sources]
    # One row of a class against one of the others.
    check_count("train_rows", train_rows, 2)
    check_count("test_rows", test_rows, 2)
    size = Size(train_rows // 2, test_rows // 2)
    loaded: list[LabelledTexts] = []
    for source in listed:
        for item in (
            SUITES.get(source, [source]) if isinstance(source, str) else [source]
        ):
            texts = _load(item, size, seed)
            if texts is None:
                warnings.warn(
                    f"The suite {source!r} runs without {LANGUAGES_TASK!r}, because "
                    "no package with message catalogues is installed: pip install "
                    "django.",
                    stacklevel=3,
                )
                continue
            loaded.append(texts)
    if not loaded:
        raise ValueError("There is no data set to probe on.")
    # SAEBench writes "/" in names as "_".
    names = [texts.name.replace("/", "_") for texts in loaded]
    if len(set(names)) < len(names):
        raise ValueError(f"Two data sets have the same name, among {names}.")
    return loaded


def _load(source: Any, size: Size, seed: int) -> LabelledTexts | None:
    """None for the one task whose texts may not be installed."""
    if isinstance(source, LabelledTexts):
        _warn_of_shared_texts(source)
        return source
    if isinstance(source, TextTable):
        return _from_table(source, size, seed)
    if isinstance(source, hugging_face.Dataset):
        return _from_table(TextTable(source, name="dataset"), size, seed)
    if not isinstance(source, str | os.PathLike):
        raise TypeError(
            f"A {type(source).__name__} is no data set: pass a name, a file, a "
            "datasets.Dataset (one split), a TextTable, or LabelledTexts."
        )
    name = os.fspath(source)
    if name in SAEBENCH_TASKS:
        return _from_hub(name, size, seed)
    if name == LANGUAGES_TASK:
        return language_texts(size)
    if name in PROBING_TASKS:
        texts, dropped = distinct_texts(PROBING_TASKS[name])
        return split_texts(name, texts, size, seed, dropped)
    if Path(name).suffix in READERS:
        return _from_table(TextTable(name), size, seed)
    if name in data_set_names():
        targets = sorted(read_data_set(name)["target"].unique())
        task = ProbingTask(None, {target: (name, target) for target in targets})
        texts, dropped = distinct_texts(task)
        return split_texts(name, texts, size, seed, dropped)
    raise ValueError(
        f"There is no data set {name!r}: give a suite ({', '.join(SUITES)}), one of "
        f"{', '.join((*SAEBENCH_TASKS, *PROBING_TASKS, LANGUAGES_TASK))}, a data set "
        f"of sae-probes such as 155_athlete_sport_basketball, or a file "
        f"({', '.join(READERS)})."
    )


def _warn_of_shared_texts(texts: LabelledTexts) -> None:
    """A probe knows the answer to a test text that it was trained on."""
    train, test = (
        [" ".join(text.split()) for rows in split.values() for text in rows]
        for split in (texts.train, texts.test)
    )
    trained_on = set(train)
    if shared := sum(text in trained_on for text in test):
        warnings.warn(
            f"Data set {texts.name!r}: {shared} of {len(test)} test texts are training "
            "texts too, which makes accuracies too high.",
            stacklevel=4,
        )


def _from_hub(name: str, size: Size, seed: int) -> LabelledTexts:
    """SAEBench's own loader and classes."""
    try:
        with quiet():
            splits = dataset_utils.get_multi_label_train_test_data(
                name, 2 * size.train, 2 * size.test, seed
            )
    except Exception as error:
        raise ValueError(
            f"SAEBench cannot load {name!r} from the Hugging Face hub or its cache "
            f"({error}). The suite 'offline' needs no hub."
        ) from error
    classes = dataset_info.chosen_classes_per_dataset[name]
    train, test = (dataset_utils.filter_dataset(split, classes) for split in splits)
    return LabelledTexts(name, train, test)


def _from_table(table: TextTable, size: Size, seed: int) -> LabelledTexts:
    source, name = table.source, table.name or "table"
    if isinstance(source, str | os.PathLike):
        name = table.name or Path(source).stem
        frame = read_table(Path(source))
    elif isinstance(source, pd.DataFrame):
        frame = source
    else:
        frame = _to_frame(source)
    for column in (table.text, table.label):
        if column not in frame:
            raise ValueError(
                f"The table {name!r} has no column {column!r}, only "
                f"{', '.join(map(str, frame.columns))}: name the columns with "
                "TextTable(source, text=..., label=...), or --text-column and "
                "--label-column."
            )
    by_label, dropped = texts_by_label(
        read_cells(frame, table.text), read_cells(frame, table.label)
    )
    if lost := {what: count for what, count in dropped.items() if count}:
        warnings.warn(
            f"Data set {name!r}: left out of {len(frame)} rows: "
            f"{', '.join(f'{what}: {count}' for what, count in lost.items())}.",
            stacklevel=4,
        )
    return split_texts(name, by_label, size, seed, dropped)


def _to_frame(data: hugging_face.Dataset) -> pd.DataFrame:
    """With the names of classes where the data set holds their numbers."""
    frame = cast(pd.DataFrame, data.to_pandas())
    for column, feature in data.features.items():
        if isinstance(feature, hugging_face.ClassLabel):
            frame[column] = frame[column].map(dict(enumerate(feature.names)).get)
    return frame
