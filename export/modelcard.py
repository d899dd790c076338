"""What a release says of itself to people: a model card in Markdown, made of what its manifest
holds and of nothing else. No torch here.
"""

from __future__ import annotations

from collections.abc import Sequence

from export.bundle import Bundle, Entry, Variant, files, usable

__all__ = ["NAME", "text"]

NAME = "MODEL.md"
ANSWERS = {
    "class": "one of {outputs} classes",
    "value": "{outputs} values",
    "next": "the next token of a text, of a vocabulary of {outputs}",
    "masked": "the hidden tokens of a text, of a vocabulary of {outputs}",
}
SCORES = {
    "class": "accuracy",
    "value": "R2",
    "next": "accuracy of tokens",
    "masked": "accuracy of tokens",
}


def text(bundle: Bundle) -> str:
    """The card of a release."""
    parts = [
        _what(bundle),
        _inputs(bundle),
        _variants(bundle),
        _measured(bundle),
        _use(bundle),
        _files(bundle),
    ]
    return "\n\n".join([f"# {bundle.run}, round {bundle.round}", *parts]) + "\n"


def _what(bundle: Bundle) -> str:
    says = ANSWERS[bundle.objective].format(outputs=bundle.outputs)
    several = (
        f"{len(bundle.submodels)} submodels of one network, each a part of the next larger ones"
        if len(bundle.submodels) > 1
        else "One network"
    )
    facts = "".join(f"\n- {name}: {value}" for name, value in bundle.about.items())
    return (
        f"{several}, learned by a federation of devices whose data did not leave them. Answers "
        f"{says}.\n\n- run: {bundle.run}{facts}"
    ).rstrip()


def _inputs(bundle: Bundle) -> str:
    shape = ", ".join(map(str, bundle.inputs))
    lines = [
        f"Raw examples, {bundle.dtype} [batch, {shape}], as the devices hold them. What "
        "else is needed is inside the graphs:"
    ]
    shown = {name: value for name, value in bundle.preprocessing.items() if name != "inside"}
    lines += [f"- {name}: {_numbers(value)}" for name, value in shown.items()] or ["- nothing"]
    if bundle.classes:
        lines += [
            "",
            "Classes: " + ", ".join(f"{i} {name}" for i, name in enumerate(bundle.classes)) + ".",
        ]
    elif bundle.objective == "class":
        lines += [
            "",
            f"Classes are numbers, 0 to {bundle.outputs - 1}: the data have no names for them.",
        ]
    return "\n".join(["## Inputs and answers", "", *lines])


def _variants(bundle: Bundle) -> str:
    score = SCORES[bundle.objective] if bundle.labelled else "answers as in PyTorch"
    rows = [
        f"| submodel | parameters | MACs | graph | size | {score} | beside fp32 | "
        "largest difference |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for entry in bundle.submodels:
        rows += [_row(bundle, entry, variant) for variant in entry.variants]
    absent = [
        f"- {entry.submodel} has no {why}" for entry in bundle.submodels for why in entry.absent
    ]
    missing = [entry.submodel for entry in bundle.submodels if entry.trained_updates == 0]
    these = "it" if len(missing) == 1 else "them"
    why = (
        f"No device trained {these} as a whole, only parts inside other submodels: trust the "
        "measured accuracy only."
    )
    marks = [f"Not trained: {', '.join(missing)}. {why}"]
    return "\n".join(
        [
            "## Submodels",
            "",
            *rows,
            *(["", *absent] if absent else []),
            *(["", *marks] if missing else []),
        ]
    )


def _row(bundle: Bundle, entry: Entry, variant: Variant) -> str:
    first = entry.variants[0]
    scores = [
        v.accuracy if bundle.labelled and v.accuracy is not None else v.agreement
        for v in (variant, first)
    ]
    beside = "" if variant is first else f"{scores[0] - scores[1]:+.4f}"
    size = f"{variant.file.size / 1e3:,.0f} kB"
    counts = f"{entry.parameters:,} | {entry.macs:,}"
    return (
        f"| {entry.label} | {counts} | {variant.kind} | {size} | {scores[0]:.4f} | {beside} | "
        f"{variant.max_abs_diff:.2g} |"
    )


def _measured(bundle: Bundle) -> str:
    known = (
        "labelled examples"
        if bundle.labelled
        else "examples without labels, so that no accuracy is known"
    )
    lines = [
        f"Each graph was run on {bundle.examples} real {known} and compared with "
        "PyTorch; the largest difference is of any number of its output.",
    ]
    if any(len(entry.variants) > 1 for entry in bundle.submodels):
        lines.append(
            f"The ranges of int8 were found on {bundle.calibrated} other examples. A "
            "device takes the fastest graph that loses a point at most."
        )
    lines.append(
        "Not measured here: latency, which each device measures for itself; how right "
        "it is on data of another kind than the run's; "
        "whether it treats groups of people alike."
    )
    return "\n".join(["## What was measured, and what not", "", *lines])


def _use(bundle: Bundle) -> str:
    return "\n".join(
        [
            "## Use",
            "",
            "```",
            f"edge-agent infer --model . --submodel {usable(bundle)[-1].submodel} INPUTS",
            "```",
        ]
    )


def _files(bundle: Bundle) -> str:
    rows = [f"{file.sha256}  {file.name}" for file in files(bundle)]
    return "\n".join(["## Files (sha256)", "", "```", *rows, "```"])


def _numbers(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        shown = [f"{number:g}" for number in value[:8]]
        return ", ".join([*shown, f"... ({len(value)})"] if len(value) > 8 else shown)
    return str(value)
