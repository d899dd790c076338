"""WikiText-2 as windows of word tokens: each teaches the token after each of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from federated.data.dataset import Dataset, Labels
from federated.errors import DataError

__all__ = ["wikitext_2"]

END = "<eos>"  # after each line, empty ones included
LENGTH = 64  # tokens of a window (HeteroFL, arXiv:2010.01264, section 4: bptt 64)
PARTS = ("train", "valid", "test")


def wikitext_2(root: Path) -> Dataset:
    """2,088,628 and 245,569 words of Wikipedia in windows of 64 that do not overlap, int64 [n, 64];
    33,278 words are known.

    Merity et al. 2016, arXiv:1609.07843; CC BY-SA. The validation part gives words to the
    vocabulary, and is not used otherwise. Raises DataError.
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
        "files there, or name their place by --data-root"
    )


def _encode(path: Path, known: dict[str, int]) -> Labels:
    """The tokens of a file; words not yet known get the next number."""
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
    """Windows [n, 64], and the same one token on; what is left over is left out."""
    n = max(0, len(tokens) - 1) // LENGTH
    return tokens[: n * LENGTH].reshape(n, LENGTH), tokens[1 : n * LENGTH + 1].reshape(n, LENGTH)
