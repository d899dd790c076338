"""Received data is never run: no module calls functions that could run it."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = (
    *("models", "federated", "export", "edge_agent", "coordinator", "espalier"),
    "benchmarks",
)


def test_no_module_calls_functions_that_could_run_received_data() -> None:
    """No module unpickles, compiles or evaluates; a device runs only installed code."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Import | ast.ImportFrom) and is_loader(node))
        or (isinstance(node, ast.Call) and is_dangerous(node))
    ]
    assert found == []


def is_loader(node: ast.Import | ast.ImportFrom) -> bool:
    """Return True if a statement imports a library that runs what it loads."""
    names = {alias.name.split(".")[0] for alias in node.names} | {
        (getattr(node, "module", "") or "").split(".")[0]
    }
    return bool(names & {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml"})


def is_dangerous(call: ast.Call) -> bool:
    said = {keyword.arg: getattr(keyword.value, "value", None) for keyword in call.keywords}
    match call.func:
        case ast.Name(id="eval" | "exec" | "compile" | "__import__"):
            return True
        case ast.Attribute(value=ast.Name(id="torch"), attr="load"):
            return said.get("weights_only") is not True
        case ast.Attribute(value=ast.Name(id="np" | "numpy"), attr="load"):
            return bool(said.get("allow_pickle"))
    return bool(said.get("shell"))
