"""Devices that a run rejects, and the reasons."""

from __future__ import annotations

from dataclasses import replace

from coordinator.assign.eligibility import (
    Eligibility,
    explain_lacking_capabilities,
    explain_lacking_codec,
    explain_older_codec,
)
from coordinator.settings.config import Config
from coordinator.settings.service_tables import Http
from federated.data import loading
from federated.task import Profile
from federated.trainer_capabilities import CAPABILITIES
from federated.wire.envelope import ADDRESSES, CHANGES
from models.named_network import network

CARD = loading.load_central("digits").card()


def profile(*capabilities: str) -> Profile:
    return Profile(
        "a", "h", "s", 1.0, 1, 1.0, 1, "onnxruntime 1.31", CARD, (), capabilities=capabilities
    )


def test_a_device_learns_what_its_trainer_lacks_and_how_to_join() -> None:
    why = explain_lacking_capabilities(profile(*CAPABILITIES), {"hook:moon", "clip"}, "moon")
    assert "hook:moon" in why
    assert "onnxruntime 1.31" in why
    assert "--trainer pytorch" in why
    assert "clip" not in why
    assert "method" not in why
    assert "graphs" not in why
    with_graphs = explain_lacking_capabilities(profile("graphs"), {"hook:moon"}, "moon")
    assert "Training graphs cannot replace this hook" in with_graphs


def test_a_client_of_another_project_learns_what_to_support() -> None:
    lacks = explain_lacking_capabilities(profile(), {"clip"}, "fedavg")
    codec = explain_lacking_codec(profile(), "int8-zstd")
    for why, remedy in ((lacks, "extra 'train'"), (codec, "extra 'zstd'")):
        own, other = why.index("With edge-agent"), why.index("Another client must support it")
        assert own < why.index(remedy) < other


def test_a_device_learns_how_to_get_an_external_method() -> None:
    own, packaged = (
        explain_lacking_capabilities(profile(), {"hook:toy"}, name) for name in ("my:toy", "toy")
    )
    assert "hook:toy" in own
    assert "--method my:toy if you trust" in own
    assert "install the package that adds the method 'toy'" in packaged
    able = replace(profile(), runtime="torch 2.13 cpu")
    why = explain_lacking_capabilities(able, {"hook:toy"}, "my:toy")
    assert "--trainer" not in why, "it has PyTorch already"
    assert "join with --method my:toy" in why


def test_a_trainer_with_every_needed_capability_is_not_refused() -> None:
    assert explain_lacking_capabilities(profile("clip", "masked"), {"clip"}, "moon") == ""
    assert explain_lacking_capabilities(profile(), frozenset(), "moon") == ""


def test_graphs_replace_the_code_of_a_loss() -> None:
    made, loss = network("mlp", CARD.inputs, CARD.outputs, CARD), frozenset({"hook:depthfl"})
    exported, only = Eligibility(Config(), made, loss, loss), Eligibility(Config(), made, loss)
    assert exported.explain_refusal(profile("graphs")) == ""
    assert "hook:depthfl" in exported.explain_refusal(profile("clip"))
    assert "hook:depthfl" in only.explain_refusal(profile("graphs"))


def test_a_device_learns_how_to_get_a_codec() -> None:
    assert explain_lacking_codec(profile(), "raw") == ""
    assert "join with --codec my:CODEC if you trust" in explain_lacking_codec(profile(), "my:CODEC")
    assert "package" in explain_lacking_codec(profile(), "toy")
    assert "extra 'zstd'" in explain_lacking_codec(profile(), "int8-zstd")


def test_an_agent_of_the_previous_protocol_is_refused_only_by_a_run_that_needs_more() -> None:
    made = network("mlp", CARD.inputs, CARD.outputs, CARD)
    plain = Eligibility(Config(), made)
    http = Eligibility(Config(http=Http(listen="127.0.0.1:0")), made)
    for number in (3, ADDRESSES, ADDRESSES + 1):
        device = replace(profile(), protocol=number)
        assert plain.explain_refusal(device) == ""
        why = http.explain_refusal(device)
        assert ("needs protocol 4, and this device speaks 3: upgrade" in why) == (number == 3)


def test_an_agent_of_the_previous_protocol_must_not_use_codecs_that_changed_since() -> None:
    older, able = (replace(profile(), protocol=number) for number in (CHANGES - 1, CHANGES))
    assert "speaks 3: upgrade" in explain_older_codec(older, "int8")
    assert explain_older_codec(older, "raw") == explain_older_codec(able, "int8") == ""
