"""Deferring the import of PyTorch's compiler and of SymPy, where each case needs a process of its
own, and pausing the garbage collector.
"""

import gc
import subprocess
import sys
from contextlib import suppress

import pytest

from federated.runtime.torch_import import pause_collection

DEFER = """
import sys
from federated.runtime.torch_import import defer_compiler
defer_compiler()
import torch
layer = torch.nn.Linear(2, 2)
optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)

def train():
    optimiser.zero_grad()
    layer(torch.ones(1, 2)).sum().backward()
    optimiser.step()

def loaded():
    return "torch._dynamo.convert_frame" in sys.modules

def knows_algebra():
    return "sympy.core" in sys.modules
"""


def run(code: str) -> None:
    subprocess.run([sys.executable, "-c", DEFER + code], check=True, timeout=120)


def test_that_training_and_counting_costs_load_neither_compiler_nor_algebra() -> None:
    run("""
from models.families.catalogue import FAMILIES
from models.named_network import network
from models.step_workload import work
from models.submodel_building import full
train()
EXAMPLES = {"resnet1d": ((3, 64), "class"), "transformer": ((16,), "token")}
for name in FAMILIES:
    inputs, target = EXAMPLES.get(name, ((3, 32, 32), "class"))
    assert work(full(network(name, inputs, 10, target=target)), 4).calls, name
    assert not loaded(), name
    assert not knows_algebra(), name
""")


@pytest.mark.parametrize(
    "use",
    [
        "from sympy import Symbol; assert Symbol('x').is_symbol",
        "import sympy.core.symbol; assert sympy.Symbol is sympy.core.symbol.Symbol",
        "import sympy; assert isinstance(sympy.Symbol('x'), sympy.Basic); sympy.__version__",
        "from torch.fx.experimental.symbolic_shapes import ShapeEnv; ShapeEnv()",
    ],
)
def test_that_a_use_loads_the_algebra(use: str) -> None:
    run(f"""
torch.zeros(2, device="meta") - torch.zeros(2, device="meta")
assert not knows_algebra()
{use}
assert knows_algebra()
""")


def test_that_conditions_on_shapes_are_symbolic_once_a_graph_has_symbols() -> None:
    """Functions that were imported before are those of the module afterwards."""
    run("""
from torch.fx.experimental.symbolic_shapes import guard_or_false, sym_eq
assert guard_or_false(True) is True
assert not knows_algebra()

class Double(torch.nn.Module):
    def forward(self, x):
        assert isinstance(x.shape[0], torch.SymInt)
        assert isinstance(sym_eq(x.shape[0], 7), torch.SymBool)
        return x + x

batch = torch.export.Dim("batch", min=2)
made = torch.export.export(Double(), (torch.ones(3, 2),), dynamic_shapes=[{0: batch}], strict=False)
assert made.module()(torch.ones(5, 2)).shape == (5, 2)
assert knows_algebra()
""")


def test_that_torchvision_loads_no_compiler() -> None:
    run("""
from models.optional_torchvision import import_torchvision
train()
assert import_torchvision("models").resnet18
assert not loaded()
from torch._dynamo.utils import is_compile_supported
assert is_compile_supported("cpu") in (True, False)
import torch._dynamo.utils
assert torch._dynamo.utils.is_compile_supported.__module__ == "torch._dynamo.utils"
assert loaded()
train()
""")


@pytest.mark.slow
@pytest.mark.parametrize(
    "use",
    [
        "import torch._dynamo.config as config; assert torch._dynamo.config is config",
        "assert torch.compile(lambda x: x + 1, backend='eager')(torch.ones(1)) == 2",
        "from torch._dynamo.utils import is_compile_supported; is_compile_supported('cpu')",
        "from torch._dynamo.utils import counters; assert counters is not None",
    ],
)
def test_that_a_use_loads_the_compiler_and_training_still_works(use: str) -> None:
    run(f"train()\nassert not loaded()\n{use}\nassert loaded()\ntrain()")


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_pauses_and_then_is_as_before(enabled: bool) -> None:
    gc.enable() if enabled else gc.disable()
    try:
        with suppress(ImportError), pause_collection():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() == enabled
    finally:
        gc.enable()
