"""WikiText-2 as windows of word tokens, each with the next token as its label."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from federated.data.dataset import Dataset, Labels
from federated.errors import DataError

__all__ = ["wikitext_2"]

END = "<eos>"  # after each line, including empty ones
LENGTH = 64  # tokens of a window (HeteroFL, arXiv:2010.01264, section 4: bptt 64)
PARTS = ("train", "valid", "test")


def wikitext_2(root: Path) -> Dataset:
    """Return 2,088,628 and 245,569 words of Wikipedia in disjoint windows of 64, int64 [n, 64],
    with a vocabulary of 33,278 words.

    Merity et al. 2016, arXiv:1609.07843; CC BY-SA. The validation part only adds words to the
    vocabulary. DataError: a file is missing or unusable.
    """
    known: dict[str, int] = {}
    train, _, test = (_encode(_file(root / "wikitext-2", part), known) for part in PARTS)
    return Dataset("wikitext-2", *_windows(train), *_windows(test), len(known), "token")


def _file(folder: Path, part: str) -> Path:
    names = (f"{part}.txt", f"wiki.{part}.tokens")
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise DataError(
        f"wikitext-2: expected {' or '.join(names)} in {folder}; copy the published "
        "files there, or set --data-root"
    )


def _encode(path: Path, known: dict[str, int]) -> Labels:
    """Return the tokens of a file; new words get the next number."""
    try:
        return np.fromiter((known.setdefault(word, len(known)) for word in _words(path)), np.int64)
    except UnicodeDecodeError as error:
        raise DataError(f"wikitext-2: expected UTF-8 text in {path}: {error}") from error


def _words(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield from line.split()
            yield END


def _windows(tokens: Labels) -> tuple[Labels, Labels]:
    """Return windows [n, 64], and the same shifted by one token; drop the remainder."""
    n = max(0, len(tokens) - 1) // LENGTH
    return tokens[: n * LENGTH].reshape(n, LENGTH), tokens[1 : n * LENGTH + 1].reshape(n, LENGTH)
