"""Labelled text for probing: one data set, its classes, train and test rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sae_lens_cosine.validation import check_name


@dataclass(frozen=True)
class LabelledTexts:
    """Texts by class label, for one-against-rest probes.

    Each class is probed against as many rows drawn evenly from the other classes, so
    every split needs at least two classes, and enough rows in the others to match the
    largest (equal sizes always do).

    Raises:
        ValueError: if the name is empty or too long, there are fewer than two classes, train and
            test differ in their classes, a class is empty, or the classes are too
            unbalanced.
        TypeError: if a class holds one string instead of a list of them, or something
            that is no string.
    """

    name: str
    """What results and cached files are called after."""

    train: Mapping[str, Sequence[str]]
    """Class label -> texts on which probes are trained."""

    test: Mapping[str, Sequence[str]]
    """Class label -> texts on which their accuracy is measured."""

    dropped: Mapping[str, int] = field(default_factory=dict)
    """What was left out when the data set was made (duplicates, for example), counted.
    Results repeat it."""

    def __post_init__(self) -> None:
        check_name("A data set", self.name)
        if set(self.train) != set(self.test):
            raise ValueError(
                f"Data set {self.name!r}: train has the classes {sorted(self.train)} "
                f"but test has {sorted(self.test)}."
            )
        for split, texts in (("train", self.train), ("test", self.test)):
            for label, rows in texts.items():
                if isinstance(rows, str):
                    raise TypeError(
                        f"Data set {self.name!r}: class {label!r} in {split} is one "
                        "string: give a list of texts."
                    )
                for text in rows:
                    if not isinstance(text, str):
                        raise TypeError(
                            f"Data set {self.name!r}: class {label!r} in {split} has "
                            f"{text!r} among its texts, which is none."
                        )
            check_class_sizes(
                self.name, split, {label: len(rows) for label, rows in texts.items()}
            )


def check_class_sizes(name: str, split: str, sizes: Mapping[str, int]) -> None:
    """Refuse class sizes from which no one-against-rest task can be drawn.

    A class of ``n`` rows is set against ``n`` rows from the others, at most
    ``ceil(n / others)`` from each (SAEBench's ``prepare_probe_data``).

    Raises:
        ValueError: naming the data set, the split and the class.
    """
    if len(sizes) < 2:
        raise ValueError(
            f"Data set {name!r} has {len(sizes)} class(es) in {split}: probing needs "
            "at least two."
        )
    for label, size in sizes.items():
        if size == 0:
            raise ValueError(f"Data set {name!r}: class {label!r} in {split} is empty.")
    for label, size in sizes.items():
        others = [n for other, n in sizes.items() if other != label]
        per_class = -(-size // len(others))
        negatives = sum(min(n, per_class) for n in others)
        if negatives < size:
            raise ValueError(
                f"Data set {name!r}: class {label!r} in {split} has {size} rows, but "
                f"only {negatives} can be drawn evenly from the other classes "
                f"(sizes {dict(sizes)}). Trim the classes to equal sizes."
            )
