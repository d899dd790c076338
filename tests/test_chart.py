"""The Helm chart in deploy/chart: its values and its manifests.

The tests of manifests need `helm`, which is no Python package, and are skipped without it. They use
`kubernetes-validate` in place of kubeconform: it contains the schemas, so nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from coordinator.settings.config import load

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy" / "chart"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
CLUSTER = {
    "settings": '[broker]\nurl = "mqtts://b"\nlisten = "0.0.0.0"\ntls = true\nenrol = 443\n'
    '[http]\nlisten = "0.0.0.0:8602"\n[metrics]\nlisten = "127.0.0.1:9464"\n',
    "environmentSecret": "broker",
    "certificatesSecret": "certificates",
    "standby": True,
    "volume": {"accessMode": "ReadWriteMany", "storageClass": "nfs"},
}


def render(tmp_path: Path, values: dict[str, Any]) -> str:
    """Return the manifests of the release `harvest`, after all checks of Helm."""
    if (helm := shutil.which("helm")) is None:
        pytest.skip("helm is not installed")
    file = tmp_path / "values.json"
    file.write_text(json.dumps(values))
    for words in ("lint", "--strict"), ("template", "harvest"):
        done = subprocess.run(
            [helm, *words, str(CHART), "-f", str(file)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("values", "fault"), [
    ({}, ""), (CLUSTER, ""), ({"standbi": True}, "standbi"), ({"standby": True}, "accessMode"),
])  # fmt: skip
def test_the_schema_accepts_only_usable_values(
    values: dict[str, Any], fault: str, tmp_path: Path
) -> None:
    file = tmp_path / "values.json"
    file.write_text(json.dumps(VALUES | values))
    check = Path(sys.executable).with_name("check-jsonschema")
    done = subprocess.run(
        [check, "--schemafile", CHART / "values.schema.json", file],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert bool(done.returncode) == bool(fault), done.stdout
    assert fault in done.stdout


def test_the_schema_and_the_templates_know_each_value() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    text = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    used = set(re.findall(r"\.Values\.([\w.]+)", text))
    open_tables = {"resources"}
    given = {
        f"{key}.{inner}" if inner else key
        for key, value in VALUES.items()
        for inner in (value if isinstance(value, dict) and key not in open_tables else [""])
    }
    assert used == given
    assert given == {
        f"{key}.{inner}" if inner else key
        for key, of in schema.items()
        for inner in of.get("properties", [""])
    } - {"global"}


def test_the_chart_has_the_image_and_the_health_check_of_the_container() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]
    compose = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())
    assert VALUES["image"]["repository"] == compose["services"]["coordinator"]["image"]
    template = (CHART / "templates/coordinator.yaml").read_text()
    image = (ROOT / "deploy/docker/coordinator.Dockerfile").read_text()
    (check,) = re.findall(r"find /tmp/alive -mmin -\d+", template)
    assert check in image
    assert f"runAsUser: {re.findall(r'USER (.+):', image)[0]}" in template


def test_the_coordinator_accepts_the_default_settings(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(VALUES["settings"])
    assert load(file, {}, ()).broker.tls


@pytest.mark.parametrize(("values", "ports", "sets"), [
    ({}, {"broker": 8883, "enrolment": 8884}, {"harvest-coordinator"}),
    (CLUSTER, {"enrolment": 443, "http": 8602}, {"harvest-coordinator", "harvest-standby"}),
])  # fmt: skip
def test_helm_makes_manifests_that_kubernetes_accepts(
    values: dict[str, Any], ports: dict[str, int], sets: set[str], tmp_path: Path
) -> None:
    text, file = render(tmp_path, values), tmp_path / "manifests.yaml"
    kinds: dict[str, list[dict[str, Any]]] = {}
    for manifest in yaml.safe_load_all(text):
        kinds.setdefault(manifest["kind"], []).append(manifest)
    assert {one["metadata"]["name"] for one in kinds["StatefulSet"]} == sets
    assert {one["name"]: one["port"] for one in kinds["Service"][0]["spec"]["ports"]} == ports
    (files,) = (one["data"] for one in kinds["ConfigMap"])
    assert files["run.toml"] == values.get("settings", VALUES["settings"])
    assert files["start.sh"] == (CHART / "start.sh").read_text()
    if (validate := shutil.which("kubernetes-validate")) is None:
        pytest.skip("kubernetes-validate is not installed: checked by helm alone")
    file.write_text(text)
    done = subprocess.run([validate, "--strict", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.processes
def test_a_pod_ends_with_the_exit_code_of_the_coordinator(tmp_path: Path) -> None:
    shutil.copy(CHART / "start.sh", tmp_path)
    (tmp_path / "run.toml").write_text("round = 1\n")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    alive = tmp_path / "alive"
    alive.touch()  # of an earlier container
    done = subprocess.run(
        ["sh", "start.sh", "harvest"], cwd=tmp_path, capture_output=True, text=True, check=False,
        env=os.environ | {"PATH": path, "ESPALIER_ALIVE": str(alive)},
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "round" in done.stderr
    assert not alive.exists()
