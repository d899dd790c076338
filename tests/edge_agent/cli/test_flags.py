"""Help texts show the defaults that the commands use."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from edge_agent.cli.finetune import finetune
from edge_agent.cli.infer import infer
from edge_agent.cli.join import join, say_defaults
from edge_agent.device.state_folder import SPOOL, locate_state
from federated.defaults import PARTITION, SEED


def help_of(command: click.Command) -> str:
    return " ".join(CliRunner().invoke(command, ["--help"]).output.split())


@pytest.mark.parametrize("command", [finetune, infer, join], ids=lambda one: one.name)
def test_help_shows_the_defaults_of_a_shard(command: click.Command) -> None:
    shown = help_of(command)
    assert f"users, ... [default: {PARTITION}]" in shown
    assert f"seed of --partition [default: {SEED}]" in shown


def test_help_shows_the_folder_that_join_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ESPALIER_STATE", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/u")
    path = locate_state() / SPOOL
    assert f"[default: ~/{path.relative_to('/home/u')}]" in help_of(join)


@pytest.mark.parametrize(
    ("shard", "told"), [("0/2", "digits, 0/2"), (None, "digits, selected by the name 'd0'")]
)
def test_a_join_without_data_names_its_shard(shard: str | None, told: str) -> None:
    said: list[str] = []
    say_defaults(said.append, "d0", {"data": None, "shard": shard}, named=True)
    assert len(said) == 1
    assert said[0].endswith(told)
