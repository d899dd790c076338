"""Topics that are built can be parsed, and no name can change a topic's meaning."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federated.errors import UsageError
from federated.wire import topics
from federated.wire.topics import Place

MADE = {
    "fl/v1/r/run": (topics.run("r"), Place("run", "r")),
    "fl/v1/r/agent/a/status": (topics.status("r", "a"), Place("status", "r", "a")),
    "fl/v1/r/agent/a/profile": (topics.profile("r", "a"), Place("profile", "r", "a")),
    "fl/v1/r/agent/a/hb": (topics.heartbeat("r", "a"), Place("hb", "r", "a")),
    "fl/v1/r/agent/a/say": (topics.say("r", "a"), Place("say", "r", "a")),
    "fl/v1/r/agent/a/probe": (topics.probe("r", "a"), Place("probe", "r", "a")),
    "fl/v1/r/infer/a/ask/7": (topics.ask("r", "a", "7"), Place("ask", "r", "a", question="7")),
    "fl/v1/r/infer/a/answer/7": (
        topics.answer("r", "a", "7"),
        Place("answer", "r", "a", question="7"),
    ),
    "fl/v1/r/agent/a/up/t,1/c/12": (
        topics.chunk(topics.upload("r", "a", "t.1"), 12),
        Place("chunk", "r", "a", "t.1", index=12, way="up"),
    ),
    "fl/v1/r/cmd/a": (topics.command("r", "a"), Place("cmd", "r", "a")),
    "fl/v1/r/cmd/all": (topics.everyone("r"), Place("cmd", "r", "all")),
    "fl/v1/r/model/v1/w0,5-d2@a/manifest": (
        topics.manifest(topics.model("r", "v1", "w0.5-d2@a")),
        Place("manifest", "r", version="v1", submodel="w0.5-d2@a", way="model"),
    ),
    "fl/v1/r/model/v1/w1/c/0": (
        topics.chunk(topics.model("r", "v1", "w1"), 0),
        Place("chunk", "r", version="v1", submodel="w1", index=0, way="model"),
    ),
    "fl/v1/r/release/software": (
        topics.release_card("r", "software"),
        Place("software", "r", way="release"),
    ),
    "fl/v1/r/agent/a/software": (
        topics.serving("r", "a", "software"),
        Place("software", "r", "a"),
    ),
    "fl/v1/r/release/card": (topics.release_card("r"), Place("card", "r", way="release")),
    "fl/v1/r/release/00ff00ff00ff/w1,onnx/manifest": (
        topics.manifest(topics.release("r", "00ff00ff00ff", "w1.onnx")),
        Place("manifest", "r", version="00ff00ff00ff", file="w1.onnx", way="release"),
    ),
    "fl/v1/r/release/00ff00ff00ff/w1,onnx/c/3": (
        topics.chunk(topics.release("r", "00ff00ff00ff", "w1.onnx"), 3),
        Place("chunk", "r", version="00ff00ff00ff", file="w1.onnx", index=3, way="release"),
    ),
    "fl/v1/r/agent/a/release": (topics.serving("r", "a"), Place("release", "r", "a")),
}


@pytest.mark.parametrize("topic", MADE)
def test_topics_are_spelled_as_documented_and_parsed_back(topic: str) -> None:
    made, place = MADE[topic]
    assert made == topic
    assert topics.parse(made) == place


FOREIGN = [
    *(
        "",
        "fl/v1",
        "fl/v2/r/run",
        "fl/v1//run",
        "fl/v1/r",
        "fl/v1/r/run/x",
        "fl/v1/r r/run",
        "fl/v1/r\n/run",
    ),
    *(
        "fl/v1/r/agent//status",
        "fl/v1/r/agent/a/mood",
        "fl/v1/r/agent/all/status",
        "fl/v1/r/agent/a/up//c/1",
        "fl/v1/r/cmd/",
    ),
    *("fl/v1/r/model//w/manifest", "fl/v1/r/model/v//c/0", "fl/v1/r/release//card"),
    *(
        "fl/v1/r/release/x/card",
        "fl/v1/r/release/00FF00FF00FF/f/manifest",
        "fl/v1/r/release/00ff00ff00ff/../manifest",
        "fl/v1/r/agent/all/release",
    ),
    *(
        f"fl/v1/r/agent/a/up/t/c/{i}"
        for i in ("", "-1", "+1", "01", "1.0", "x", "\u0663", "1" * 11)
    ),
]


@pytest.mark.parametrize("topic", FOREIGN)
def test_a_foreign_topic_is_not_parsed(topic: str) -> None:
    assert topics.parse(topic) is None


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "+", "#", "$SYS", "a b", "a\n", "é", "x" * 65]
)
@pytest.mark.parametrize(
    "make",
    [
        topics.run,
        lambda n: topics.status(n, "a"),
        lambda n: topics.status("r", n),
        lambda n: topics.command("r", n),
        lambda n: topics.model("r", n, "w"),
        lambda n: topics.model("r", "v", n + "/"),
        lambda n: topics.release("r", "00ff00ff00ff", n + "/"),
        lambda n: topics.release(n, "00ff00ff00ff", "f"),
        lambda n: topics.serving("r", n + "/"),
        lambda n: topics.upload("r", "a", n + "/"),
        topics.agent_patterns.__get__("r"),
        topics.coordinator_patterns,
    ],
)
def test_an_invalid_name_is_a_usage_error(make: Callable[[str], object], name: str) -> None:
    with pytest.raises(UsageError, match="name: expected"):
        make(name)


def test_no_agent_may_be_named_all() -> None:
    with pytest.raises(UsageError, match="not 'all'"):
        topics.command("r", "all")


def test_each_side_subscribes_only_to_its_own_topics() -> None:
    agent, coordinator = topics.agent_patterns("r", "a"), topics.coordinator_patterns("r")

    def list_topics(patterns: tuple[str, ...]) -> set[str]:
        return {t for t in MADE if any(topics.matches(p, t) for p in patterns)}

    assert list_topics(agent) == {
        "fl/v1/r/run",
        "fl/v1/r/cmd/a",
        "fl/v1/r/cmd/all",
        "fl/v1/r/agent/a/status",
    }
    assert list_topics(coordinator) == {
        "fl/v1/r/run",
        *(f"fl/v1/r/agent/a/{x}" for x in ("status", "profile", "hb", "say", "up/t,1/c/12")),
    }
    assert list_topics((topics.any_run(),)) == {"fl/v1/r/run"}
    assert list_topics((topics.release_card("+"),)) == {"fl/v1/r/release/card"}
    assert list_topics((topics.release_manifests("r"),)) == {
        "fl/v1/r/release/00ff00ff00ff/w1,onnx/manifest"
    }
    assert list_topics((topics.serving("r", "+"),)) == {"fl/v1/r/agent/a/release"}


def test_a_version_is_a_digest_and_a_file_is_not_a_path() -> None:
    with pytest.raises(UsageError, match=r"12 hexadecimal digits, found '\.\./etc'"):
        topics.release("r", "../etc", "f")
    with pytest.raises(UsageError, match=r"not '\.' as the first character; found '\.\.'"):
        topics.release("r", "00ff00ff00ff", "..")


@pytest.mark.parametrize(
    ("pattern", "topic", "expected"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/b/c", False),
        ("a/b/c", "a/b", False),
        ("a/+", "a/b", True),
        ("a/+", "a", False),
        ("a/+", "a/", True),
        ("+", "a/b", False),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("a/#", "ab", False),
        ("#", "a/b", True),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/#", "$SYS/x", True),
        ("+/+", "/a", True),
    ],
)
def test_wildcards_match_as_mqtt_says(pattern: str, topic: str, expected: bool) -> None:
    """MQTT 5, section 4.7.1."""
    assert topics.matches(pattern, topic) is expected


@given(st.text(alphabet="abc/+#$", max_size=12))
def test_a_topic_without_wildcards_matches_itself_and_only_itself(topic: str) -> None:
    plain = topic.replace("+", "a").replace("#", "b")
    assert topics.matches(plain, plain)
    assert not topics.matches(plain, plain + "x")
