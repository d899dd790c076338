"""Load published sequences: WikiText-2 as windows of word tokens, each with the next token as its
label; MultiNLI as pairs of sentences with a class; and windows of motion sensors of people with
phones and watches, a naturally federated data set.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from federated.data.custom_arrays import UNREADABLE
from federated.data.dataset import PUBLISHED, BuiltIn, Dataset, Labels
from federated.errors import DataError, require_extra

__all__ = ["HAR", "MNLI", "WIKITEXT_2", "har", "mnli", "wikitext_2"]

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


RELATIONS = ("entailment", "neutral", "contradiction")
LONGEST = 128  # tokens of a pair; of RecipFL's authors, 100 of each sentence
AT_ONCE = 10_000  # pairs in memory as texts
PADDING = ("[PAD]", "<pad>")


class Pair(msgspec.Struct):
    """A line of the published file."""

    gold_label: str
    sentence1: str
    sentence2: str


def mnli(root: Path) -> Dataset:
    """Return 392,702 and 9,815 pairs of sentences as token ids, int64 [n, 128], with the relation
    of the second to the first as class.

    Williams et al. 2018, arXiv:1704.05426: MultiNLI 1.0, whose licences (OANC and others) its paper
    lists. The held-out part is that of the same genres (dev matched). Pairs on whose relation the
    annotators disagreed are left out. The ids are those of the tokenizer of the network that will
    learn from them. DataError: a file is missing or unusable. MissingExtra.
    """
    folder = root / "mnli"
    with require_extra("data mnli", "networks"):
        from tokenizers import Tokenizer
    if not (folder / "tokenizer.json").is_file():
        raise DataError(
            f"mnli: expected tokenizer.json in {folder}; copy that of the network there, such as "
            "the one of bert-base-uncased on the Hugging Face Hub"
        )
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library raises a plain Exception
        raise DataError(f"mnli: cannot read {folder / 'tokenizer.json'}: {error}") from error
    padding = next((name for name in PADDING if tokenizer.token_to_id(name) is not None), None)
    if padding is None:
        raise DataError(
            f"mnli: expected a token {' or '.join(PADDING)} in {folder / 'tokenizer.json'}"
        )
    tokenizer.enable_truncation(LONGEST)
    tokenizer.enable_padding(
        length=LONGEST, pad_token=padding, pad_id=tokenizer.token_to_id(padding)
    )
    train, held = (
        _encode_pairs(folder / f"multinli_1.0_{part}.jsonl", tokenizer)
        for part in ("train", "dev_matched")
    )
    return Dataset(
        "mnli",
        *train,
        *held,
        len(RELATIONS),
        classes=RELATIONS,
        vocabulary=tokenizer.get_vocab_size(),
        tokenizer=_digest_tokenizer(folder / "tokenizer.json"),
    )


MNLI = BuiltIn(
    mnli,
    "pairs of sentences as 128 tokens, in three classes; files in `--data-root`: "
    "`mnli/multinli_1.0_{train,dev_matched}.jsonl`, and the network's `mnli/tokenizer.json`; needs "
    "the extra `networks`",
    "the published development set of matched genres",
)


def _digest_tokenizer(path: Path) -> str:
    """Return the sha256 of what a tokenizer does: its file without layout and without lengths."""
    parts = msgspec.json.decode(path.read_bytes())
    known = {key: value for key, value in parts.items() if key not in ("padding", "truncation")}
    return sha256(msgspec.json.encode(known, order="deterministic")).hexdigest()


def _encode_pairs(path: Path, tokenizer: Any) -> tuple[Labels, Labels]:
    """Return the token ids [n, 128] and the classes [n] of the pairs of a file."""
    blocks, classes, pairs = list[Labels](), list[int](), list[tuple[str, str]]()
    for pair in _read_pairs(path):
        classes.append(RELATIONS.index(pair.gold_label))
        pairs.append((pair.sentence1, pair.sentence2))
        if len(pairs) == AT_ONCE:
            blocks.append(_tokenize(pairs, tokenizer))
            pairs = []
    return np.concatenate([*blocks, _tokenize(pairs, tokenizer)]), np.array(classes, np.int64)


def _tokenize(pairs: list[tuple[str, str]], tokenizer: Any) -> Labels:
    try:
        ids = [one.ids for one in tokenizer.encode_batch(pairs)]
        return np.array(ids, np.int64).reshape(len(pairs), LONGEST)
    except Exception as error:  # the library raises a plain Exception, such as for unknown words
        raise DataError(f"mnli: cannot tokenize pairs with its tokenizer.json: {error}") from error


def _read_pairs(path: Path) -> Iterator[Pair]:
    """Yield the pairs of a file that have a relation."""
    decoder, number = msgspec.json.Decoder(Pair), 0
    try:
        with path.open("rb") as lines:
            for line in lines:
                number += 1
                pair = decoder.decode(line)
                if pair.gold_label not in (*RELATIONS, "-"):
                    raise ValueError(f"the unknown label '{pair.gold_label}'")
                if pair.gold_label != "-":
                    yield pair
    except FileNotFoundError:
        raise DataError(
            f"mnli: {path} does not exist; copy the files of multinli_1.0.zip there, or choose "
            "another folder with --data-root or data.root"
        ) from None
    except ValueError as error:  # also that of msgspec
        raise DataError(
            f"mnli: expected a pair of sentences as JSON in {path}, line {number}: {error}"
        ) from error


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
