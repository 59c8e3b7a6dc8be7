import socket
from pathlib import Path

import pandas as pd
import pytest

from sae_lens_cosine.demo import text
from sae_lens_cosine.demo.text import (
    DEMO_TASKS,
    PROBING_TASKS,
    evaluation_rows,
    probing_task,
    text_part,
    training_rows,
)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the demo text must not touch the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def write_data_set(folder: Path, name: str, rows: list[tuple[str, str]]) -> None:
    frame = pd.DataFrame([{"prompt": text, "target": label} for text, label in rows])
    frame.to_csv(folder / f"{name}.csv.zst", index=False)


def test_every_text_is_in_one_part_and_the_shares_are_as_documented():
    parts = [text_part(f"text number {i}") for i in range(20_000)]
    # standard deviation of a share: sqrt(.25 * .75 / 20000) = 0.003
    assert parts.count("train") / 20_000 == pytest.approx(0.25, abs=0.015)
    assert parts.count("evaluation") / 20_000 == pytest.approx(0.05, abs=0.01)
    assert parts.count("probing") / 20_000 == pytest.approx(0.70, abs=0.015)


def test_the_part_is_pinned():
    # Another hash would let SAEs of earlier versions be probed on what they trained on.
    parts = [text_part(text) for text in ("0", "1", "18")]
    assert parts == ["probing", "train", "evaluation"]


def test_copies_stay_together():
    assert text_part(" two\n  words ") == text_part("two words")
    passage = "word " * 100  # 500 characters
    assert len({text_part(passage + f"question {i}") for i in range(50)}) == 1
    assert len({text_part(passage[5:] + f"{i}") for i in range(50)}) > 1


def test_training_evaluation_and_probing_never_share_a_text():
    train = {" ".join(r.split())[:500] for r in training_rows(60_000)["text"]}
    held_out = {" ".join(r.split())[:500] for r in evaluation_rows(10_000)["text"]}
    tasks = [probing_task(name, 250, 100) for name in PROBING_TASKS]
    probed = {
        " ".join(row.split())[:500]
        for task in tasks
        for lists in (task.train, task.test)
        for rows in lists.values()
        for row in rows
    }
    assert not train & held_out
    assert not train & probed
    assert not held_out & probed


def test_rows_are_distinct_mixed_and_of_useful_length():
    rows = training_rows(30_000)["text"][:]
    assert len(set(rows)) == len(rows)
    assert all(200 <= len(row) <= 2000 for row in rows)
    assert sum(map(len, rows)) >= 30_000 * 4.1  # characters per token on this mix
    assert any("#include" in row or "def " in row for row in rows)
    assert any("patients" in row for row in rows)


def test_rows_depend_on_the_seed_alone():
    assert training_rows(5_000, seed=3)["text"] == training_rows(5_000, seed=3)["text"]
    assert training_rows(5_000, seed=3)["text"] != training_rows(5_000, seed=4)["text"]


def test_asking_for_more_text_than_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # 100 + 500 = 600 characters each
    rows = [(f"{i:<100}" + "long " * 100, "1") for i in range(40)]
    write_data_set(tmp_path, "1_some", rows)
    write_data_set(tmp_path, "2_copies", rows)
    monkeypatch.setattr(text, "_data_dir", lambda: tmp_path)
    held = sum(text_part(row) == "train" for row, _ in rows)
    assert 0 < held < 40
    # the copies in the second set do not count: 600 characters / 5 per token = 120
    assert len(training_rows(held * 120)) == held
    with pytest.raises(ValueError, match=f"hold about {held * 120}$"):
        training_rows(held * 120 + 1)
    with pytest.raises(ValueError, match=r"5000 train tokens asked for, .* hold about"):
        training_rows(5_000)


@pytest.mark.parametrize("name", PROBING_TASKS)
def test_tasks_are_balanced_distinct_and_from_the_probing_part(name: str):
    task = probing_task(name, train_per_class=270, test_per_class=130)
    assert task.name == name
    assert list(task.train) == list(task.test) == list(PROBING_TASKS[name].classes)
    assert {len(rows) for rows in task.train.values()} == {270}
    assert {len(rows) for rows in task.test.values()} == {130}
    everything = [
        " ".join(row.split())[:500]
        for lists in (task.train, task.test)
        for rows in lists.values()
        for row in rows
    ]
    assert len(set(everything)) == len(everything) == 400 * len(task.train)
    assert {text_part(row) for row in everything} == {"probing"}


def test_tasks_depend_on_the_seed_alone():
    assert probing_task("ag_news", 20, 10) == probing_task("ag_news", 20, 10)
    assert probing_task("ag_news", 20, 10) != probing_task("ag_news", 20, 10, seed=1)


def test_labels_are_right():
    code = probing_task("code_language", 200, 100)
    share = {
        label: sum("#include" in row for row in rows) / 200
        for label, rows in code.train.items()
    }
    assert share["C"] > 0.4 > 0.05 > max(share["Python"], share["HTML"])
    news = probing_task("ag_news", 200, 100)
    assert sum("Iraq" in row for row in news.train["world"]) > 10
    assert sum("Iraq" in row for row in news.train["sports"]) < 5


def test_the_demo_probes_four_tasks_and_the_suite_mirrors_saebench():
    assert set(DEMO_TASKS) <= set(PROBING_TASKS)
    counterparts = [task.counterpart for task in PROBING_TASKS.values()]
    mirrored = [name for name in counterparts if name is not None]
    assert len(mirrored) == len(set(mirrored)) == 7  # all of the eight but europarl


def test_a_text_with_two_labels_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    probing = [t for i in range(99) if text_part(t := f"review {i}") == "probing"][:5]
    # "NA" must stay a text, not become a missing value
    other = [t for t in ("NA", "null", "None", "nan") if text_part(t) == "probing"][:1]
    write_data_set(
        tmp_path,
        "113_movie_sent",
        [(t, "0") for t in probing[:3] + other]
        + [(probing[0] + " ", "0")]
        + [(t, "1") for t in probing[2:]],
    )
    monkeypatch.setattr(text, "_data_dir", lambda: tmp_path)
    # negative: texts 0, 1 and the other (2 is also positive, 0 came twice); positive: 3, 4
    task = probing_task("movie_sentiment", 1, 1)
    assert {*task.train["positive"], *task.test["positive"]} == set(probing[3:])
    assert probing[2] not in [*task.train["negative"], *task.test["negative"]]
    with pytest.raises(ValueError, match="holds 3 of 'negative', 2 of 'positive'"):
        probing_task("movie_sentiment", 2, 1)


def test_messages():
    with pytest.raises(ValueError, match="no task 'europarl'; there are ag_news, "):
        probing_task("europarl", 10, 10)
    with pytest.raises(ValueError, match="must be at least 1"):
        probing_task("ag_news", 0, 10)
    with pytest.raises(
        ValueError,
        match=r"task 'occupations' has too few texts for 400 training and 200 test "
        r"texts per class: the probing part holds \d+ of 'journalist', ",
    ):
        probing_task("occupations", 400, 200)


def test_without_sae_probes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(text.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r'pip install "sae-lens-cosine\[demo\]"'):
        training_rows(1_000)
    with pytest.raises(ImportError, match=r'pip install "sae-lens-cosine\[demo\]"'):
        probing_task("ag_news", 10, 10)
