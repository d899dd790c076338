"""The package imports without extras, and quickly; functions name the extra that they need."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import espalier

ROOT = Path(__file__).parents[2]
EXTRAS = ("torch", "safetensors", "onnx", "iotcore", "prometheus_client", "starlette")


def run(code: str) -> str:
    """Return what a program prints without the packages of the extras."""
    missing = f"import sys; sys.modules |= dict.fromkeys({EXTRAS!r})\n"
    command = [sys.executable, "-W", "error", "-c", missing + code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    return done.stdout


def test_import_loads_nothing_heavy() -> None:
    heavy = ("numpy", "onnxruntime", "paho", "cryptography", "rich")
    found = run(f"import espalier; print([one for one in {heavy!r} if one in sys.modules])")
    assert found == "[]\n"


@pytest.mark.parametrize(
    ("call", "extra"),
    [
        ("espalier.run('fedavg')", "coordinator"),
        ("espalier.load_run('mine')", "coordinator"),
        ("espalier.network('mlp', (4,), 2)", "coordinator"),
        ("espalier.menu(net)", "train"),
        ("espalier.cost(part)", "train"),
        ("espalier.slice(net, part)", "coordinator"),
        ("espalier.merge(net, [])", "coordinator"),
    ],
)
def test_a_function_names_the_extra_that_it_needs(call: str, extra: str) -> None:
    said = run(
        "import espalier\n"
        "net = espalier.Network('mlp', 'small', (4,), 2)\n"
        "part = espalier.Submodel(net, 1.0, ((1,),))\n"
        f"try: {call}\n"
        "except espalier.EspalierError as error: print(type(error).__name__, error)"
    )
    assert said.startswith("MissingExtra espalier.")
    assert f"[{extra}" in said
    assert "pip install" in said


def test_every_public_name_is_documented_and_typed() -> None:
    assert list(espalier.__all__) == sorted(espalier.__all__)
    for name in espalier.__all__:
        public = getattr(espalier, name)
        assert inspect.getdoc(public), name
        if inspect.isfunction(public):
            assert "Raises" in (public.__doc__ or ""), name
            given = inspect.signature(public)
            assert given.return_annotation is not given.empty
            assert all(one.annotation is not one.empty for one in given.parameters.values())


def test_slicing_and_training_a_network_of_timm_loads_no_compiler() -> None:
    """PyTorch's optimisers and torchvision import it, though they do not compile."""
    code = """
import sys
import espalier
net = espalier.network("timm:resnet10t", (3, 32, 32), 10)
module = espalier.slice(net, espalier.menu(net, (0.25,))[0])
import torch
optimiser = torch.optim.SGD(module.parameters(), 0.1)
optimiser.zero_grad()
module(torch.rand(2, 3, 32, 32)).sum().backward()
optimiser.step()
print([one for one in ("torch._dynamo.convert_frame", "onnx") if one in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout == "[]\n"
