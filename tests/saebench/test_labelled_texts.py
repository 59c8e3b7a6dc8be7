"""Data sets from which no probe could be trained are refused at once."""

import pytest

from sae_lens_cosine.labelled_texts import LabelledTexts


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"a": ["x"]}, r"has 1 class\(es\) in train"),
        ({"a": ["x"], "b": []}, "class 'b' in train is empty"),
        ({"a": ["x"] * 3, "b": ["y"]}, "has 3 rows, but only 1 can be drawn"),
        # 4 rows against ceil(4 / 2) = 2 from each other class: 2 + 1.
        ({"a": ["x"] * 4, "b": ["y"] * 4, "c": ["z"]}, "4 rows, but only 3"),
    ],
)
def test_labelled_texts(train: dict[str, list[str]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LabelledTexts("t", train=train, test={label: ["x"] for label in train})


def test_labelled_texts_mistakes() -> None:
    both = {"a": ["x"], "b": ["y"]}
    with pytest.raises(ValueError, match="needs a name"):
        LabelledTexts("", both, both)
    with pytest.raises(ValueError, match="needs a name of 1 to 150 bytes"):
        LabelledTexts("t" * 300, both, both)
    with pytest.raises(ValueError, match=r"train has the classes \['a', 'b'\] but"):
        LabelledTexts("t", both, {"a": ["x"]})
    with pytest.raises(TypeError, match="is one string"):
        LabelledTexts("t", {"a": "x", "b": "y"}, both)
    with pytest.raises(TypeError, match="class 'b' in test has None among its texts"):
        LabelledTexts("t", both, {"a": ["x"], "b": [None]})  # type: ignore[list-item]
