"""Adam on dicts of tensors."""

from __future__ import annotations

import torch

from federated.methods.hypernetwork.moments import adam


def test_three_steps_are_those_of_pytorch():
    generator = torch.Generator().manual_seed(0)
    theirs = torch.nn.Parameter(torch.zeros(3))
    optimiser = torch.optim.Adam([theirs], lr=0.1)
    known = {"phi": torch.zeros(3)}
    for _ in range(3):
        theirs.grad = torch.randn(3, generator=generator)
        optimiser.step()
        made = adam(known, {"phi": theirs.grad}, "adam/")
        known = {**made, "phi": known["phi"] - 0.1 * made["phi"]}
    torch.testing.assert_close(known["phi"], theirs.detach())
    assert known.keys() == {"phi", "adam/steps", "adam/m/phi", "adam/v/phi"}


def test_the_first_step_is_the_sign():
    made = adam({}, {"a": torch.tensor([2.0, -0.5, 0.0])}, "p/")
    torch.testing.assert_close(made["a"], torch.tensor([1.0, -1.0, 0.0]))
    torch.testing.assert_close(made["p/m/a"], torch.tensor([0.2, -0.05, 0.0]))
    torch.testing.assert_close(made["p/v/a"], torch.tensor([0.004, 0.00025, 0.0]))
    assert made["p/steps"].tolist() == [1.0]
