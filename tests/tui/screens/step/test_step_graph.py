import pytest
from builders import make_budget

from vramtop.estimator.budget import Budget, Components, PhaseMark, Timeline
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.tui.draw.palette import COMPONENTS
from vramtop.tui.screens.step.step_graph import StepMemory, axis_rows, step_memory, step_rows, step_top_bytes


def step(levels, *, device=None, positions=None, end=None, phases=(("forward", 0),)) -> StepMemory:
    positions = tuple(positions or range(len(levels)))
    return StepMemory(
        positions=positions,
        end=end or positions[-1] + 1,
        levels=tuple(levels),
        device_bytes=device,
        phases=tuple(PhaseMark(name=name, event=event) for name, event in phases),
    )


LETTER_OF = {mark.colour: mark.letter for mark in COMPONENTS.values()}


def text(rows) -> list[str]:
    return ["".join(cell.char for cell in row) for row in rows]


def grounds(rows) -> list[str]:
    """The letter of the component whose colour each cell has."""
    return ["".join(LETTER_OF.get(cell.ground, " ") for cell in row) for row in rows]


def test_components_are_stacked_from_permanent_to_temporary():
    levels = [Components(weights=8, activations=8), Components(weights=8, activations=16, context=8)]
    assert grounds(step_rows(step(levels), width=2, height=4, top=32)) == [" A", " A", "AW", "WC"]


def test_a_cell_shared_by_two_components_is_split_or_given_to_the_larger():
    levels = [Components(weights=13, activations=7)]
    top, bottom = step_rows(step(levels), width=1, height=2, top=16 * 2)
    assert (bottom[0].char, bottom[0].colour) == ("▆", COMPONENTS["weights"].colour)
    assert bottom[0].ground == COMPONENTS["activations"].colour
    assert (top[0].char, top[0].colour, top[0].ground) == ("▂", COMPONENTS["activations"].colour, None)
    assert text(step_rows(step(levels), width=1, height=2, top=32, outlined=True)) == ["_", "W"]


def test_reserved_memory_and_gpu_size_are_lines():
    levels = [Components(weights=8)] * 3
    drawn = step_rows(step(levels, device=(8, 16, 24)), width=3, height=4, top=32, gpu_bytes=30)
    assert text(drawn) == ["═══", "  ─", " ─ ", "─W "]
    above = step_rows(step(levels, device=(8, 8, 8)), width=3, height=4, top=32, gpu_bytes=40)
    assert text(above) == ["   ", "   ", "   ", "───"]


def test_phases_start_at_their_ticks_and_the_peak_is_marked():
    levels = [Components(weights=1)] * 20 + [Components(weights=9)] + [Components(weights=1)] * 19
    phases = (("forward", 0), ("backward", 12), ("optimizer step", 36))
    marks, names = axis_rows(step(levels, phases=phases), width=40)
    assert marks == "┬───────────┬───────▲───────────────┬───"
    assert names == "forward     backward      optimizer step"
    narrow = axis_rows(step(levels, phases=phases), width=14)[1]
    assert len(narrow) == 14
    assert narrow == "for backwar op"


def test_without_a_timeline_each_phase_of_the_closed_form_is_one_block():
    budget: Budget = make_budget(device=40)
    drawn = step_memory(budget)
    assert [mark.name for mark in drawn.phases] == ["forward", "backward", "optimizer step"]
    assert drawn.device_bytes is None
    assert drawn.levels[1] == budget.phases[2].components


def test_a_timeline_is_drawn_with_the_memory_that_nvml_would_report():
    line = Timeline(
        events=(5, 6),
        levels=(Components(weights=3), Components(weights=4)),
        reserved_bytes=(10, 12),
        outside_bytes=2,
        phases=(PhaseMark(name="forward", event=4),),
    )
    drawn = step_memory(replace(make_budget(), timeline=line))
    assert (drawn.positions, drawn.end, drawn.device_bytes, drawn.peak) == ((5, 6), 7, (12, 14), 1)


@pytest.mark.parametrize(("card", "top"), [(None, 40), (80, 80), (81, 40), (30, 40)])
def test_the_scale_is_the_gpu_size_unless_the_job_is_too_small_for_it(card, top):
    budget = make_budget(device=40)
    assert step_top_bytes(budget, card and card * GIB) == pytest.approx(top * GIB * 1.04, rel=0.08)


def test_nothing_is_drawn_without_space():
    assert step_rows(step([Components(weights=1)]), width=0, height=3, top=1) == []
