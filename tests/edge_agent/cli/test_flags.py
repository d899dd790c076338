"""Help texts show the defaults that the commands use."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from edge_agent.cli.finetune import finetune
from edge_agent.cli.infer import infer
from edge_agent.cli.join import join
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
