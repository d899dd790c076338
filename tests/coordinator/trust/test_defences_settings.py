"""Conflicting defences, data that they do not cover, and settings that a resumed run may not
change.
"""

from __future__ import annotations

import re

import pytest

from coordinator.run.stored_configuration import check_same
from coordinator.trust.configured_defences import add_defences, check_leaks
from federated.errors import ConfigError, Unknown
from federated.methods.catalogue import find_method
from models.named_network import network
from tests.support.small_run_defences import config


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"robust__rule": "median"},
            "robust.rule = 'median'.*method fedfa: each layer .*; supported methods: "
            "allsmall, .*fedavg",
        ),
        ({"private__noise": 1.0, "private__clip": 1.0}, "private.noise = 1.*method fedfa"),
        (
            {"method__name": "fedavg", "private__noise": 1.0},
            "multiple of private.clip.*above 0, found 0",
        ),
        ({"method__name": "fedavg", "private__clip": 1.0}, "no effect without private.noise"),
        (
            {
                "method__name": "fedavg",
                "robust__rule": "median",
                "fleet__mode": "buffered",
                "fleet__buffer": 2,
            },
            "fleet.buffer of at least 3, found 2",
        ),
        ({"method__name": "fedavg", "private__epsilon": 1.0}, "no effect without private.noise"),
        (
            {"method__name": "fedavg", "robust__clip": 1.0},
            "robust.clip = 1 has no effect with robust.rule = 'none'",
        ),
        (
            {"method__name": "fedavg", "robust__rule": "krum", "robust__clip": 1.0},
            "robust.clip = 1 has no effect with robust.rule = 'krum'",
        ),
        (
            {"method__name": "fedavg", "robust__rule": "no_such_module:RULE"},
            "robust rule 'no_such_module:RULE' cannot be imported",
        ),
        (
            {
                "method__name": "fedavg",
                "private__noise": 1.0,
                "private__clip": 1.0,
                "robust__rule": "krum",
            },
            "cannot be combined",
        ),
        (
            {
                "method__name": "fedavg",
                "private__noise": 1.0,
                "private__clip": 1.0,
                "fleet__mode": "buffered",
            },
            "fleet.mode = 'sync'",
        ),
        (
            {
                "method__name": "fedavg",
                "private__noise": 1.0,
                "private__clip": 1.0,
                "fleet__late": "take",
            },
            "fleet.late = 'drop'",
        ),
    ],
)
def test_conflicting_settings_are_refused_before_a_run(given, words):
    asked = config(**given)
    with pytest.raises(ConfigError, match=words):
        add_defences(find_method(asked.method_name), asked)


def test_an_unknown_rule_is_refused_before_a_run():
    with pytest.raises(Unknown, match="unknown robust rule 'kurm'; did you mean krum"):
        add_defences(find_method("fedavg"), config(robust__rule="kurm"))


@pytest.mark.parametrize(
    ("given", "known", "words"),
    [
        ({}, True, "evaluate.devices = false.*'scores'"),
        (
            {"evaluate__devices": False, "evaluate__local": True},
            True,
            "evaluate.local = false.*'scores'",
        ),
        (
            {"evaluate__devices": False, "train__norm": "static"},
            True,
            "method.norm = 'tracked'.*'statistics'",
        ),
        ({"evaluate__devices": False}, False, "own data.*'moments'"),
    ],
)
def test_data_that_a_private_run_would_reveal_must_be_listed_as_uncovered(given, known, words):
    asked = config(method__name="fedavg", private__noise=1.0, private__clip=1.0, **given)
    menu = find_method("fedavg").menu(network("preresnet", (1, 8, 8), 10), asked.settings)
    with pytest.raises(ConfigError, match=words):
        check_leaks(asked, menu, known=known)
    named = config(
        method__name="fedavg",
        private__noise=1.0,
        private__clip=1.0,
        private__uncovered=["moments", "scores", "statistics"],
        **given,
    )
    check_leaks(named, menu, known=known)
    check_leaks(config(method__name="fedavg", **given), menu, known=known)


@pytest.mark.parametrize("key", ["private__noise", "private__clip", "robust__clip", "robust__rule"])
def test_a_resumed_run_keeps_its_defences(key):
    before = config(private__noise=1.0, private__clip=1.0)
    with pytest.raises(ConfigError, match=re.escape(key.replace("__", "."))):
        check_same(
            before,
            config(
                **{
                    "private__noise": 1.0,
                    "private__clip": 1.0,
                    key: "clip" if key == "robust__rule" else 2.0,
                }
            ),
        )
    check_same(
        before,
        config(private__noise=1.0, private__clip=1.0, private__epsilon=5.0, robust__bound=20.0),
    )
