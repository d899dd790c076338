"""Write a release's model card in Markdown from its manifest alone. Does not import torch."""

from __future__ import annotations

from collections.abc import Sequence

from export.onnx_session import NO_ROUND
from export.release_reader import Bundle, Entry, Variant, list_files, recommended_entries

__all__ = ["NAME", "render_card"]

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


def render_card(bundle: Bundle) -> str:
    """Return the model card of a release."""
    parts = [
        _render_summary(bundle),
        _render_inputs(bundle),
        _render_variants(bundle),
        _render_measurements(bundle),
        _render_usage(bundle),
        _render_files(bundle),
    ]
    title = bundle.run if bundle.round == NO_ROUND else f"{bundle.run}, round {bundle.round}"
    return "\n\n".join([f"# {title}", *parts]) + "\n"


def _render_summary(bundle: Bundle) -> str:
    says = ANSWERS[bundle.objective].format(outputs=bundle.outputs)
    several = (
        f"{len(bundle.submodels)} submodels of one network, each a part of the next larger ones"
        if len(bundle.submodels) > 1
        else "One network"
    )
    facts = "".join(f"\n- {name}: {value}" for name, value in bundle.about.items())
    if bundle.round == NO_ROUND:
        return f"{several}, exported from Python without a run. Predicts {says}.\n{facts}".rstrip()
    return (
        f"{several}, trained with federated learning: the training data never left the devices. "
        f"Predicts {says}.\n\n- run: {bundle.run}{facts}"
    ).rstrip()


def _render_inputs(bundle: Bundle) -> str:
    shape = ", ".join(map(str, bundle.inputs))
    place = "" if bundle.round == NO_ROUND else ", as stored on the devices"
    lines = [
        f"Raw examples, {bundle.dtype} [batch, {shape}]{place}. The graphs include all "
        "preprocessing:"
    ]
    shown = {name: value for name, value in bundle.preprocessing.items() if name != "inside"}
    lines += [f"- {name}: {_render_numbers(value)}" for name, value in shown.items()] or [
        "- nothing"
    ]
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


def _render_variants(bundle: Bundle) -> str:
    score = SCORES[bundle.objective] if bundle.labelled else "answers as in PyTorch"
    rows = [
        f"| submodel | parameters | MACs | graph | size | {score} | difference from fp32 | "
        "largest difference |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for entry in bundle.submodels:
        rows += [_render_row(bundle, entry, variant) for variant in entry.variants]
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


def _render_row(bundle: Bundle, entry: Entry, variant: Variant) -> str:
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


def _render_measurements(bundle: Bundle) -> str:
    known = (
        "labelled examples"
        if bundle.labelled
        else "examples without labels, so the accuracy is unknown"
    )
    lines = [
        f"Each graph was run on {bundle.examples} real {known} and compared with "
        "PyTorch; the largest difference is over all numbers of the outputs.",
    ]
    if any(len(entry.variants) > 1 for entry in bundle.submodels):
        lines.append(
            f"The ranges of int8 were found on {bundle.calibrated} other examples. A "
            "device uses the fastest graph that loses at most one point of accuracy."
        )
    lines.append(
        "Not measured here: latency, which each device measures itself; accuracy on data unlike "
        "the run's; fairness between groups of people."
    )
    return "\n".join(["## Measurements and limits", "", *lines])


def _render_usage(bundle: Bundle) -> str:
    submodel = recommended_entries(bundle)[-1].submodel
    return "\n".join(
        [
            "## Use",
            "",
            "```",
            f"edge-agent infer --model . --submodel {submodel} INPUTS",
            "```",
        ]
    )


def _render_files(bundle: Bundle) -> str:
    rows = [f"{file.sha256}  {file.name}" for file in list_files(bundle)]
    return "\n".join(["## Files (sha256)", "", "```", *rows, "```"])


def _render_numbers(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        shown = [f"{number:g}" for number in value[:8]]
        return ", ".join([*shown, f"... ({len(value)})"] if len(value) > 8 else shown)
    return str(value)
