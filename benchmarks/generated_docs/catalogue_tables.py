"""Write the documentation's tables of everything that has a name: data sets, robust rules, codecs,
model families and event readers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator

from benchmarks.generated_docs.markdown_table import render_table
from coordinator.broker.broker_profiles import PROFILES
from coordinator.observe.event_readers.catalogue import READERS, list_optional
from federated.data.catalogue import DATASETS
from federated.engine.robust.catalogue import RULES
from federated.wire.codecs.catalogue import CODECS
from models.families.catalogue import FAMILIES
from models.family import Family

__all__ = [
    "list_codecs",
    "list_data",
    "list_families",
    "list_layouts",
    "list_profiles",
    "list_readers",
    "list_rules",
]


def list_data() -> Iterator[str]:
    rows = ((f"`{name}`", one.about, one.held) for name, one in DATASETS.items())
    return render_table(("`--data`", "contents", "held out"), rows)


def list_rules() -> Iterator[str]:
    heads = (
        "`robust.rule`",
        "result",
        "unit of comparison",
        "updates required for f = 1, 2, 3",
        "updates kept on disk until the round ends",
    )
    rows = (
        (
            f"`{name}`",
            rule.help,
            rule.compares,
            ", ".join(str(rule.needed(f)) for f in (1, 2, 3)),
            "those of the first round" if rule.limits_norm else "all",
        )
        for name, rule in RULES.items()
    )
    return render_table(heads, rows)


def list_codecs() -> Iterator[str]:
    rows = ((f"`{name}`", one.help, f"{one.size(10**6):,}") for name, one in CODECS.items())
    return render_table(
        ("`wire.codec`", "encoding", "bytes per million weights, uncompressed"), rows
    )


def list_layouts() -> Iterator[str]:
    rows = ((f"`{name}`", one.layout) for name, one in CODECS.items())
    return render_table(("`codec`", "tensors of a trained update"), rows)


def list_families() -> Iterator[str]:
    heads = ("family", "presets (the first is the default)", "torchvision's weights", "use")
    rows = (
        (
            f"`{name}`",
            quote(list_presets(known)),
            quote(known.torchvision.names if known.torchvision else ()),
            known.help,
        )
        for name, known in FAMILIES.items()
    )
    return render_table(heads, rows)


def list_profiles() -> Iterator[str]:
    """Yield the table of the limits of brokers. A limit that is not documented is empty."""
    heads = (
        "`broker.profile`",
        "broker",
        "slashes in a topic",
        "bytes of a message",
        "queue of a client, messages",
        "of a connection, per second",
        "lost session kept, s",
        "retained messages may not reach",
    )
    rows = (
        (
            f"`{name}`",
            f"{one.name} ({', '.join(f'[{i}]({url})' for i, url in enumerate(one.sources, 1))})",
            *map(format_limit, (one.slashes, one.payload, one.queue)),
            f"{one.messages} messages, {one.throughput:,} bytes" if one.messages else "",
            format_limit(one.session),
            ", ".join(
                [
                    *([] if one.wildcards else ["subscriptions with wildcards"]),
                    *([] if one.shared else ["other nodes of a cluster"]),
                ]
            ),
        )
        for name, one in PROFILES.items()
    )
    return render_table(heads, rows)


def format_limit(limit: int | None) -> str:
    return "" if limit is None else f"{limit:,}"


def list_presets(known: Family) -> list[str]:
    """Return the names of a family's presets, its default first."""
    return sorted(known.presets, key=lambda name: name != known.default)


def quote(names: Iterable[str]) -> str:
    """Return names as code, in one cell."""
    return " ".join(f"`{name}`" for name in names)


def list_readers() -> Iterator[str]:
    """Yield the table of the readers that `observe.readers` adds, with the first lines of their
    files.
    """
    rows = ((f"`{name}`", describe_file(READERS[name])) for name in list_optional())
    return render_table(("`observe.readers`", "what it does"), rows)


def describe_file(member: Callable[..., object]) -> str:
    """Return the first sentence of the file that defines a function."""
    text = sys.modules[member.__module__].__doc__ or ""
    return " ".join(text.partition("\n\n")[0].split()).removesuffix(".")
