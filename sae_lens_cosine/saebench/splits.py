"""Train and test rows of labelled texts: disjoint, balanced, without repetitions."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sae_lens_cosine.labelled_texts import LabelledTexts


class Size(NamedTuple):
    """Rows of each class."""

    train: int
    test: int


def split_texts(
    name: str,
    texts: Mapping[str, Sequence[str]],
    size: Size,
    seed: int,
    dropped: Mapping[str, int] | None = None,
) -> LabelledTexts:
    """Shuffle distinct texts and cut them into train and test rows.

    Where the smallest class is too small, all classes get its size, in the proportion
    of train and test that was asked for.

    Raises:
        ValueError: if there are fewer than two classes, or one with a single text.
    """
    counts = {label: len(rows) for label, rows in texts.items()}
    if len(counts) < 2 or min(counts.values()) < 2:
        raise ValueError(
            f"Data set {name!r} has the classes {counts}: probing needs at least two "
            "classes, with two different texts each."
        )
    smallest = min(counts.values())
    if smallest < sum(size):
        test = max(1, smallest * size.test // sum(size))
        size = Size(smallest - test, test)
    train, tests = {}, {}
    for label, rows in texts.items():
        order = list(rows)
        random.Random(f"{seed}/{name}/{label}").shuffle(order)
        train[label] = order[: size.train]
        tests[label] = order[size.train : sum(size)]
    return LabelledTexts(name, train, tests, dropped or {})


def texts_by_label(
    texts: Sequence[str | None], labels: Sequence[str | None]
) -> tuple[dict[str, list[str]], dict[str, int]]:
    """Distinct texts of each class, and what was left out.

    Texts that differ only in white space are one text. One that stands under two
    labels is left out, as are rows without text or label.
    """
    found: dict[str, dict[str, str]] = {}
    empty = 0
    for text, label in zip(texts, labels, strict=True):
        if text is None or label is None:
            empty += 1
            continue
        found.setdefault(label, {})[" ".join(text.split())] = text
    times = Counter(key for rows in found.values() for key in rows)
    distinct = {
        label: [text for key, text in rows.items() if times[key] == 1]
        for label, rows in sorted(found.items())
    }
    dropped = {
        "rows without text or label": empty,
        "duplicates": len(texts) - empty - times.total(),
        "texts in two classes": sum(n for n in times.values() if n > 1),
    }
    return distinct, dropped
