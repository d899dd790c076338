"""The timeline follows each task from the weights to its outcome."""

from __future__ import annotations

from coordinator.observe.event_readers.task_courses import TaskCourses
from coordinator.observe.now_json import TaskCourse
from coordinator.round import round_events as on
from tests.support.round_state_machine import SUBMODEL, Machine, task


def list_stages(courses: TaskCourses, machine: Machine) -> list[tuple[tuple[str, float], ...]]:
    return [course.stages for course in courses.describe(machine.round, 10)]


def test_a_task_goes_through_all_stages_in_the_phase_s_own_seconds() -> None:
    machine, courses = Machine(agents="ab"), TaskCourses()
    machine.wait(20.0)
    machine.begin("ab")
    assert list_stages(courses, machine) == [(("fetch", 0.0),)] * 2
    machine.now += 2.0
    machine.beat("b", 1)
    courses.note(machine.round, "b")
    machine.now += 3.0
    machine.see(on.ChunkCame(machine.now, task("b").key))
    courses.note(machine.round, "b")
    machine.now += 1.0
    machine.arrive("b")
    courses.note(machine.round, "b")
    machine.now += 4.0
    machine.arrive("a")  # which comes first in the order of folding
    a, b = list_stages(courses, machine)
    assert a == (("fetch", 0.0), ("folded", 10.0))
    assert b == (("fetch", 0.0), ("train", 2.0), ("send", 5.0), ("wait", 6.0), ("folded", 10.0))


def test_an_absence_a_failure_and_the_end_of_the_lease_are_shown() -> None:
    machine, courses = Machine(agents="abc").begin("abc"), TaskCourses()
    open_one = courses.describe(machine.round, 10)[0]
    assert open_one == TaskCourse("a", SUBMODEL.name, (("fetch", 0.0),), 60.0)
    machine.now += 1.0
    machine.leave("a")
    courses.note(machine.round, "a")
    machine.now += 1.0
    machine.beat("a")
    courses.note(machine.round, "a")
    machine.see(on.TaskFailed(machine.now, task("b").key, 1, "out of memory"))
    lost, failed, _ = courses.describe(machine.round, 10)
    assert lost.stages == (("fetch", 0.0), ("lost", 1.0), ("train", 2.0))
    assert (failed.stages, failed.due) == ((("fetch", 0.0), ("failed", 2.0)), None)
    for step in range(6):  # only c makes progress
        machine.now += 20.0
        machine.beat("a")
        machine.beat("c", step)
        machine.wait(0.0)
    late, _, working = courses.describe(machine.round, 10)
    assert (late.late, late.stages[-1][0], working.late) == (True, "train", False)


def test_only_the_tasks_of_the_phase_are_kept_and_at_most_so_many_shown() -> None:
    machine, courses = Machine(agents="abc").begin("ab"), TaskCourses()
    assert len(courses.describe(machine.round, 1)) == 1
    machine.arrive("ab")
    machine.begin("c")
    assert [course.agent for course in courses.describe(machine.round, 10)] == ["c"]
    assert [course.agent for course in courses.describe(Machine().round, 10)] == []
