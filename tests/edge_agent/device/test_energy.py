"""Energy is read from recorded file trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.device.energy import Meter, TrainingEnergy, read_counters, read_watts


def rapl(root: Path, zone: str, used: int) -> None:
    folder = root / "sys/class/powercap" / zone
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "energy_uj").write_text(f"{used}\n")
    (folder / "max_energy_range_uj").write_text("10000000\n")


def ina(root: Path, chip: int, **files: object) -> None:
    folder = root / f"sys/class/hwmon/hwmon{chip}"
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name).write_text(f"{value}\n")


def test_machine_without_counters_has_no_energy(tmp_path: Path) -> None:
    with Meter(tmp_path) as meter:
        pass
    assert meter.joules is None
    assert read_counters(tmp_path) == {}
    assert read_watts(tmp_path) is None


def test_packages_are_summed_without_their_parts(tmp_path: Path) -> None:
    for zone in ("intel-rapl:0", "intel-rapl:0:0", "intel-rapl:1"):
        rapl(tmp_path, zone, 1_000_000)
    with Meter(tmp_path) as meter:
        for zone in ("intel-rapl:0", "intel-rapl:0:0", "intel-rapl:1"):
            rapl(tmp_path, zone, 3_500_000)
    assert meter.joules == pytest.approx(5.0)


def test_wrapped_counter_is_handled(tmp_path: Path) -> None:
    rapl(tmp_path, "intel-rapl:0", 9_000_000)
    with Meter(tmp_path) as meter:
        rapl(tmp_path, "intel-rapl:0", 500_000)
    assert meter.joules == pytest.approx(1.5)


def test_sensor_reports_microwatts(tmp_path: Path) -> None:
    ina(tmp_path, 0, name="ina219", power1_input=2_500_000)
    ina(tmp_path, 1, name="coretemp", temp1_input=50_000)
    assert read_watts(tmp_path) == pytest.approx(2.5)


def test_main_rail_of_jetson_counts_without_its_parts(tmp_path: Path) -> None:
    ina(
        tmp_path,
        3,
        name="ina3221",
        in1_label="VDD_IN",
        in1_input=5000,
        curr1_input=1200,
        in2_label="VDD_CPU",
        in2_input=5000,
        curr2_input=400,
    )
    assert read_watts(tmp_path) == pytest.approx(6.0)


def test_sensor_power_is_integrated_over_time(tmp_path: Path) -> None:
    ina(tmp_path, 0, name="ina226", power1_input=4_000_000)
    with Meter(tmp_path) as meter:
        meter._stop.wait(0.25)
    assert meter.joules is not None
    assert meter.joules >= 4 * 0.25


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def spend(energy: TrainingEnergy, clock: Clock, seconds: float, *, training: bool) -> None:
    """Let time pass, in which the agent trains or not."""
    energy.update(training=training)
    clock.now += seconds
    energy.update(training=False)


def test_only_the_energy_of_training_counts(tmp_path: Path) -> None:
    clock = Clock()
    energy = TrainingEnergy(6.0, root=tmp_path, clock=clock)
    for training in (False, True, False, True):
        spend(energy, clock, 10, training=training)
    assert energy.count() == 120


def test_counters_measure_the_energy_of_training(tmp_path: Path) -> None:
    rapl(tmp_path, "intel-rapl:0", 9_000_000)
    clock = Clock()
    energy = TrainingEnergy(root=tmp_path, clock=clock)
    energy.update(training=True)
    rapl(tmp_path, "intel-rapl:0", 2_000_000)  # it wrapped at 10 J
    clock.now += 1
    energy.update(training=False)
    rapl(tmp_path, "intel-rapl:0", 5_000_000)
    clock.now += 1
    energy.update(training=False)
    assert energy.count() == 3


def test_a_boards_sensors_measure_the_energy_of_training(tmp_path: Path) -> None:
    ina(tmp_path, 0, name="ina3221", in1_label="VDD_IN", in1_input=5000, curr1_input=800)
    clock = Clock()
    energy = TrainingEnergy(root=tmp_path, clock=clock)
    spend(energy, clock, 2.5, training=True)
    assert energy.count() == 10
    (tmp_path / "sys/class/hwmon/hwmon0/name").write_text("gone")
    spend(energy, clock, 2.5, training=True)
    with pytest.raises(OSError, match="no power sensor"):
        energy.count()


def test_the_energy_of_a_gpu_is_unknown_to_the_counters_of_processors(tmp_path: Path) -> None:
    rapl(tmp_path, "intel-rapl:0", 1)
    assert TrainingEnergy(root=tmp_path).known
    assert not TrainingEnergy(root=tmp_path, gpu=True).known
    assert TrainingEnergy(250.0, root=tmp_path, gpu=True).known
