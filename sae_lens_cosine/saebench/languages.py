"""Texts in five languages, from the message catalogues that Python packages ship.

Stands in for SAEBench's ``Helsinki-NLP/europarl``, with the same languages. Django and
Sphinx translate their messages into dozens of languages; whichever is installed is
read (not imported).
"""

import gettext
import hashlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

from sae_lens_cosine.labelled_texts import LabelledTexts
from sae_lens_cosine.saebench.splits import Size

LANGUAGES_TASK = "languages"
LANGUAGES = ("en", "fr", "de", "es", "nl")
"""Those that SAEBench probes in Europarl."""

_PACKAGES = ("django", "sphinx")
_MIN_CHARS = 16
"""Shorter messages ("Yes", "Monday") are hardly text."""
_PLACEHOLDER = re.compile(r"%\(\w+\)\w|%[sdr]|\{[\w!]*\}|</?\w[^>]*>")
"""What stands for a value, and mark-up: the same in every language."""


def language_texts(size: Size) -> LabelledTexts | None:
    """Messages by language, None if no catalogue is installed.

    A hash of the English message decides whether it and its translations are for
    training or for the test, so that no probe is tested on the translation of a
    message that it was trained on. Where a language has too few, all get as many as
    the smallest has.
    """
    translations: dict[str, dict[str, str]] = {}
    for package in _PACKAGES:
        for language, messages in _catalogues(package):
            for source, text in messages.items():
                translations.setdefault(source, {"en": source})[language] = text
    if not translations:
        return None
    parts: dict[str, dict[str, dict[str, None]]] = {
        part: {language: {} for language in LANGUAGES} for part in ("train", "test")
    }
    for source in sorted(translations, key=_hash):
        part = "test" if _hash(source)[0] % 3 == 0 else "train"
        for language, text in translations[source].items():
            clean = _clean(text)
            if len(clean) >= _MIN_CHARS:
                parts[part][language].setdefault(clean)
    seen = set().union(*parts["train"].values())
    rows = {
        "train": parts["train"],
        "test": {
            language: [text for text in texts if text not in seen]
            for language, texts in parts["test"].items()
        },
    }
    splits = {}
    for split, wanted in size._asdict().items():
        n = min(wanted, *map(len, rows[split].values()))
        splits[split] = {name: list(t)[:n] for name, t in rows[split].items()}
    return LabelledTexts(LANGUAGES_TASK, **splits)


def _catalogues(package: str) -> Iterator[tuple[str, dict[str, str]]]:
    spec = importlib.util.find_spec(package)
    for location in (spec and spec.submodule_search_locations) or []:
        for language in LANGUAGES:
            pattern = f"**/locale/{language}/LC_MESSAGES/*.mo"
            for path in sorted(Path(location).glob(pattern)):
                with path.open("rb") as file:
                    yield language, _messages(gettext.GNUTranslations(file))


def _messages(catalogue: gettext.GNUTranslations) -> dict[str, str]:
    """English to translation. (There is no public way to list a catalogue.)"""
    messages: dict[str, str] = {}
    entries: dict[str | tuple[str, int], str] = catalogue._catalog  # type: ignore[attr-defined]
    for key, text in entries.items():
        source = key if isinstance(key, str) else key[0]
        source = source.split("\x04")[-1]  # what precedes is the context
        if source and text and text != source:
            messages.setdefault(source, text)
    return messages


def _clean(text: str) -> str:
    return " ".join(_PLACEHOLDER.sub(" ", text).split())


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
