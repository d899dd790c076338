"""Read and write the JSON file of a device's measurements, which `edge-agent profile` makes and
`coordinator assign` uses. Torch-free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from federated.decoding_errors import describe_decoding_error
from federated.errors import ConfigError, WireError, explain_os_errors
from federated.runtime import atomic_files
from federated.task import LONGEST, SHORTEST, Profile, Timing
from federated.wire import envelope

__all__ = [
    "FORMAT",
    "RUNTIMES",
    "Calibration",
    "Circumstances",
    "Sheet",
    "read",
    "select_profile",
    "write",
]

FORMAT = 1  # of the file; others are rejected
LARGEST = 1 << 24  # bytes of the largest valid file

Runtime = Literal["torch", "onnx"]
RUNTIMES: tuple[str, ...] = get_args(Runtime)


@dataclass(frozen=True)
class Calibration:
    """Timings of a few submodels of a family with one runtime.

    family: their network family.
    runtime: the library that computed.
    work: "train" for a training step, "infer" for an inference of a batch.
    threads: number of threads.
    timings: one per submodel and batch size.
    """

    family: str
    runtime: Runtime
    work: Literal["train", "infer"]
    threads: int
    timings: tuple[Timing, ...]


@dataclass(frozen=True)
class Circumstances:
    """The circumstances of a measurement; None: unknown.

    celsius: the hottest sensor afterwards.
    mhz: the fastest processor afterwards.
    throttled: whether the device throttled at any time.
    busy: fraction of the processors that other processes used; 0 if unknown.
    """

    celsius: float | None = None
    mhz: float | None = None
    throttled: bool | None = None
    busy: float = 0.0


@dataclass(frozen=True)
class Sheet:
    """A device's measurements of itself.

    profile: the profile that an agent would publish, without timings (see `select_profile`). uplink
        and chunk are 0 if no broker was given.
    calibrations: timings.
    circumstances: of the measurement.
    versions: of the software that the timings depend on, by name.
    limit_cpus: processors that the owner allowed; None: all.
    limit_memory: bytes that the owner allowed; None: all.
    taken: time of the measurement, ISO 8601 in UTC.
    """

    profile: Profile
    calibrations: tuple[Calibration, ...]
    circumstances: Circumstances = field(default_factory=Circumstances)
    versions: Mapping[str, str] = field(default_factory=dict)
    limit_cpus: float | None = None
    limit_memory: int | None = None
    taken: str = ""


def write(sheet: Sheet, path: Path) -> None:
    """Write a sheet atomically. Raises ConfigError if the file cannot be written."""
    with explain_os_errors(ConfigError, f"{path}: cannot be written"):
        atomic_files.write(
            path,
            msgspec.json.format(
                msgspec.json.encode({"format": FORMAT, **msgspec.to_builtins(sheet)}), indent=2
            )
            + b"\n",
        )


def read(path: Path, own: str = "") -> Sheet:
    """Read a sheet. own: the only network `module:function` that timings may name, since reading
    such a timing runs the network's code.

    Raises ConfigError for a file that is missing, malformed, of another format, or with invalid
    values.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
        found: Any = msgspec.json.decode(content) if len(content) <= LARGEST else None
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}; create it with: edge-agent profile --out "
            "FILE"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(
            f"{path}: not the JSON of edge-agent profile --out: {describe_decoding_error(error)}"
        ) from None
    if not isinstance(found, dict) or "format" not in found:
        raise ConfigError(
            f"{path}: expected the JSON of edge-agent profile --out, found no field 'format'"
        )
    if found["format"] != FORMAT:
        raise ConfigError(
            f"{path}: expected format {FORMAT}, found {str(found['format'])[:20]}: "
            "run edge-agent profile again with this version"
        )
    try:
        sheet = msgspec.convert(found, Sheet)
        _check(sheet, own)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{path}: not the JSON of edge-agent profile --out: {describe_decoding_error(error)}"
        ) from None
    except (WireError, ValueError, OverflowError) as error:
        raise ConfigError(f"{path}: {error}") from None
    return sheet


def select_profile(sheet: Sheet, family: str) -> Profile:
    """Return the profile with the timings of a family's training steps. If a submodel was timed
    with several numbers of threads, the fastest counts.

    Raises ConfigError for a family that was not timed; the message lists those that were.
    """
    trained = [calibration for calibration in sheet.calibrations if calibration.work == "train"]
    able = [
        timing
        for calibration in trained
        if calibration.family == family
        for timing in calibration.timings
    ]
    if not able:
        known = ", ".join(sorted({calibration.family for calibration in trained})) or "none"
        again = f"--model {family}" if ":" in family else f"--family {family}"
        raise ConfigError(
            f"{sheet.profile.agent}: no timings of '{family}', only of {known}; run "
            f"edge-agent profile {again} on that device"
        )
    slowest_first = sorted(able, key=lambda timing: -timing.seconds)
    return replace(
        sheet.profile,
        timings=tuple(
            {(timing.submodel, timing.batch): timing for timing in slowest_first}.values()
        ),
    )


def _check(sheet: Sheet, own: str) -> None:
    """Check rules that types cannot express. Raises WireError, ValueError."""
    envelope.decode(envelope.encode(sheet.profile))  # the checks of a coordinator
    _check_timings(sheet.profile.timings, own)
    for calibration in sheet.calibrations:
        what = f"calibration of '{calibration.family}'"
        if not calibration.timings or calibration.threads < 1:
            raise ValueError(
                f"{what}: expected timings with at least one thread, found "
                f"{len(calibration.timings)} with {calibration.threads}"
            )
        if odd := {timing.submodel.network.family for timing in calibration.timings} - {
            calibration.family
        }:
            raise ValueError(
                f"{what}: expected submodels of this family, found some of {', '.join(sorted(odd))}"
            )
        _check_timings(calibration.timings, own)


def _check_timings(timings: Sequence[Timing], own: str) -> None:
    for timing in timings:
        submodel = timing.submodel
        if timing.batch < 1 or not SHORTEST <= timing.seconds <= LONGEST:
            raise ValueError(
                f"{submodel.name}: expected a batch above 0 and between {SHORTEST:g} and "
                f"{LONGEST:g} seconds, found {timing.batch} and {timing.seconds:g}"
            )
        if ":" in submodel.network.family and submodel.network.family != own:
            raise ValueError(
                f"the file times the network '{submodel.network.family}', whose code would "
                "run here; if you trust it, name it with --model"
            )
