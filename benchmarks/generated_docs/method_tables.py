"""Write the documentation's tables of methods: what each does, whether it requires PyTorch, and
which laws of aggregation it breaks.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.generated_docs.markdown_table import render_table
from federated.device.trainers.onnx_trainer import OnnxTrainer
from federated.errors import ConfigError
from federated.method import LAWS, Method, configure
from federated.methods.catalogue import METHODS, find_method
from federated.task import Recipe
from federated.trainer_capabilities import describe_missing, list_required_capabilities, name_hook
from models.named_network import network
from models.submodel_building import initial

__all__ = ["list_laws", "list_methods", "list_trainers"]

MODELS = ("mlp", "resnet-tiny")  # the first that can do what a method asks of a network


def list_methods() -> Iterator[str]:
    made = [find_method(name) for name in METHODS]
    rows = ((f"`{one.name}`", one.summary, one.paper) for one in made)
    return render_table(("`--method`", "summary", "paper"), rows)


def list_laws() -> Iterator[str]:
    """Yield the table of the laws of aggregation, with the methods that break each."""
    made = [find_method(name) for name in METHODS]
    rows = (
        (f"`{law}`", text, ", ".join(f"`{one.name}`" for one in made if law in one.breaks))
        for law, text in LAWS.items()
    )
    return render_table(("law", "meaning", "does not hold for"), rows)


def list_trainers() -> Iterator[str]:
    """Yield the table of the methods that train without PyTorch, and of those that do not."""
    made = ((name, explain_pytorch(find_method(name))) for name in METHODS)
    rows = ((f"`{name}`", "no" if why else "yes", why) for name, why in made)
    return render_table(("`--method`", "without PyTorch", "it requires"), rows)


def explain_pytorch(method: Method) -> str:
    """Return what a method requires that devices without PyTorch lack; empty for nothing."""
    hooks, able = method.hooks, set(OnnxTrainer.capabilities)
    if hooks is not None and not hooks.plain:
        named = [name for name in ("open", "loss", "step", "close") if getattr(hooks, name)]
        return f"its hooks ({', '.join(named)})"
    if hooks is not None:
        able.add(name_hook(hooks.name))
    needed = frozenset[str]().union(*map(list_required_capabilities, list_recipes(method)))
    return describe_missing(needed, able)


def list_recipes(method: Method) -> list[Recipe]:
    """Return the recipes of the first round, with the default settings."""
    settings = configure(method, {}, rounds=1)
    for model in MODELS:
        whole = network(model, (1, 8, 8), 10)
        try:
            menu = method.menu(whole, settings)
        except ConfigError:
            continue
        state = method.start(initial(whole, 0, method.features), menu, settings)
        return [method.recipe(state, submodel) for submodel in menu]
    raise ConfigError(f"{method.name}: none of {', '.join(MODELS)} has what it needs")
