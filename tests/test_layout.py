"""Rules of the source tree: allowed imports, modules without torch, and public names as in
`__all__`.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path

import pytest

from federated.methods.catalogue import METHODS

ROOT = Path(__file__).parents[1]
PACKAGES = (
    *("models", "federated", "export", "edge_agent", "coordinator", "espalier"),
    "benchmarks",
)
MAY_IMPORT = {
    "models": {"models"},
    "federated": {"models", "federated"},
    "export": {"models", "federated", "export"},
    "edge_agent": {"models", "federated", "export", "edge_agent"},
    "coordinator": {"models", "federated", "export", "coordinator"},
    "espalier": set(PACKAGES) - {"benchmarks"},
    "benchmarks": set(PACKAGES) - {"espalier"},  # only plug-ins, notebooks and tests import it
}
GATEWAY = "coordinator.gateway"  # an agent to its coordinator, so it may import edge_agent, too
# rooms of each package: a module imports from its own room and from rooms to the left, directly or
# through modules that lie in no room
ROOMS = {
    "models": ("layers", "user_networks", "families"),
    "federated": (
        "system",
        "runtime",
        "http_transfers",
        "wire",
        "wire.codecs",
        "wire.links",
        "wire.checks",
        "data",
        "training",
        "engine",
        "engine.robust",
        "methods.common",
        "methods.hypernetwork",
        "methods",
        "device.trainers",
        "device.attacks",
        "device",
    ),
    "export": ("trainstep.decompositions", "trainstep"),
    "edge_agent": (
        "device",
        "access",
        "join",
        "releases",
        "infer",
        "bench",
        "doctor",
        "finetune",
        "update",
        "cli",
    ),
    "coordinator": (
        "settings",
        "assign",
        "observe",
        "round",
        "trust",
        "store",
        "broker",
        "access",
        "phones",
        "http_transfers",
        "update_workers",
        "fleet",
        "observe.event_readers",
        "phases",
        "run",
        "release",
        "upgrade",
        "views",
        "simulate",
        "report",
        "web",
        "gateway",
        "cli",
    ),
    "benchmarks": (
        "peers",
        "comparison",
        "aggregation",
        "simulation",
        "analyses",
        "reproduction",
        "weight_encoding",
        "startup",
        "fuzzing",
        "raw_agents",
        "capacity",
        "round",
        "fault_schedules",
        "cost_prediction",
        "bitflips",
        "faults.parts",
        "faults",
        "generated_docs",
        "attacks",
        "floods",
        "web_page",
        "phones",
        "training_graphs",
    ),
}
MOST_FILES = 14  # of one folder
MOST_LINES = 445  # of a file: the longest one's at present, so lower it with that file
CATALOGUES = ("federated.methods", "coordinator.cli")
LONGEST = 60  # lines of a function
WIDEST = 100  # columns, except for a comment that a tool reads
MOST_PARAMETERS = 6  # of a function; the options of a command are collected into one record
TORCH_FREE = (  # packages, rooms and modules that a device without torch, onnx and scipy can import
    "coordinator.cli",
    "coordinator.release",
    "coordinator.report",
    "coordinator.upgrade",
    "coordinator.views",
    "coordinator.web",
    "edge_agent",
    "espalier",
    "export",
    "federated.data",
    "federated.device",
    "federated.http_transfers",
    "federated.runtime",
    "federated.system",
    "federated.task",
    "federated.wire",
    "models.submodel",
)
WITH_TORCH = {  # all exceptions
    "coordinator.release.export_modules",
    "coordinator.release.export_run",
    "coordinator.release.release_examples",
    "coordinator.release.stored_run",
    "coordinator.views.config_schema",
    "coordinator.views.method_pages",
    "edge_agent.finetune.adaptation",
    "edge_agent.finetune.personal_release",
    "edge_agent.join.speed_calibration",
    "export.graph_variants",
    "export.onnx_export",
    "export.pytorch_to_onnx",
    "export.release_writer",
    "export.trainstep.calibration_and_evaluation",
    "export.trainstep.cross_entropy",
    "export.trainstep.decompositions.activations",
    "export.trainstep.decompositions.convolution",
    "export.trainstep.decompositions.indexing",
    "export.trainstep.decompositions.pooling",
    "export.trainstep.decompositions.resizing",
    "export.trainstep.decompositions.table",
    "export.trainstep.export_process",
    "export.trainstep.given_draws",
    "export.trainstep.graph_export",
    "export.trainstep.named_tensor_function",
    "export.trainstep.optimisers",
    "export.trainstep.recomputed_activations",
    "export.trainstep.recomputed_attention",
    "export.trainstep.traced_program",
    "export.trainstep.training_step",
    "export.trainstep.weighted_norm",
    "federated.device.trainers.pytorch_trainer",
    "federated.device.trainers.reusable_networks",
}
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# an __init__ says what its folder is for, and imports nothing
MODULES = {name_of(path) for path in FILES if path.name != "__init__.py"}


def room_of(module: str) -> tuple[str, str]:
    """Package and folder of a module; an empty folder for modules at a package's root."""
    package, _, rest = module.partition(".")
    return package, rest.rpartition(".")[0]


@cache
def imports(path: Path) -> frozenset[str]:
    """Return every module that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: import by the module's full name"
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def test_packages_import_only_in_the_allowed_direction() -> None:
    wrong = {}
    for path in FILES:
        package = path.relative_to(ROOT).parts[0]
        used = {name.split(".")[0] for name in imports(path)}
        allowed = MAY_IMPORT[package]
        if name_of(path).startswith(f"{GATEWAY}."):
            allowed = allowed | {"edge_agent"}
        if foreign := used & set(PACKAGES) - allowed:
            wrong[name_of(path)] = foreign
    assert not wrong, f"these modules import packages that they may not: {wrong}"


def test_rooms_import_one_way() -> None:
    wrong = []
    for module in sorted(MODULES):
        package, room = room_of(module)
        if not room:
            continue
        allowed = ROOMS[package][: ROOMS[package].index(room) + 1]
        for name in find_reached(module):
            there, other = room_of(name)
            if there == package and other and other not in allowed:
                wrong.append(f"{module} imports {name}, but {room} comes before {other}")
    assert not wrong, "; ".join(wrong)


@cache
def list_imports() -> dict[str, set[str]]:
    """Return module -> modules of the project that it imports."""
    return {name_of(path): set(imports(path) & MODULES) for path in FILES}


def find_reached(module: str) -> set[str]:
    """Return the modules that a module imports, itself or through modules that lie in no room."""
    found, waiting = set[str](), [module]
    while waiting:
        new = list_imports().get(waiting.pop(), set()) - found
        found |= new
        waiting += [name for name in new if not room_of(name)[1]]
    return found


def test_every_folder_is_a_room() -> None:
    """Also a folder within a room: it comes before or after the room's own files."""
    folders = {room_of(name) for name in MODULES} - {(package, "") for package in PACKAGES}
    assert folders == {(package, room) for package, rooms in ROOMS.items() for room in rooms}


def test_no_modules_import_each_other() -> None:
    """Imports within functions and for type checking count, too."""
    graph = {name: found - {name} for name, found in list_imports().items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"imported in a circle: {' <- '.join(error.args[1])}")


def test_folders_stay_small() -> None:
    folders = Counter(name_of(path).rpartition(".")[0] for path in FILES if path.stem != "__init__")
    large = {
        name: count
        for name, count in folders.items()
        if count > MOST_FILES and name not in CATALOGUES
    }
    assert not large, f"make a room of some of these files: {large}"


def test_functions_stay_short() -> None:
    wrong = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            name = f"{name_of(path)}.{node.name}"
            lines = node.end_lineno - node.lineno + 1 if node.end_lineno else 0
            if lines > LONGEST:
                wrong.append(f"{name} has {lines} lines, {LONGEST} at most")
            given = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            count = len([one for one in given if one.arg not in ("self", "cls")])
            is_command = any(".command(" in ast.unparse(one) for one in node.decorator_list)
            if count > MOST_PARAMETERS and not is_command:
                wrong.append(
                    f"{name} has {count} parameters, {MOST_PARAMETERS} at most: pass a record"
                )
    assert not wrong, "; ".join(wrong)


def test_lines_stay_within_the_columns() -> None:
    """Ruff ignores the length of some comments, such as `# type: ignore`."""
    for path in FILES:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = re.split(r"  # (?:type: ignore|noqa|nosec)", line)[0]
            assert len(code) <= WIDEST, f"{path}:{number}"


def test_public_names_are_listed_and_sorted() -> None:
    wrong = []
    for path in (p for p in FILES if p.name not in ("__init__.py", "__main__.py")):
        module = importlib.import_module(name_of(path))
        listed = list(module.__all__)
        by_kind = sorted(listed, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
        if listed not in (by_kind, sorted(listed)):
            wrong.append(f"{name_of(path)}: sort __all__")
        if missing := [name for name in listed if not hasattr(module, name)]:
            wrong.append(f"{name_of(path)}: __all__ lists {missing}, which it lacks")
        if not module.__doc__:
            wrong.append(f"{name_of(path)}: add a docstring")
    assert not wrong, "; ".join(wrong)


def test_exported_names_are_used_in_another_file() -> None:
    """A file that uses a name also names its module. `main` is exempt: the interpreter calls it."""
    files = defaultdict[str, set[Path]](set)
    docs = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/notebooks").glob("*.ipynb")]
    for path in (*FILES, *(ROOT / "tests").rglob("*.py"), *docs, ROOT / "pyproject.toml"):
        for word in set(re.findall(r"\w+", path.read_text())):
            files[word].add(path)
    unused = [
        f"{name_of(path)}.{name}"
        for path in FILES
        if path.name not in ("__init__.py", "__main__.py")
        for name in importlib.import_module(name_of(path)).__all__
        if name != "main" and not (files[name] & files[path.stem]) - {path}
    ]
    assert not unused, f"drop from __all__, and from the code if unused there: {unused}"


def test_only_one_file_each_uses_mqtt_topics_and_checkpoints() -> None:
    spelled = [p for p in FILES if "fl/v1" in p.read_text()]
    assert [name_of(p) for p in spelled] == ["federated.wire.topics"]
    assert {name_of(p) for p in FILES if any(name.startswith("paho") for name in imports(p))} == {
        # hundreds of clients in one thread, which no link is made for
        "benchmarks.raw_agents.raw_fleet",
        # what our links are compared with
        "benchmarks.round.bare_mqtt_client",
        "federated.wire.links.mqtt",
        "federated.wire.links.mqtt_client_setup",
        "federated.wire.links.paho_client",
    }
    assert [name_of(p) for p in FILES if "federated.wire.links.mqtt" in imports(p)] == [
        "federated.wire.links.catalogue"
    ]
    assert {
        name_of(p) for p in FILES if any(name.startswith("safetensors") for name in imports(p))
    } == {
        # what our encoding is compared with
        "benchmarks.weight_encoding.command",
        "coordinator.store.tensor_files",
        "models.pretrained",
    }


def test_no_module_unpickles() -> None:
    assert not [
        name_of(p) for p in FILES if imports(p) & {"pickle", "cloudpickle", "dill", "marshal"}
    ]
    loads = {
        name_of(p): [line for line in p.read_text().splitlines() if "torch.load" in line]
        for p in FILES
    }
    assert [name for name, lines in loads.items() if lines] == ["models.pretrained"]
    assert all("weights_only=True" in line for line in loads["models.pretrained"])


def test_imported_packages_are_declared() -> None:
    """A package that only another one requires is missing as soon as that one drops it. Peers of
    benchmarks have environments of their own.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lists = [project["dependencies"], *(extras[name] for name in extras.keys() - {"dev", "docs"})]
    declared = {normalize(re.split(r"[\[<>=]", one)[0]) for one in chain(*lists)}
    used = {
        name.partition(".")[0]
        for path in FILES
        if not path.is_relative_to(ROOT / "benchmarks")
        for name in imports(path)
    }
    # they may not be installed; Python 3.14 has the module of `backports.zstd`
    zstd = {name: ["backports.zstd"] for name in ("backports", "compression")}
    own = {"mlflow": ["mlflow-skinny"], "socks": ["pysocks"], **zstd}
    known = {**own, **packages_distributions()}
    undeclared = {
        name: known.get(name)
        for name in used - sys.stdlib_module_names - set(PACKAGES)
        if not declared & {normalize(one) for one in known.get(name, [name])}
    }
    assert not undeclared, f"declare in pyproject.toml: {undeclared}"


def normalize(name: str) -> str:
    return name.lower().replace("_", "-")


IMPORT_ALL = """
import importlib, sys, traceback
sys.modules["torch"] = sys.modules["onnx"] = sys.modules["scipy"] = None
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError:
        traceback.print_exc()
        print(name)
"""


def test_a_device_without_torch_can_import() -> None:
    """A `__main__` is left out, since it runs a command."""
    covered = {
        free: {name for name in MODULES if f"{name}.".startswith(f"{free}.")} for free in TORCH_FREE
    }
    assert all(covered.values())
    names = sorted(name for name in set().union(*covered.values()) if "__main__" not in name)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT_ALL, *names],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert (done.returncode, set(done.stdout.split())) == (0, WITH_TORCH), done.stderr


def test_files_stay_small() -> None:
    long = {name_of(p): n for p in FILES if (n := len(p.read_text().splitlines())) > MOST_LINES}
    assert not long, f"split by noun: {long}"


@pytest.mark.parametrize("path", [p for p in FILES if p.stem == "catalogue"], ids=name_of)
def test_a_catalogue_is_its_point_its_dict_and_lookups(path: Path) -> None:
    """Members, their records and the work on them have files of their own."""
    body = ast.parse(path.read_text()).body
    assert not [node.name for node in body if isinstance(node, ast.ClassDef)]
    (members,) = (
        ast.unparse(node.target)
        for node in body
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict)
    )
    for node in body:
        if isinstance(node, ast.FunctionDef):
            used = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
            assert used & {"POINT", members}, f"{node.name} is no lookup: give it another file"
    foreign = {name.split(".")[0] for name in imports(path)} - {*PACKAGES, *sys.stdlib_module_names}
    assert not foreign, f"it works with {foreign}"


def test_every_method_is_in_a_small_file_and_every_file_there_has_a_method() -> None:
    lines = {
        name_of(p): len(p.read_text().splitlines())
        for p in (ROOT / "federated/methods").glob("*.py")
        if p.stem not in ("__init__", "catalogue")
    }
    assert lines.keys() == {made.__module__ for made in METHODS.values()}
    assert all(made.__name__ == name.replace("-", "_") for name, made in METHODS.items())
    assert max(lines.values()) <= 300, f"long: {max(lines, key=lambda name: lines[name])}"
