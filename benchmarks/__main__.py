"""`python -m benchmarks NAME [--format json]`: list all benchmarks, and run one. A benchmark is
imported only when it runs.
"""

from __future__ import annotations

import click

from federated.runtime.console import LazyCommand, LazyGroup

__all__ = ["main"]

COMMANDS = {
    "aggregation": LazyCommand(
        "benchmarks.aggregation.command:command",
        "Compare the speed of aggregation with other projects.",
    ),
    "analyse": LazyCommand(
        "benchmarks.analyses.command:command",
        "Analyse the networks of a run as a paper does.",
    ),
    "async": LazyCommand(
        "benchmarks.asynchrony:command", "Compare synchronous and buffered rounds."
    ),
    "attacks": LazyCommand(
        "benchmarks.attacks.command:command", "Attack runs, and check that they survive."
    ),
    "bitflips": LazyCommand(
        "benchmarks.bitflips.command:command",
        "Flip bits in the files of an interrupted run, and resume it.",
    ),
    "broker": LazyCommand(
        "benchmarks.broker_memory:command", "Measure a broker that distributes weights."
    ),
    "capacity": LazyCommand(
        "benchmarks.capacity.command:command",
        "Estimate what a large fleet needs, from results of scale.",
    ),
    "codec": LazyCommand(
        "benchmarks.weight_encoding.command:command",
        "Time each encoding of weights, and count its bytes.",
    ),
    "codec-accuracy": LazyCommand(
        "benchmarks.weight_encoding.accuracy:command",
        "Compare the accuracy of runs with each codec.",
    ),
    "core": LazyCommand(
        "benchmarks.event_processing:command",
        "Measure how fast the coordinator processes an event.",
    ),
    "docs": LazyCommand(
        "benchmarks.generated_docs.command:command",
        "Update the generated tables of the documentation.",
    ),
    "faults": LazyCommand(
        "benchmarks.faults.command:command",
        "Inject faults into a fleet, and check that it recovers.",
    ),
    "floods": LazyCommand(
        "benchmarks.floods.command:command",
        "Flood a run with requests, and measure how it slows down.",
    ),
    "fuzz": LazyCommand(
        "benchmarks.fuzzing.command:command", "Test every decoder with a coverage-guided fuzzer."
    ),
    "inference": LazyCommand(
        "benchmarks.inference:command", "Time inference with exported networks and with PyTorch."
    ),
    "mixed": LazyCommand(
        "benchmarks.training_graphs.mixed_run:command",
        "Train in one run with and without PyTorch.",
    ),
    "networks": LazyCommand(
        "benchmarks.library_networks:command",
        "Try networks of torchvision and timm.",
    ),
    "pacing": LazyCommand(
        "benchmarks.speed_based_assignment:command", "Train on four agents of unequal speed."
    ),
    "page": LazyCommand(
        "benchmarks.web_page.command:command",
        "Measure the web page of a large fleet, or take pictures.",
    ),
    "predict": LazyCommand(
        "benchmarks.cost_prediction.command:command",
        "Compare predicted with measured training steps.",
    ),
    "reproduce": LazyCommand(
        "benchmarks.reproduction.command:command",
        "Run the experiment of a paper's table.",
    ),
    "round": LazyCommand("benchmarks.round.command:command", "Time rounds without training."),
    "scale": LazyCommand("benchmarks.scale:command", "Connect many agents to one coordinator."),
    "schedules": LazyCommand(
        "benchmarks.fault_schedules.command:command", "Simulate fleets with random faults."
    ),
    "simulation": LazyCommand(
        "benchmarks.simulation.command:command",
        "Compare the speed of simulation with other projects.",
    ),
    "startup": LazyCommand(
        "benchmarks.startup.command:command", "Measure how long commands take to start."
    ),
    "training": LazyCommand(
        "benchmarks.training_steps:command", "Time training steps of submodels."
    ),
    "trainstep": LazyCommand(
        "benchmarks.training_graphs.command:command",
        "Compare training steps as ONNX graphs with PyTorch.",
    ),
    "web": LazyCommand(
        "benchmarks.phones.command:command",
        "Train digits in two browsers and with two PyTorch agents.",
    ),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Run a benchmark on this machine."""


if __name__ == "__main__":
    main()
