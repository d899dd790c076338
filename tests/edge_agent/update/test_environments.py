"""The links of a device's environments, and the return after starts that did not join."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_agent.device.start_record import read_start, remove_start, write_start
from edge_agent.update.environments import (
    MARK,
    Environments,
    find_environments,
    hold_lock,
)
from edge_agent.update.health_check import Device
from edge_agent.update.service_user import SAME_USER, ServiceUser
from edge_agent.update.version_switch import (
    MOST_STARTS,
    UpdateRequest,
    count_start,
    go_back,
    wait_for_join,
)
from edge_agent.update.wanted_software import Decision, Held, carry_out, decide
from federated.errors import ConfigError, StoreError, UsageError


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environments:
    """The environments a, b, c and d, all by updates but d; a was followed by b, the current one.
    This process runs from b.
    """
    for name in "abcd":
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
        if name != "d":
            (tmp_path / name / MARK).touch()
    made = Environments(tmp_path)
    made.switch(tmp_path / "a")
    made.switch(tmp_path / "b")
    monkeypatch.setenv("ESPALIER_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "b"))
    return made


def name_links(places: Environments) -> tuple[str, str]:
    assert places.current is not None
    assert places.previous is not None
    return places.current.name, places.previous.name


def ignore(text: str) -> None:
    pass


def test_a_switch_keeps_one_previous_environment(places: Environments) -> None:
    assert name_links(places) == ("b", "a")
    assert (places.root / "current" / "file").exists()
    places.switch(places.root / "c")
    assert name_links(places) == ("c", "b")
    places.switch(places.root / "c")
    assert name_links(places) == ("c", "b")


def test_only_environments_of_updates_that_no_link_names_are_removed(places: Environments) -> None:
    places.switch(places.root / "c")
    places.tidy(ignore)
    assert sorted(path.name for path in places.root.iterdir() if (path / "file").exists()) == [
        *("b", "c", "current", "d", "previous"),
    ]


def test_an_environment_in_use_stays(places: Environments) -> None:
    (python := places.root / "c" / "python").symlink_to(sys.executable)
    words = [str(python), "-I", "-S", "-c", "print(flush=True); input()"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        said: list[str] = []
        places.tidy(said.append)
        process.communicate(b"\n")
    assert (places.root / "c").exists()
    assert f"processes use it ({process.pid})" in said[0]
    places.tidy(ignore)
    assert not (places.root / "c").exists()


def test_going_back_exchanges_both_environments(places: Environments) -> None:
    places.begin_trial(places.root / "b")
    assert go_back(Device(), "", ignore) == {"current": "a", "previous": "b"}
    assert name_links(places) == ("a", "b")
    assert places.read_trial() is None
    (places.root / "previous").unlink()
    with pytest.raises(UsageError, match="no previous environment"):
        go_back(Device(), "", ignore)
    assert places.current == places.root / "a"


def test_going_back_does_not_return_to_what_the_run_rolled_back(places: Environments) -> None:
    withdrawn = decide(None, "b", Held("b", "a", "0.2.0"))
    carry_out(withdrawn, None, places, UpdateRequest("", ""), ignore)
    assert name_links(places) == ("a", "b")
    with pytest.raises(UsageError, match=r"left b before \(the run rolled it back\).*install it"):
        go_back(Device(), "", ignore)
    assert name_links(places) == ("a", "b")
    again = Decision("return", "the run wants it again")
    carry_out(again, None, places, UpdateRequest("", ""), ignore)
    assert (name_links(places), places.read_refused()) == (("b", "a"), {})


def test_going_back_twice_does_not_return_to_what_was_left(places: Environments) -> None:
    go_back(Device(), "", ignore)
    with pytest.raises(UsageError, match=r"left b before \(its owner went back\)"):
        go_back(Device(), "", ignore)
    assert name_links(places) == ("a", "b")
    places.accept("b")  # as when it is installed again
    assert go_back(Device(), "", ignore) == {"current": "b", "previous": "a"}


def test_an_environment_that_does_not_join_is_left_after_some_starts(places: Environments) -> None:
    places.begin_trial(places.root / "b")
    for _ in range(MOST_STARTS):
        count_start(Device(), ignore)
        assert name_links(places) == ("b", "a")
    said: list[str] = []
    count_start(Device(), said.append)
    assert name_links(places) == ("a", "b")
    assert said == ["b did not join in 3 starts: went back to a"]
    count_start(Device(), said.append)
    assert name_links(places) == ("a", "b"), "a is not on trial"
    assert len(said) == 1


def test_an_environment_whose_agent_joined_stays(places: Environments) -> None:
    places.begin_trial(places.root / "b", MOST_STARTS)
    write_start(joined=True)
    count_start(Device(), ignore)
    assert places.read_trial() is None
    remove_start()
    for _ in range(MOST_STARTS + 2):
        count_start(Device(), ignore)
    assert name_links(places) == ("b", "a")


def refused() -> None:
    write_start(joined=True)
    remove_start()


@pytest.mark.parametrize(
    ("start", "reached"),
    [
        (lambda: None, ""),
        (refused, ""),
        (lambda: write_start(joined=False), "reached the broker and waits for a run"),
    ],
)
def test_an_agent_that_has_not_joined_in_time_is_told_apart(
    places: Environments, start: Callable[[], None], reached: str
) -> None:
    start()
    assert wait_for_join(places.root / "b", 0.1, SAME_USER) == reached
    other = wait_for_join(places.root / "a", 0.1, SAME_USER)
    assert other == "", "the record is of another environment"


def test_an_agent_has_joined_once_the_run_did_not_refuse_it(
    places: Environments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_agent.update.version_switch.SETTLE", 0.01)
    write_start(joined=True)
    assert wait_for_join(places.root / "b", 60, SAME_USER) == "joined a run"
    assert read_start() is not None


def test_two_updates_at_a_time_are_refused(places: Environments) -> None:
    busy = pytest.raises(StoreError, match="another update is in progress")
    with hold_lock(places.root), busy:
        count_start(Device(), ignore)
    count_start(Device(), ignore)


def test_an_environment_outside_such_a_folder_is_reported(
    places: Environments, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (places.root / "current").unlink()
    with pytest.raises(ConfigError, match="folder of its own with a link 'current'"):
        find_environments()
    (places.root / "current").symlink_to("/tmp")  # not one of its folders
    with pytest.raises(ConfigError, match="folder of its own"):
        find_environments()
    (places.root / "current").unlink()
    (places.root / "current").symlink_to("gone")
    with pytest.raises(ConfigError, match=r"gone does not exist: .*ln -sfn"):
        find_environments()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root acts as others")
def test_root_touches_files_of_the_agent_with_the_rights_of_its_user_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its user replaced the folder of the agent's state by a link to one of root's."""
    monkeypatch.setenv("ESPALIER_STATE", str(tmp_path / "of_root"))
    write_start(joined=True)
    (tmp_path / "of_root").chmod(0o700)
    agent = ServiceUser(65534, 65534, (65534,))
    with agent.act():
        assert os.geteuid() == 65534
        assert read_start() is None
        remove_start()
    assert os.geteuid() == 0
    assert read_start() is not None
    words = ["/bin/sh", "-c", "id -u; id -G"]
    told = subprocess.run(words, capture_output=True, text=True, check=True, **agent.arguments)
    assert told.stdout.split() == ["65534", "65534"]


@pytest.mark.skipif(os.name != "posix", reason="needs named pipes")
def test_a_record_that_is_no_plain_file_is_not_read(places: Environments, tmp_path: Path) -> None:
    write_start(joined=True)
    path = tmp_path / "state" / "start.json"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert read_start() is None
    path.unlink()
    os.mkfifo(path)
    assert read_start() is None, "and does not wait for its content"
