"""Flags for keys of the configuration take their help and their defaults from its schema."""

from __future__ import annotations

from importlib import import_module

import click
import pytest
from click.testing import CliRunner

from coordinator.cli.main import COMMANDS
from coordinator.cli.options import ConfigOption, config_flag, list_given
from coordinator.settings.config import Config, describe_key
from federated.defaults import METHOD


def command_of(name: str) -> click.Command:
    module, _, attribute = COMMANDS[name].where.partition(":")
    command: click.Command = getattr(import_module(module), attribute)
    return command


FLAGS = [
    (name, option)
    for name in COMMANDS
    for option in command_of(name).params
    if isinstance(option, ConfigOption)
]


@pytest.mark.parametrize(
    ("name", "option"), FLAGS, ids=[f"{name} {option.opts[0]}" for name, option in FLAGS]
)
def test_a_flag_sets_a_key_of_the_configuration_and_has_no_separate_default(
    name: str, option: ConfigOption
) -> None:
    description, default = describe_key(option.key)
    assert description or option.key == "method.name"
    assert option.default in (None, "", (), click.core.UNSET) or option.default == default
    if "[default: " in (option.help or ""):
        assert (name, option.key) == ("assign", "data.name"), "its default is not the key's"


def test_help_shows_the_description_and_default_of_the_key() -> None:
    shown = " ".join(CliRunner().invoke(command_of("start"), ["--help"]).output.split())
    assert f"--rounds N number of rounds [default: {Config().rounds}]" in shown
    assert f"[default: {METHOD}]" in shown
    assert f"[default: {Config().fleet.fraction:g}]" in shown
    assert "[default: None]" not in shown


def test_flags_are_given_as_keys_and_values_and_the_others_left_out() -> None:
    found = []

    @click.command()
    @config_flag("--rounds", key="rounds", type=int)
    @config_flag("--host", "hosts", key="broker.hosts", multiple=True)
    @config_flag("--tls", key="broker.tls", is_flag=True, default=None)
    def command(**flags: object) -> None:
        found.extend(list_given(flags))

    CliRunner().invoke(command, ["--rounds", "0"], catch_exceptions=False)
    CliRunner().invoke(command, ["--host", "a", "--tls"], catch_exceptions=False)
    assert found == [("rounds", 0), ("broker.hosts", ("a",)), ("broker.tls", True)]
