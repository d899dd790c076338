"""Load published sequences: WikiText-2 as windows of word tokens, each with the next token as its
label, and windows of motion sensors of people with phones and watches, a naturally federated data
set.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from federated.data.custom_arrays import UNREADABLE
from federated.data.dataset import PUBLISHED, BuiltIn, Dataset, Labels
from federated.errors import DataError

__all__ = ["HAR", "WIKITEXT_2", "har", "wikitext_2"]

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
    train, _, test = (_encode(_find_file(root / "wikitext-2", part), known) for part in PARTS)
    return Dataset("wikitext-2", *_cut_windows(train), *_cut_windows(test), len(known), "token")


WIKITEXT_2 = BuiltIn(
    wikitext_2,
    "windows of 64 words, for predicting the next or masked words; files in `--data-root`: "
    "`wikitext-2/{train,valid,test}.txt`",
    PUBLISHED,
)


def _find_file(folder: Path, part: str) -> Path:
    names = (f"{part}.txt", f"wiki.{part}.tokens")
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise DataError(
        f"wikitext-2: expected {' or '.join(names)} in {folder}; copy the published files there, "
        "or choose another folder with --data-root or data.root"
    )


def _encode(path: Path, known: dict[str, int]) -> Labels:
    """Return the tokens of a file; new words get the next number."""
    try:
        return np.fromiter(
            (known.setdefault(word, len(known)) for word in _read_words(path)), np.int64
        )
    except UnicodeDecodeError as error:
        raise DataError(f"wikitext-2: expected UTF-8 text in {path}: {error}") from error


def _read_words(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield from line.split()
            yield END


def _cut_windows(tokens: Labels) -> tuple[Labels, Labels]:
    """Return windows [n, 64], and the same shifted by one token; drop the remainder."""
    n = max(0, len(tokens) - 1) // LENGTH
    return tokens[: n * LENGTH].reshape(n, LENGTH), tokens[1 : n * LENGTH + 1].reshape(n, LENGTH)


KEYS = ("x", "y", "subject", "execution", "classes")
MANY = 1000  # more than the recordings of one person


def har(root: Path) -> Dataset:
    """Return 9777 windows of 100 samples of accelerometer and gyroscope, float32 [6, 100], of 23
    people in five activities.

    GeoTecINIT/sp-sw-har-dataset, doi 10.5281/zenodo.8398688, CC BY 4.0. Windows overlap by half, so
    a random split would leak: people are the users, each execution of the course a session. WALKING
    is 48 %. DataError: the file is missing or unusable.
    """
    path = root / "har" / "windows100.npz"
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            x, y, subject, execution, classes = (arrays[key] for key in KEYS)
    except FileNotFoundError:
        raise DataError(
            f"har: {path} does not exist; copy it there, or choose another folder with --data-root "
            "or data.root"
        ) from None
    except UNREADABLE as error:
        raise DataError(
            f"har: expected an .npz file of arrays {', '.join(KEYS)} in {path}: {error}"
        ) from error
    x, users = np.ascontiguousarray(x.transpose(0, 2, 1)), subject.astype(np.int64)
    y = y.astype(np.int64)
    return Dataset(
        "har",
        x,
        y,
        x[:0],
        y[:0],
        len(classes),
        users=users,
        sessions=users * MANY + execution,
        classes=tuple(map(str, classes)),
    )


HAR = BuiltIn(
    har,
    "windows of motion sensor data from phones and watches of 23 people; a file in "
    "`--data-root`: `har/windows100.npz`",
    "a fifth of the people; on a device, the last recordings",
)
