"""MOON: its hooks in the real loop, the networks that it compares with, and the memory of
a device.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from federated.errors import ConfigError
from federated.method import configure
from federated.methods.catalogue import find_method
from federated.methods.moon import contrast, contrast_loss, run_with_projection
from federated.training.training_inputs import TrainingSet
from federated.training.training_loop import open_session, train_session
from federated.training.training_step import plain_loss
from models.layers.basic import ProjectedLinear
from models.menu import menu
from models.named_network import network
from models.submodel_building import build, full, initial, shapes
from tests.support.memory_federation import Member, digits, federate

NET = network("mlp", (6,), 3)
WHOLE = full(NET, ("projection",))
X, Y = np.random.default_rng(0).normal(size=(12, 6)).astype(np.float32), np.arange(12) % 3


def session_of(submodel=WHOLE, memory=None, **given):
    chosen = find_method("moon")
    settings = configure(chosen, {"lr": 0.05, "batch": 12, **given})
    state = chosen.start(initial(NET, 0, chosen.features), [WHOLE], settings)
    net = build(submodel)
    net.load_state_dict(chosen.dispatch(state, chosen.place(state, submodel)), strict=False)
    session = open_session(
        net, submodel, chosen.recipe(state, submodel), TrainingSet(X, Y, (0, 1, 2)), seed=0
    )
    session.memory = dict(memory or {})
    return session


def train_with_moon(**given):
    session = session_of(**given)
    loss = train_session(session, find_method("moon").hooks)
    return session, loss


def test_the_projection_is_an_mlp_before_the_last_linear_that_scales_with_the_width():
    whole, half = shapes(WHOLE), shapes(menu(NET, (0.5,), (2,), ("projection",))[0])
    assert (
        whole.items()
        >= {
            "linear.weight": (3, 256),
            "linear.hidden.weight": (64, 64),
            "linear.project.weight": (256, 64),
        }.items()
    )
    assert (
        half.items()
        >= {
            "linear.weight": (3, 128),
            "linear.hidden.weight": (32, 32),
            "linear.project.weight": (128, 32),
        }.items()
    )
    net = build(WHOLE).eval()
    assert isinstance(net.linear, ProjectedLinear)
    x = torch.randn(5, 6)
    out, z = run_with_projection(net, lambda: net(x))
    assert z.shape == (5, 256)
    torch.testing.assert_close(out, z @ net.linear.weight.T + net.linear.bias)


def test_the_contrast_is_smaller_near_the_received_and_far_from_the_previous():
    """Cosines of 1 and -1 at T = 0.5: log(1 + e^-4); the other way round log(1 + e^4)."""
    z = torch.tensor([[1.0, 0.0]])
    assert float(contrast(z, 3 * z, -z, 0.5)) == pytest.approx(np.log1p(np.exp(-4)), rel=1e-5)
    assert float(contrast(z, -z, 2 * z, 0.5)) == pytest.approx(np.log1p(np.exp(4)), rel=1e-5)


def test_the_first_participation_is_fedavgs():
    """Without an earlier network there is no contrastive loss, so the bits equal those without a
    hook.
    """
    session, loss = train_with_moon(epochs=2)
    plain = session_of(epochs=2)
    assert loss == train_session(plain)
    assert all(
        torch.equal(a, b)
        for a, b in zip(session.net.parameters(), plain.net.parameters(), strict=True)
    )


@pytest.mark.parametrize("norm", ["static", "tracked"])
def test_from_the_second_round_on_the_loss_is_the_plain_one_and_mu_times_the_contrast(norm):
    first, _ = train_with_moon(norm=norm, epochs=3)
    session = session_of(memory=first.memory, norm=norm, mu=2.5, temperature=0.25)
    losses = []
    train_session(
        session, find_method("moon").hooks, on_step=lambda step, of, loss: losses.append(loss)
    )
    x, y = torch.from_numpy(X), torch.from_numpy(Y)
    fresh = session_of(norm=norm).net.train()
    before = first.net.train(norm == "static")
    received = session_of(norm=norm).net.train(norm == "static")
    (out, z), views = (
        run_with_projection(fresh, lambda: fresh(x)),
        [run_with_projection(net, lambda net=net: net(x))[1] for net in (received, before)],
    )
    expected = torch.nn.functional.cross_entropy(out, y) + 2.5 * contrast(z, *views, 0.25)
    assert losses[0] == pytest.approx(expected.item(), rel=1e-5)
    assert session.step == len(losses) == 1


def test_only_the_network_in_training_moves():
    first, _ = train_with_moon(norm="static")
    session = session_of(memory=first.memory, norm="static", epochs=3)
    kept = {}

    def watch(step, of, loss):
        for name, net in zip(("received", "previous"), session.own, strict=True):
            state = {
                key: value.clone()
                for key, value in net.state_dict().items()
                if value.is_floating_point()
            }
            assert all(
                torch.equal(value, state[key])
                for key, value in kept.setdefault(name, state).items()
            )

    train_session(session, find_method("moon").hooks, on_step=watch)
    received = session_of().net.state_dict()
    assert all(torch.equal(value, received[key]) for key, value in kept["received"].items())
    assert not torch.equal(session.net.stem.weight, received["stem.weight"])


def test_a_device_keeps_its_last_network_and_uses_it_only_for_the_same_submodel():
    first, _ = train_with_moon()
    names = {name.split("/", 2)[1] for name in first.memory}
    assert names == {WHOLE.name}
    assert torch.equal(first.memory[f"previous/{WHOLE.name}/stem.weight"], first.net.stem.weight)
    half = menu(NET, (0.5,), (2,), ("projection",))[0]
    second = session_of(submodel=half, memory=first.memory)
    train_session(second, find_method("moon").hooks)
    assert second.own is None
    assert {name.split("/", 2)[1] for name in second.memory} == {half.name}


def test_a_batch_of_one_example_has_no_contrast():
    first, _ = train_with_moon()
    session = session_of(memory=first.memory)
    find_method("moon").hooks.open(session)
    session.net.eval()  # one example has no spread
    x, y = torch.from_numpy(X[:1]), torch.from_numpy(Y[:1])
    assert torch.equal(contrast_loss(session, x, y), plain_loss(session, x, y))
    assert not torch.equal(
        contrast_loss(session, x.repeat(2, 1), y.repeat(2)),
        plain_loss(session, x.repeat(2, 1), y.repeat(2)),
    )


def test_a_network_without_a_last_linear_is_refused():
    chosen = find_method("moon")
    made = network("transformer-small", (8,), 12, target="token")
    with pytest.raises(ConfigError, match=r"has no projection; models that have: .*resnet"):
        chosen.menu(made, configure(chosen, {}))


def test_a_temperature_of_zero_is_refused():
    with pytest.raises(ConfigError, match=r"moon: temperature: expected a number above 0, found 0"):
        configure(find_method("moon"), {"temperature": 0})


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["static", "tracked"])
def test_unequal_devices_of_skewed_data_learn_digits(tmp_path, norm):
    fleet = [
        Member(f"a{i}", digits(i, 3, "dirichlet:0.5"), speed)
        for i, speed in enumerate((0.01, 0.018, 0.5))
    ]
    given = {
        "method.widths": [0.5, 1.0],
        "method.depths": [1, 2],
        "train.norm": norm,
        "rounds": 4,
        "train.epochs": 3,
        "evaluate.every": 4,
    }
    done = federate(tmp_path, fleet, {"method.name": "moon", "model.name": "mlp", **given})
    central = [s for s in done.result.scores if s.view == "central"]
    assert len({s.name for s in done.result.history.assigned.values()}) > 1
    assert all(np.isfinite(s.loss) for s in done.result.scores)
    assert max(s.accuracy for s in central) > 0.5
