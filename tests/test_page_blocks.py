"""The code blocks of README and docs run as they are printed."""

from __future__ import annotations

import json
import random
import shutil
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from coordinator.broker import local_broker
from coordinator.broker.mosquitto_config import find_mosquitto
from federated.data import loading
from models.optional_torchvision import import_torchvision
from tests.support.memory_federation import RUN, Member, digits, federate
from tests.support.page_blocks import PAGES, list_blocks
from tests.support.page_runner import PageRunner
from tests.support.processes import Start

ONE_SIZE = {"ESPALIER_METHOD__WIDTHS": "[1.0]", "ESPALIER_METHOD__DEPTHS": "[4]"}
VARIABLES = {
    "README.md": ONE_SIZE,
    "operations.md": {"ESPALIER_ROUNDS": "2"},  # so that the run that is resumed goes on
    "start.md": ONE_SIZE,
}
# programs that pages need
FIND = {"fleet.md": find_mosquitto, "inference.md": partial(shutil.which, "curl")}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a finished run of two devices."""
    folder = tmp_path_factory.mktemp("finished")
    settings = {"train.steps": 1, "method.widths": [1.0], "method.depths": [4]}
    federate(folder, [Member("pi-7", digits(0, 2)), Member("pi-8", digits(1, 2))], settings)
    return folder / "runs"


def write_examples(folder: Path) -> None:
    """Write the files that the page on inference names: examples, and data of a device."""
    data = loading.load_central("digits")
    for index, (x, y) in enumerate(zip(data.x_held[:60], data.y_held[:60], strict=True)):
        for place in ("pictures", f"mine/{y}"):
            (folder / place).mkdir(parents=True, exist_ok=True)
            Image.fromarray(x[0].astype("uint8")).save(folder / place / f"{index}.png")
    np.save(folder / "x.npy", data.x_held[:2])
    (folder / "examples.json").write_text(json.dumps({"inputs": data.x_held[:2].tolist()}))


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.broker
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if not all(block.reasons for block in list_blocks(page))],
    ids=lambda page: page.name,
)
def test_the_blocks_of_a_page_run_in_order(
    page: Path, runs: Path, tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    if page.name in FIND and not FIND[page.name]():
        pytest.skip("mosquitto or curl is not installed")
    if page.name == "README.md":
        import_torchvision("models")  # also if its operators do not fit this torch
    shutil.copytree(runs, tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    address = ".".join(["127", *(str(random.randint(1, 254)) for _ in range(3))])
    names = {
        **dict.fromkeys(("127.0.0.1", "0.0.0.0", "HOST"), address),
        "NAME": "pi-7",
        "w0.5-d2.2.2": "w1-d4.4.4",
        "RUN": "fedfa-digits" if page.name == "fleet.md" else RUN,
        "harvest": RUN,
    }
    variables = {"ESPALIER_BROKER__LISTEN": address, **VARIABLES.get(page.name, {})}
    with ExitStack() as stack:
        if page.name == "inference.md":
            write_examples(tmp_path)
            stack.enter_context(local_broker.start(address, directory=tmp_path / "broker"))
        runner = PageRunner(start, tmp_path, names, variables)
        for block in list_blocks(page):
            if not block.reasons:
                runner.run(block)
        runner.finish()
