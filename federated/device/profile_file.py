"""What `edge-agent profile` writes and `coordinator assign` reads: one device, measured, as a JSON
file. No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from federated.errors import ConfigError, WireError
from federated.runtime import files
from federated.task import LONGEST, SHORTEST, Profile, Timing
from federated.wire import envelope

__all__ = [
    "FORMAT",
    "RUNTIMES",
    "Calibration",
    "Circumstances",
    "Runtime",
    "Sheet",
    "profile_of",
    "read",
    "write",
]

FORMAT = 1  # of the file; another one is refused
LARGEST = 1 << 24  # bytes of a file that can be a sheet

Runtime = Literal["torch", "onnx"]
RUNTIMES: tuple[str, ...] = get_args(Runtime)


@dataclass(frozen=True)
class Calibration:
    """How long a few submodels of a family took with one runtime: a training step, or the answer
    for a batch (infer).
    """

    family: str
    runtime: Runtime
    work: Literal["train", "infer"]
    threads: int
    timings: tuple[Timing, ...]


@dataclass(frozen=True)
class Circumstances:
    """Under which a measurement was taken; None: the device does not say.

    celsius, mhz: hottest sensor and fastest processor afterwards. throttled: at any time meanwhile.
    busy: share of the processors that others used; 0 also where the device does not say.
    """

    celsius: float | None = None
    mhz: float | None = None
    throttled: bool | None = None
    busy: float = 0.0


@dataclass(frozen=True)
class Sheet:
    """One device as it measured itself.

    profile: as an agent would introduce itself, timings apart (see `profile_of`). uplink and chunk
    are 0 where no broker was named. versions: of what the timings depend on, by name. limit_cpus,
    limit_memory: what the owner allowed, None: all. taken: when, as ISO 8601 in UTC.
    """

    profile: Profile
    calibrations: tuple[Calibration, ...]
    circumstances: Circumstances = field(default_factory=Circumstances)
    versions: Mapping[str, str] = field(default_factory=dict)
    limit_cpus: float | None = None
    limit_memory: int | None = None
    taken: str = ""


def write(sheet: Sheet, path: Path) -> None:
    """The sheet as a JSON file, whole or not at all. Raises ConfigError where it cannot be
    written.
    """
    try:
        files.write(
            path,
            msgspec.json.format(
                msgspec.json.encode({"format": FORMAT, **msgspec.to_builtins(sheet)}), indent=2
            )
            + b"\n",
        )
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error


def read(path: Path, own: str = "") -> Sheet:
    """The sheet of a file. own: the one network `module:function` that a timing may be of, since to
    look at it runs its code.

    Raises ConfigError for a file that is missing, no sheet, of another format, or whose values
    cannot be.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
        found: Any = msgspec.json.decode(content) if len(content) <= LARGEST else None
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}; edge-agent profile --out FILE writes one"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(
            f"{path}: expected the JSON of edge-agent profile --out, found {error}"
        ) from None
    if not isinstance(found, dict) or "format" not in found:
        raise ConfigError(
            f"{path}: expected the JSON of edge-agent profile --out, found something else"
        )
    if found["format"] != FORMAT:
        raise ConfigError(
            f"{path}: expected format {FORMAT}, found {str(found['format'])[:20]}: "
            "profile the device again with this version"
        )
    try:
        sheet = msgspec.convert(found, Sheet)
        _check(sheet, own)
    except (msgspec.ValidationError, WireError, ValueError, OverflowError) as error:
        raise ConfigError(f"{path}: {error}") from None
    return sheet


def profile_of(sheet: Sheet, family: str) -> Profile:
    """The profile with the times of a family's training steps; of a submodel timed with several
    numbers of threads, the least.

    Raises ConfigError for a family that was not calibrated; the message names those that were.
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
            f"{sheet.profile.agent}: '{family}' was not timed there, only {known}: run "
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
    """What types leave open. Raises WireError, ValueError."""
    envelope.decode(envelope.encode(sheet.profile))  # as a coordinator would take it
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
                f"{what}: expected submodels of it, found some of {', '.join(sorted(odd))}"
            )
        _check_timings(calibration.timings, own)


def _check_timings(timings: Sequence[Timing], own: str) -> None:
    for timing in timings:
        submodel = timing.submodel
        if not 0 < submodel.width <= 1 or submodel.branches < 1:
            raise ValueError(
                f"{submodel.name}: expected a width above 0 and up to 1 and at least "
                f"one branch, found {submodel.width:g}"
            )
        if timing.batch < 1 or not SHORTEST <= timing.seconds <= LONGEST:
            raise ValueError(
                f"{submodel.name}: expected a batch above 0 and seconds of {SHORTEST:g} "
                f"to {LONGEST:g}, found {timing.batch} and {timing.seconds:g}"
            )
        if ":" in submodel.network.family and submodel.network.family != own:
            raise ValueError(
                f"it times the network '{submodel.network.family}', whose code would "
                "run here: name it (--model) if you trust it"
            )
