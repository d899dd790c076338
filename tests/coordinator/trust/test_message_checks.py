"""Rejected updates, with one error each: as records, and as the bytes of a hostile device."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import numpy as np
import pytest

from coordinator.fleet.update_inbox import Inbox
from coordinator.trust.message_checks import (
    check_match,
    check_scores,
    check_statistics,
    check_training,
    compute_shapes,
)
from coordinator.trust.tensor_checks import check_weights
from federated.errors import Malformed, Refused
from federated.method import configure
from federated.methods.catalogue import find_method
from federated.task import Recipe, Task, Update
from federated.wire import tensors
from federated.wire.codecs.raw import RAW
from models.menu import menu
from models.named_network import network
from models.submodel_building import initial, statistics

NETWORK = network("preresnet", (1, 8, 8), 10)
SMALL, LARGE = menu(NETWORK, (0.5, 1.0), (1,))
FEDAVG = find_method("fedavg")
SETTINGS = configure(FEDAVG, {"norm": "static"})
STATE = FEDAVG.start(initial(NETWORK, 0), FEDAVG.menu(NETWORK, SETTINGS), SETTINGS)
SHAPES = compute_shapes(FEDAVG.place(STATE, SMALL))
SENT = {
    name: float(value.norm())
    for name, value in FEDAVG.dispatch(STATE, FEDAVG.place(STATE, SMALL)).items()
}
FIRST = next(iter(SHAPES))
TASK = Task("r", 1, 1, "a", "train", SMALL, "r0", "0" * 64, 100, Recipe(), 60.0)


def values(**changed: Any) -> dict[str, np.ndarray]:
    made = {name: np.full(shape, 0.1, np.float32) for name, shape in SHAPES.items()}
    return {name: value for name, value in {**made, **changed}.items() if value is not None}


def spoilt(value: float) -> np.ndarray:
    made = np.full(SHAPES[FIRST], 0.1, np.float32)
    made.flat[-1] = value
    return made


GOOD = Update(
    "r", 1, 1, "a", "train", SMALL, "r0", 10, 5, values(), {"loss": 1.0, "labels": [0, 9]}
)


def judge(update: Update, examples: int = 10, steps: int = 5, elapsed: float = 10.0) -> None:
    check_weights(update, SHAPES, SENT)
    check_training(update, examples, steps, elapsed)


def test_the_requested_update_is_accepted() -> None:
    judge(GOOD)
    judge(replace(GOOD, notes={**GOOD.notes, "seconds": 5.0, "step": 1.0, "peak": 10**6}))
    check_match(TASK, GOOD)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("run", "s"),
        ("round", 2),
        ("round", 0),
        ("attempt", 2),
        ("agent", "b"),
        ("work", "evaluate"),
        ("submodel", LARGE),
        ("version", "r1"),
    ],
)
def test_an_answer_to_another_task_is_refused(field: str, value: object) -> None:
    with pytest.raises(Refused, match=f"expected {field}"):
        check_match(TASK, replace(GOOD, **{field: value}))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({FIRST: None}, "missing tensors"),
        ({"extra": np.zeros(1, np.float32)}, "unexpected tensors: extra"),
        ({FIRST: np.zeros((1, 1), np.float32)}, "expected shape"),
        ({FIRST: np.zeros((0, *SHAPES[FIRST][1:]), np.float32)}, "expected shape"),
        ({FIRST: np.zeros(SHAPES[FIRST], np.float64)}, "expected float32, found float64"),
        ({FIRST: np.zeros(SHAPES[FIRST], np.int32)}, "expected float32, found int32"),
        ({FIRST: spoilt(math.nan)}, "expected finite values, found 1 NaN"),
        ({FIRST: spoilt(math.inf)}, "expected finite values"),
        ({FIRST: spoilt(-math.inf)}, "expected finite values"),
        ({FIRST: spoilt(3e38)}, "expected a norm of at most"),
    ],
)
def test_wrong_tensors_are_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=words):
        judge(replace(GOOD, tensors=values(**changed)))


def test_a_trained_variance_below_zero_is_refused() -> None:
    """With tracked batch norm, devices train the running variances, too."""
    name, shapes = "norm.running_var", {**SHAPES, "norm.running_var": (2,)}
    for value in (0.0, -0.0, 1.0):
        tracked = values(**{name: np.array([value, 0.5], np.float32)})
        check_weights(replace(GOOD, tensors=tracked), shapes, SENT)
    tracked = values(**{name: np.array([0.5, -1e-6], np.float32)})
    with pytest.raises(Refused, match=r"variances of at least 0, found -1e-06 in norm.running_var"):
        check_weights(replace(GOOD, tensors=tracked), shapes, SENT)


def test_negative_zero_and_subnormal_numbers_are_accepted() -> None:
    judge(replace(GOOD, tensors=values(**{FIRST: spoilt(-0.0)})))
    judge(replace(GOOD, tensors=values(**{FIRST: spoilt(1e-45)})))


@pytest.mark.parametrize("samples", [0, -1, 11, 2**63, 2**64 - 1])
def test_more_examples_than_the_device_has_are_refused(samples: int) -> None:
    with pytest.raises(Refused, match="1 to 10 samples"):
        judge(replace(GOOD, samples=samples))


@pytest.mark.parametrize("steps", [0, -1, 6, 2**64 - 1])
def test_more_steps_than_requested_are_refused(steps: int) -> None:
    with pytest.raises(Refused, match="1 to 5 steps"):
        judge(replace(GOOD, steps=steps))


NO_NUMBERS = [math.nan, math.inf, -math.inf, 1e300, "1", True, None, [1.0], {"a": 1}]


@pytest.mark.parametrize("loss", NO_NUMBERS, ids=repr)
def test_a_loss_must_be_a_finite_number(loss: object) -> None:
    with pytest.raises(Refused, match="expected 'loss' to be a finite number"):
        judge(replace(GOOD, notes={"loss": loss}))


@pytest.mark.parametrize("note", ["seconds", "step"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 0, 1e9, True, "1"], ids=repr)
def test_reported_effort_must_fit_the_elapsed_time(note: str, value: object) -> None:
    with pytest.raises(Refused, match=note):
        judge(replace(GOOD, notes={**GOOD.notes, note: value}))


@pytest.mark.parametrize("value", [-1, 2**62, 1.5, True, math.nan], ids=repr)
def test_a_memory_peak_must_be_a_number_of_bytes(value: object) -> None:
    with pytest.raises(Refused, match="peak"):
        judge(replace(GOOD, notes={**GOOD.notes, "peak": value}))


@pytest.mark.parametrize(
    "labels", [[10], [-1], [True], [1.0], ["1"], [0, 0], {"0": 1}, "01", 5, [2**64 - 1]], ids=repr
)
def test_labels_must_be_distinct_classes_of_the_network(labels: object) -> None:
    with pytest.raises(Refused, match="expected labels from 0 to 9"):
        judge(replace(GOOD, notes={**GOOD.notes, "labels": labels}))


TALLY = {"count": [10], "loss": [5.0], "right": [7]}


@pytest.mark.parametrize(
    "tally",
    [
        *({**TALLY, "loss": [value]} for value in NO_NUMBERS),
        {**TALLY, "count": [0]},
        {**TALLY, "count": [2**63]},
        {**TALLY, "right": [11]},
        {**TALLY, "right": [-1]},
        {**TALLY, "loss": []},
        {**TALLY, "loss": [1.0, 2.0]},
        {**TALLY, "more": [1.0]},
        {"count": [10]},
        {},
        [],
        7,
    ],
    ids=repr,
)
def test_tallies_must_have_the_right_names_and_lengths(tally: object) -> None:
    scored = Update("r", 1, 1, "a", "evaluate", SMALL, "r0", 10, 0, {}, {"tallies": {"all": TALLY}})
    check_scores(scored)
    with pytest.raises(Refused, match=r"tall|finite"):
        check_scores(replace(scored, notes={"tallies": {"all": tally}}))
    with pytest.raises(Refused, match=r"tall|finite"):
        judge(replace(GOOD, notes={"loss": 1.0, "tallies": {"after": tally}}))


def test_statistics_must_be_finite_and_from_a_plausible_number_of_batches() -> None:
    made = {name: np.ones(shape, np.float32) for name, shape in statistics(SMALL).items()}
    good = Update("r", 1, 1, "a", "calibrate", SMALL, "r0", 10, 0, made, {"batches": 2})
    check_statistics(good)
    variance = next(name for name in made if name.endswith("running_var"))
    for value, words in ((math.nan, "finite"), (-1.0, "at least 0"), (1e20, "at most")):
        with pytest.raises(Refused, match=words):
            check_statistics(
                replace(good, tensors={**made, variance: np.full_like(made[variance], value)})
            )
    for batches in (0, -1, 11, 2**63, 1.0, True, None):
        with pytest.raises(Refused, match="batches"):
            check_statistics(replace(good, notes={"batches": batches}))


# ---- bytes ---------------------------------------------------------------------------------------


def read(folder: Path, data: bytes) -> Update:
    path = folder / "update"
    path.write_bytes(data)
    return Inbox(folder / "spool", 1).read(path, RAW, 1 << 20, {})


def blob(header: Any, body: bytes = b"") -> bytes:
    """Return a blob with an arbitrary header."""
    packed = header if isinstance(header, bytes) else msgpack.packb(header)
    start = tensors.PREFIX.pack(tensors.MAGIC, tensors.VERSION, 0, len(packed)) + packed
    return start + bytes(-len(start) % tensors.ALIGNMENT) + body


META = msgspec.to_builtins(replace(GOOD, tensors={}))


def test_a_valid_blob_is_read(tmp_path: Path) -> None:
    judge(read(tmp_path, bytes(tensors.encode(META, values()))))


@pytest.mark.parametrize(
    "header",
    [
        {"meta": META, "tensors": [["w", "float32", [1], 0], ["w", "float32", [1], 64]]},
        {"meta": META, "tensors": [["w", "float32", [-1], 0]]},
        {"meta": META, "tensors": [["w", "float32", [2**39, 2**39], 0]]},
        {"meta": META, "tensors": [["w", "float32", [1], 2**39]]},
        {"meta": META, "tensors": [["w", "float32", [1], -64]]},
        {"meta": META, "tensors": [["w", "object", [1], 0]]},
        {"meta": META, "tensors": [["w", "float32", [True], 0]]},
        {"meta": META, "tensors": [["w", "float32", [1] * 9, 0]]},
        {"meta": META, "tensors": [[b"w", "float32", [1], 0]]},
        {"meta": META, "tensors": {"w": 1}},
        {"meta": [META], "tensors": []},
        {"meta": {**META, "samples": 1.5}, "tensors": []},
        {"meta": {**META, "samples": True}, "tensors": []},
        {"meta": {**META, "round": "1"}, "tensors": []},
        {"meta": {**META, "work": "steal"}, "tensors": []},
        {"meta": {key: value for key, value in META.items() if key != "agent"}, "tensors": []},
        {"meta": {**META, "notes": 5}, "tensors": []},
        {"tensors": []},
        [],
        b"\x81" * 2000 + b"\xc0",
        b"\x91" * 100_000 + b"\xc0",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x01",
        b"",
    ],
    ids=lambda header: repr(header)[-60:],
)
def test_a_hostile_header_is_malformed_and_allocates_no_memory(tmp_path: Path, header: Any) -> None:
    """Duplicate names, negative or too large sizes, deep nesting, lengths of gigabytes."""
    data = blob(header, bytes(128))
    read(tmp_path, bytes(tensors.encode(META, values())))
    tracemalloc.start()
    with pytest.raises(Malformed):
        read(tmp_path, data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20 + 16 * len(data)


@pytest.mark.parametrize("depth", [10, 100, 400])
def test_deeply_nested_notes_are_refused_or_ignored(tmp_path: Path, depth: int) -> None:
    nested: Any = 1.0
    for _ in range(depth):
        nested = [nested]
    update = read(
        tmp_path, bytes(tensors.encode({**META, "notes": {"loss": 1.0, "deep": nested}}, values()))
    )
    judge(update)
    with pytest.raises(Refused, match="loss"):
        judge(replace(update, notes={"loss": nested}))


@pytest.mark.parametrize(
    "spoilt",
    [
        {"true": [0] * 10},
        {"true": [-5] + [25 / 9] * 9},
        {"hits": [-1] + [1] * 9},
        {"guessed": [-1] * 10},
        {"hits": [1e100] + [1] * 9},
        {"hits": [1e100] + [1] * 9, "guessed": [1e100] * 10, "true": [5e-324] + [2] * 9},
    ],
)
def test_impossible_tallies_are_refused(
    spoilt: dict[str, list[float]],
) -> None:
    """Their score would divide by zero and end the run, or be infinite for the whole fleet."""
    submodel = menu(network("preresnet", (1, 8, 8), 10), (0.5,), (2,))[0]
    sums = {
        "count": [20],
        "loss": [1.0],
        "right": [10],
        "hits": [1] * 10,
        "guessed": [2] * 10,
        "true": [2] * 10,
    }
    update = Update(
        "r", 1, 1, "a", "evaluate", submodel, "r1", 20, 0, {}, {"tallies": {"all": sums}}
    )
    check_scores(update)
    with pytest.raises(Refused, match="tally 'all'"):
        check_scores(replace(update, notes={"tallies": {"all": sums | spoilt}}))
