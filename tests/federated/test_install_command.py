"""Commands that add an extra, for each way to install the distribution."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edge_agent.doctor.device_checks import check_namesake
from federated import install_command
from federated.errors import MissingExtra
from federated.install_command import NAME, pip_command


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that installs the metadata of a distribution, and hides all others."""
    monkeypatch.setattr("sys.path", [str(tmp_path)])

    def write(name: str = NAME, origin: dict[str, Any] | None = None) -> None:
        folder = tmp_path / f"{name.replace('-', '_')}-9.1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.1\n")
        if origin is not None:
            (folder / "direct_url.json").write_text(json.dumps(origin))

    return write


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (None, "pip install 'espalier-fl[train]'"),
        (
            {"url": "file:///a/espalier_fl-9.1.whl", "archive_info": {}},
            "pip install 'espalier-fl[train] @ file:///a/espalier_fl-9.1.whl'",
        ),
        (
            {"url": "file:///a%20b/clone", "dir_info": {"editable": True}},
            "pip install -e '/a b/clone[train]'",
        ),
        (
            {"url": "file:///clone", "dir_info": {}},
            "pip install 'espalier-fl[train] @ file:///clone'",
        ),
        (
            {"url": "https://host/repo", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'espalier-fl[train] @ git+https://host/repo@abc'",
        ),
    ],
)
def test_an_extra_comes_from_where_the_project_was_installed(
    install: Any, origin: dict[str, Any] | None, expected: str
) -> None:
    install(origin=origin)
    assert pip_command("train") == expected
    assert expected in str(MissingExtra("edge-agent join", "train", "torch"))


@pytest.mark.usefixtures("install")
def test_an_extra_of_a_checkout_is_installed_from_its_folder() -> None:
    folder = Path(install_command.__file__).parent.parent
    assert pip_command("train") == (
        f"pip install -c '{folder}/constraints.txt' -e '{folder}[train]'"
    )


@pytest.mark.parametrize("editable", [False, True])
def test_an_extra_has_the_tested_versions_if_the_clone_lists_them(
    install: Any, tmp_path: Path, editable: bool
) -> None:
    clone = tmp_path / "clone"
    clone.mkdir()
    (clone / "constraints.txt").touch()
    install(origin={"url": clone.as_uri(), "dir_info": {"editable": editable}})
    assert pip_command("data").startswith(f"pip install -c '{clone}/constraints.txt' ")


def test_the_doctor_reports_the_other_project_of_the_same_name(install: Any) -> None:
    install()
    assert not list(check_namesake())
    install("espalier")
    (check,) = check_namesake()
    assert check.state == "warn"
    assert "pip uninstall espalier, then pip install 'espalier-fl'" in check.remedy
