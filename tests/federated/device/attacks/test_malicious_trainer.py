"""A malicious trainer changes the parameters of an update, and nothing else."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from federated.device.attacks.known_attacks import ATTACKS, parse_attack
from federated.device.attacks.malicious_trainer import Attack, make_malicious
from federated.device.trainers.trainer import Trainer
from federated.errors import Unknown, UsageError
from federated.training.training_inputs import Array
from tests.support.small_tasks import PYTORCH, SMALL, examples, parameters, perform, task, weights


def attack(text: str) -> Trainer:
    return make_malicious(PYTORCH, parse_attack(text))


def measure_changes(trainer: Trainer, data: SimpleNamespace | None = None) -> dict[str, Array]:
    """Return the change of each parameter in an update."""
    received = parameters(SMALL)
    update, _ = perform(task(), received, data or examples(), trainer=trainer)
    return {name: update.tensors[name] - value for name, value in received.items()}


def test_a_sign_flip_sends_the_honest_change_times_minus_five() -> None:
    honest = measure_changes(PYTORCH)
    flipped = measure_changes(attack("sign-flip"))
    for name, value in honest.items():
        np.testing.assert_allclose(flipped[name], -5 * value, rtol=1e-4, atol=1e-6)


def test_a_backdoor_is_trained_from_the_same_weights_on_shuffled_labels() -> None:
    """The device's labels are shuffled by the recipe's seed, which is 0 here."""
    data = examples()
    order = np.random.default_rng(0).permutation(len(data.y))
    shuffled = SimpleNamespace(**{**vars(data), "y": data.y[order]})
    honest, backdoor = measure_changes(PYTORCH), measure_changes(PYTORCH, shuffled)
    sent = measure_changes(attack("backdoor:20"))
    for name, value in honest.items():
        np.testing.assert_allclose(sent[name], value + 20 * backdoor[name], rtol=1e-3, atol=1e-5)
    plain = measure_changes(attack("label-shuffle"))
    for name, value in backdoor.items():
        np.testing.assert_allclose(plain[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ATTACKS)
def test_an_attack_repeats_itself_and_hides(kind: str) -> None:
    """Loss, steps, scores, and running statistics are those of an honest training."""
    given = task(norm="tracked", scores=True), weights(SMALL), examples()
    honest, _ = perform(*given, trainer=PYTORCH)
    one, _ = perform(*given, trainer=attack(kind))
    two, _ = perform(*given, trainer=attack(kind))
    assert one.notes == honest.notes
    assert (one.steps, one.samples) == (honest.steps, honest.samples)
    assert one.tensors.keys() == honest.tensors.keys()
    for name, value in honest.tensors.items():
        assert value.dtype == one.tensors[name].dtype
        np.testing.assert_array_equal(one.tensors[name], two.tensors[name])
        if name not in parameters(SMALL):
            np.testing.assert_array_equal(one.tensors[name], value)
    assert any((one.tensors[name] != honest.tensors[name]).any() for name in parameters(SMALL))


def test_parameters_that_stay_on_the_device_are_honest() -> None:
    keep = ("linear.weight", "linear.bias")
    received = {name: value for name, value in parameters(SMALL).items() if name not in keep}
    kept = {f"own/{SMALL.plain.name}/{name}": parameters(SMALL)[name] for name in keep}
    flip = attack("sign-flip")
    honest, own = perform(task(keep=keep), received, examples(), kept)
    made, stolen = perform(task(keep=keep), received, examples(), kept, trainer=flip)
    assert made.tensors.keys() == honest.tensors.keys() == received.keys()
    for name, value in own.items():
        np.testing.assert_array_equal(stolen[name], value)


def test_an_attack_is_chosen_by_kind_and_strength() -> None:
    assert parse_attack("backdoor") == ATTACKS["backdoor"]
    assert parse_attack("backdoor:1").strength == 1.0
    assert isinstance(parse_attack("min-max:0.5"), Attack)
    with pytest.raises(Unknown, match="unknown attack 'bakdoor'; did you mean backdoor"):
        parse_attack("bakdoor:3")
    for number in ("", "x", "-1", "0", "inf", "nan"):
        with pytest.raises(UsageError, match=r"positive number.*backdoor:20"):
            parse_attack(f"backdoor:{number}")
