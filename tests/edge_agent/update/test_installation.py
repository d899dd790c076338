"""The wheel that an update accepts, and the copy of an environment's packages."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edge_agent.update.environments import STAGED
from edge_agent.update.installation import (
    check_room,
    copy_packages,
    locate_packages,
    run_pip,
    stage_wheel,
)
from edge_agent.update.service_user import find_service_user
from federated.errors import ConfigError, EspalierError, LinkError, StoreError, UsageError

NAME = "espalier_fl-9.1.0rc1-py3-none-any.whl"


def test_a_wheel_is_copied_and_has_the_expected_digest(tmp_path: Path) -> None:
    (given := tmp_path / NAME).write_bytes(b"content")
    digest = hashlib.sha256(b"content").hexdigest()
    (root := tmp_path / "root").mkdir()
    staged = stage_wheel(str(given), digest, root)
    assert (staged.path, staged.version) == (root / STAGED / NAME, "9.1.0rc1")
    assert staged.folder_name == f"9.1.0rc1-{digest[:8]}"
    given.write_bytes(b"replaced later")
    assert staged.path.read_bytes() == b"content"


@pytest.mark.skipif(os.name != "posix", reason="runs a shell script")
def test_the_address_of_the_index_is_no_argument_that_other_users_can_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may contain a password."""
    index, python = "https://pi:secret@packages.example/simple", tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$PIP_INDEX_URL $@" >{tmp_path}/said\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(LinkError):
        stage_wheel("0.3.0", "ab" * 32, tmp_path, index)
    address, *arguments = (tmp_path / "said").read_text().split()
    assert address == index
    assert arguments[:4] == ["-I", "-m", "pip", "--disable-pip-version-check"]
    assert not any("secret" in word for word in arguments)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root acts as others")
def test_pip_of_root_reads_no_configuration_of_the_agents_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can name a program that pip runs."""
    import pwd

    home, program, ran = tmp_path / "home", tmp_path / "program", tmp_path / "ran"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    (home / ".config" / "pip").mkdir(parents=True)
    (home / ".config" / "pip" / "pip.conf").write_text(f"[global]\npython = {program}\n")
    nobody = list(pwd.getpwnam("nobody"))
    nobody[5] = str(home)
    monkeypatch.setattr(pwd, "getpwnam", lambda name: pwd.struct_passwd(nobody))
    user = find_service_user("nobody")
    run_pip(Path(sys.executable), "config", "list")
    assert not ran.exists()
    with user.act():
        assert Path.home() == home, "where the agent's state is"
    words = ["/bin/sh", "-c", "echo $HOME"]
    told = subprocess.run(words, capture_output=True, text=True, check=True, **user.arguments)
    assert told.stdout.strip() == str(home)


@pytest.mark.parametrize(
    ("source", "sha256", "kind", "words"),
    [
        (NAME, "ab" * 32, ConfigError, "expected sha256 abab.*, found .*nothing was installed"),
        (NAME, "AB" * 32, UsageError, "expected 64 hexadecimal digits"),
        ("gone.whl", "ab" * 32, ConfigError, "cannot read .*gone.whl"),
        ("espalier-1.0-py3-none-any.whl", "ab" * 32, ConfigError, "a wheel of espalier-fl"),
        ("latest", "ab" * 32, UsageError, "a version such as 0.3.0, found latest"),
    ],
)
def test_another_wheel_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    sha256: str,
    kind: type[EspalierError],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (NAME, "espalier-1.0-py3-none-any.whl"):
        Path(name).write_bytes(b"content")
    with pytest.raises(kind, match=words):
        stage_wheel(source, sha256, tmp_path)


@pytest.mark.parametrize("linked", [True, False])
def test_packages_are_copied_by_links_where_the_disk_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    base, new = tmp_path / "base", tmp_path / "new"
    module = locate_packages(base) / "package" / "module.py"
    module.parent.mkdir(parents=True)
    module.write_text("x = 1\n")

    def refuse(source: str, target: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    if not linked:
        monkeypatch.setattr(os, "link", refuse)
    assert copy_packages(base, new) == 1
    copy = locate_packages(new) / "package" / "module.py"
    assert copy.read_text() == "x = 1\n"
    assert copy.samefile(module) == linked


def test_a_full_disk_is_reported_before_anything_is_written(tmp_path: Path) -> None:
    check_room(tmp_path, 0)
    with pytest.raises(StoreError, match=r"MB are needed and .* MB are free: free disk space"):
        check_room(tmp_path, 1 << 60)


def test_the_reason_of_pip_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No matching distribution found for not-there"):
        run_pip(Path(sys.executable), "download", "--no-index", "-d", str(tmp_path), "not-there")
