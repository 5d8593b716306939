"""The correction: right where the error is shared, harmless where it is not, never across a change of mechanism."""

from dataclasses import dataclass
from random import Random
from statistics import mean

import pytest
from simulated_machine import MIB, Machine, budget_of, job, subject_of

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.records import replace
from vramtop.estimator.job.job import Job
from vramtop.estimator.learning.correction import carried, corrected, uncorrected
from vramtop.estimator.learning.measurement import Measurement, Observed

GIB = 2**30
TARGET = job(micro_batch=8)
COUNTS = (1, 2, 4, 8)
FIGURES = ("allocated_bytes", "reserved_bytes", "device_bytes")
MODELS = ("llama-3.2-1b", "qwen3-0.6b", "gpt2")


def correct(each: Job, *runs: Measurement, **place: object) -> Budget:
    return corrected(budget_of(each), subject_of(each, **place), runs, version="1")


def error(budget: Budget, truth: Observed) -> float:
    assert truth.device_bytes
    return abs(budget.peak.device_bytes - truth.device_bytes) / truth.device_bytes


def holds(budget: Budget, truth: Observed) -> bool:
    return budget.peak.low_bytes <= (truth.device_bytes or 0) <= budget.peak.high_bytes


def test_a_job_scaled_from_one_that_was_measured() -> None:
    machine = Machine(tokens=0.2, slack=0.02, context=300 * MIB)
    runs = [machine.run(job(micro_batch=size), days_ago=size) for size in (1, 2, 4)]
    truth = machine.truth(TARGET, noisy=False)
    found = correct(TARGET, *runs)
    assert not holds(budget_of(TARGET), truth)
    assert holds(found, truth)
    assert error(found, truth) < 0.02
    assert error(budget_of(TARGET), truth) > 0.1
    assert found.learned is not None
    assert found.learned.uncorrected == budget_of(TARGET).peak
    assert uncorrected(found).peak == budget_of(TARGET).peak
    sentence = found.learned.sentence
    assert sentence.startswith("measured here once, on 2027-01-1")
    for words in ("at micro-batch", "and 2 other jobs", "this job scaled from it: 7", "uncorrected 65.4"):
        assert words in sentence


def test_the_same_job_is_expected_to_do_what_it_did() -> None:
    machine = Machine(tokens=-0.15, noise=0.002)
    found = correct(TARGET, *(machine.run(TARGET, days_ago=days) for days in (1, 2, 3)))
    truth = machine.truth(TARGET)
    assert error(found, truth) < 0.01
    assert holds(found, truth)
    assert found.learned is not None
    assert found.learned.sentence.startswith("measured here 3 times, last on ")
    before = budget_of(TARGET).peak
    assert found.peak.high_bytes - found.peak.low_bytes < 0.35 * (before.high_bytes - before.low_bytes)


def test_the_figures_stay_those_of_one_process() -> None:
    for machine in (Machine(tokens=0.3, context=400 * MIB), Machine(tokens=-0.3, slack=-0.02, context=-300 * MIB)):
        found = correct(TARGET, machine.run(job(micro_batch=4)), machine.run(TARGET))
        peak, phase = found.peak, found.phase(found.peak.phase)
        assert peak.allocated_bytes <= peak.reserved_bytes <= peak.device_bytes
        assert peak.low_bytes <= peak.device_bytes <= peak.high_bytes
        assert peak.components.total_bytes - (peak.device_bytes - peak.reserved_bytes) == peak.allocated_bytes
        assert phase is not None
        assert phase.components == peak.components
        assert phase.allocated_bytes == peak.allocated_bytes
        assert all(size >= 0 for each in found.phases for _, size in each.components.items())
        assert Budget.from_json(found.to_json()) == found
        again = replace(found, learned=None)
        assert found.to_json() | {"learned": None} == again.to_json() | {"learned": None}


@pytest.mark.parametrize(
    "change",
    [
        {"activation_checkpointing": "full"},
        *(
            pytest.param(change, marks=pytest.mark.slow)
            for change in (
                {"precision": "bf16-mixed"},
                {"compile": True},
                {"framework": "litgpt"},
                {"loss": "fused-linear"},
                {"fused_kernels": ["norm"]},
            )
        ),
    ],
    ids=str,
)
def test_nothing_of_the_step_travels_to_another_mechanism(change: dict[str, object]) -> None:
    machine = Machine(tokens=0.3)
    found = correct(TARGET, *(machine.run(job(micro_batch=size, **change)) for size in (2, 4)))
    assert abs(found.peak.allocated_bytes - budget_of(TARGET).peak.allocated_bytes) < 8 * MIB


@pytest.mark.parametrize(
    ("place", "moves"),
    [
        ({"versions": {"torch": "2.8.0"}}, set()),
        ({"card": "NVIDIA L4"}, set()),
        ({"card": None}, set()),
        ({"allocator": "expandable_segments:True"}, {"step", "outside"}),
        ({"machine": "another"}, {"step", "slack", "outside"}),
    ],
)
def test_what_depends_on_the_place_stays_there(place: dict[str, object], moves: set[str]) -> None:
    machine = Machine(tokens=0.3, slack=0.05, context=400 * MIB)
    runs = [machine.run(job(micro_batch=size)) for size in (2, 4)]
    peak, before = correct(TARGET, *runs, **place).peak, budget_of(TARGET).peak
    step = peak.allocated_bytes - before.allocated_bytes
    slack = peak.reserved_bytes - before.reserved_bytes - step
    outside = peak.device_bytes - before.device_bytes - step - slack
    assert {
        name for name, size in (("step", step), ("slack", slack), ("outside", outside)) if abs(size) > 8 * MIB
    } == moves


def test_the_context_travels_where_nothing_else_does() -> None:
    machine, small = Machine(tokens=0.3, context=200 * MIB), job("qwen3-0.6b", 1, 512)
    other = job("gpt2", 4, 1024, activation_checkpointing="full", precision="bf16-mixed")
    found = correct(small, machine.run(other))
    assert found.peak.components.context > budget_of(small).peak.components.context + 50 * MIB
    assert found.peak.allocated_bytes == pytest.approx(budget_of(small).peak.allocated_bytes, abs=8 * MIB)
    assert found.learned is not None
    assert "its CUDA context is used here" in found.learned.sentence


@pytest.mark.slow
def test_thin_evidence_corrects_less_than_much() -> None:
    machine = Machine(tokens=0.1)
    one = correct(TARGET, machine.run(job(micro_batch=1))).peak
    jobs = [job(micro_batch=size, length=length) for size in (2, 4) for length in (1024, 2048)]
    many = correct(TARGET, *map(machine.run, jobs)).peak
    before, truth = budget_of(TARGET).peak.device_bytes, machine.truth(TARGET, noisy=False).device_bytes or 0
    assert before < one.device_bytes < many.device_bytes < truth * 1.01
    assert one.high_bytes - one.low_bytes > many.high_bytes - many.low_bytes


def test_one_wrong_job_among_others_is_passed_over_and_alone_it_only_widens_the_range() -> None:
    machine = Machine(tokens=0.05)
    right = [machine.run(job(micro_batch=size, length=length)) for size in (2, 4) for length in (1024, 2048)]
    wrong = machine.run(job(micro_batch=4, length=512))
    doubled = {name: 2 * (getattr(wrong.observed, name) or 0) for name in FIGURES}
    wrong = replace(wrong, observed=replace(wrong.observed, **doubled))
    truth = machine.truth(TARGET, noisy=False)
    assert error(correct(TARGET, *right, wrong), truth) < 0.02
    alone = correct(TARGET, wrong)
    assert holds(alone, truth)
    assert alone.peak.high_bytes - alone.peak.low_bytes > 1.5 * (
        budget_of(TARGET).peak.high_bytes - budget_of(TARGET).peak.low_bytes
    )


def test_one_odd_run_of_the_same_job_is_outvoted() -> None:
    machine = Machine(tokens=0.1, noise=0.001)
    runs = [machine.run(TARGET, days_ago=days) for days in (2, 3, 4)]
    odd = machine.run(TARGET, days_ago=1)
    odd = replace(
        odd, observed=replace(odd.observed, device_bytes=20 * GIB, allocated_bytes=18 * GIB, reserved_bytes=19 * GIB)
    )
    assert error(correct(TARGET, odd, *runs), machine.truth(TARGET)) < 0.01


def test_newer_runs_outweigh_older_ones() -> None:
    machine = Machine(noise=0.001)
    old = [machine.run(TARGET, days_ago=days) for days in (30, 31, 32, 33)]
    machine.tokens = 0.2  # its stack has changed
    new = [machine.run(TARGET, days_ago=days) for days in (1, 2, 3)]
    assert error(correct(TARGET, *old, *new), machine.truth(TARGET)) < 0.02


@pytest.mark.parametrize("state", ["growing", "out_of_memory", "short"])
def test_runs_that_say_nothing_of_the_peak_are_left_out(state: str) -> None:
    machine = Machine(tokens=0.3)
    found = correct(TARGET, machine.run(TARGET, state=state))
    assert found is budget_of(TARGET)


@pytest.mark.slow
def test_two_sizes_tell_a_copy_of_the_weights_from_a_larger_token() -> None:
    machine = Machine(fixed=2 * GIB)
    runs = [machine.run(job(micro_batch=size, length=length)) for size in (1, 2, 4) for length in (512, 2048)]
    found = correct(TARGET, *runs)
    assert found.learned is not None
    assert found.learned.errors["fixed"] > 1.5 * GIB
    assert error(found, machine.truth(TARGET)) < 0.02


def test_readings_alone_correct_the_whole() -> None:
    machine = Machine(tokens=0.15)
    runs = [machine.run(job(micro_batch=size), known="readings") for size in (1, 2, 4)]
    truth = machine.truth(TARGET, noisy=False)
    assert error(correct(TARGET, *runs), truth) < 0.5 * error(budget_of(TARGET), truth)


def test_another_method_and_another_version_of_vramtop_say_nothing() -> None:
    machine = Machine(tokens=0.3)
    run = machine.run(job(micro_batch=4))
    (predicted,) = run.predicted
    assert correct(TARGET, replace(run, predicted=(replace(predicted, method="traced"),))).learned is None
    assert correct(TARGET, replace(run, predicted=(replace(predicted, version="0"),))).learned is None
    same = machine.run(TARGET)
    found = correct(TARGET, replace(same, predicted=(replace(predicted, version="0"),)))
    assert error(found, machine.truth(TARGET)) < 0.02  # what was seen of the very job stays true


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "most_errors"),
    [
        ("calibrated", (0.75, 0.65, 0.65, 0.65)),
        ("large", (0.7, 0.35, 0.12, 0.1)),
        ("fixed", (0.8, 0.4, 0.15, 0.12)),
        ("drift", (0.85, 0.85, 0.9, 0.85)),
        ("both", (0.85, 0.75, 0.7, 0.7)),
    ],
)
def test_over_many_machines_the_error_shrinks_and_the_range_holds(name: str, most_errors: tuple[float, ...]) -> None:
    for count, most_error in zip(COUNTS, most_errors, strict=True):
        found = _study(name, count)
        assert mean(found.after) < most_error * mean(found.before), count
        assert found.held >= 0.9, count


@pytest.mark.slow
@pytest.mark.parametrize(("name", "worse"), [("none", 0.002), ("own", 0.005), ("large own", 0.01)])
def test_an_error_that_is_not_shared_does_little_harm(name: str, worse: float) -> None:
    for count in COUNTS:
        found = _study(name, count)
        assert mean(found.after) < mean(found.before) + worse, count
        assert found.held >= 0.9, count


@pytest.mark.slow
def test_a_wrong_job_is_outvoted_by_two_and_alone_moves_the_figure_little() -> None:
    alone, _, *others = (_study("wrong", count) for count in COUNTS)
    assert mean(alone.after) < mean(alone.before) + 0.08  # while it is off by 40 to 100 %
    assert alone.held >= 0.9
    for found in others:
        assert mean(found.after) < mean(found.before)
        assert found.held >= 0.9


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("known", ["readings", "mixed"])
def test_ranges_hold_whoever_knew_the_figures(known: str) -> None:
    for name, least in (("large", 0.9), ("large own", 0.87)):
        assert _study(name, 4, machines=300, known=known).held >= least


@pytest.mark.parametrize("name", ["large", "own"])
def test_one_measured_job_moves_and_does_not_narrow(name: str) -> None:
    found = _study(name, 1, machines=8)
    assert found.held >= 0.9
    assert min(found.widths) > 0.95
    assert mean(found.after) < mean(found.before) + 0.01


def test_the_next_run_may_be_as_odd_as_one_before() -> None:
    machine = Machine(noise=0.001)
    runs = [machine.run(TARGET, days_ago=days) for days in (1, 2, 3, 4)]
    usual = correct(TARGET, *runs).peak
    seen = runs[0].observed
    figures = {name: round(1.04 * (getattr(seen, name) or 0)) for name in FIGURES}
    runs[0] = replace(runs[0], observed=replace(seen, **figures))
    found = correct(TARGET, *runs).peak
    assert found.device_bytes == pytest.approx(usual.device_bytes, rel=0.002)
    assert found.allocated_range is not None
    assert usual.allocated_range is not None
    assert found.allocated_range.high_bytes > figures["allocated_bytes"] > usual.allocated_range.high_bytes


def test_the_words_for_one_run_of_another_job_say_why_the_range_is_wider() -> None:
    machine = Machine(tokens=0.3)
    near, same = correct(TARGET, machine.run(job(micro_batch=4))), correct(TARGET, machine.run(TARGET))
    assert near.learned is not None
    assert same.learned is not None
    assert near.learned.sentence.endswith("; the range is wider, as there is only one run")
    assert "one run" not in same.learned.sentence


def _machine(name: str, random: Random) -> Machine:
    match name:
        case "calibrated" | "wrong":
            machine = Machine(
                tokens=random.gauss(0, 0.03),
                slack=random.gauss(0, 0.01),
                context=int(random.gauss(0, 60) * MIB),
                own=0.01,
            )
        case "large":
            machine = Machine(
                tokens=random.choice((-1, 1)) * random.uniform(0.1, 0.3),
                context=int(random.gauss(0, 150) * MIB),
                own=0.01,
            )
        case "fixed":
            machine = Machine(fixed=int(random.uniform(0.2, 2) * GIB), own=0.01)
        case "drift":
            machine = Machine(tokens=random.uniform(-0.1, 0.1), drift=random.choice((-1, 1)) * 0.003, own=0.01)
        case "own":
            machine = Machine(own=0.03)
        case "large own":
            machine = Machine(own=0.1)
        case "both":
            machine = Machine(tokens=random.gauss(0, 0.1), own=0.05)
        case _:
            machine = Machine()
    machine.random = random
    return machine


@dataclass(frozen=True)
class _Found:
    """Errors before and after the correction, the share of ranges that hold the truth, and how wide they became."""

    before: list[float]
    after: list[float]
    held: float
    widths: list[float]


def _study(name: str, count: int, *, machines: int = 100, known: str = "probe") -> _Found:
    """Correct a job on each of many machines by so many others that were measured there."""
    before, after, held, widths = [], [], [], []
    for seed in range(machines):
        random = Random(seed * 10 + count)  # noqa: S311 - a simulation
        machine = _machine(name, random)
        model = random.choice(MODELS)
        pool = [job(model, size, length) for size in (1, 2, 4, 8) for length in (512, 1024, 2048)]
        target, *measured = random.sample(pool, count + 1)
        runs = [
            machine.run(
                each,
                days_ago=random.uniform(0, 30),
                known="readings" if known == "readings" or (known == "mixed" and at % 2) else "probe",
            )
            for at, each in enumerate(measured)
        ]
        if name == "wrong":
            factor = random.choice((0.5, 0.6, 1.6, 2))
            seen = runs[0].observed
            figures = {key: int(size * factor) for key in FIGURES if (size := getattr(seen, key))}
            runs[0] = replace(runs[0], observed=replace(seen, **figures))
        truth, plain = machine.truth(target), budget_of(target)
        found = correct(target, *runs)
        before.append(error(plain, truth))
        after.append(error(found, truth))
        held.append(holds(found, truth))
        widths.append(_width(found) / _width(plain))
    return _Found(before, after, mean(held), widths)


def _width(budget: Budget) -> int:
    return budget.peak.high_bytes - budget.peak.low_bytes


# A correction carried to a changed job, for searches and sweeps.


def test_a_correction_is_carried_to_other_sizes_and_no_further() -> None:
    machine = Machine(tokens=0.25, context=200 * MIB, noise=0.0)
    runs = [machine.run(job(micro_batch=size)) for size in (1, 2, 4)]
    like = correct(TARGET, *runs)
    for size in (3, 6, 12):
        changed = job(micro_batch=size)
        exact, quick = correct(changed, *runs).peak, carried(budget_of(changed), like).peak
        assert quick.device_bytes == pytest.approx(exact.device_bytes, rel=0.03)
        assert quick.high_bytes == pytest.approx(exact.high_bytes, rel=0.08)
    again = carried(budget_of(TARGET), like).peak
    for figure in (*FIGURES, "low_bytes", "high_bytes"):
        assert getattr(again, figure) == pytest.approx(getattr(like.peak, figure), abs=16)  # rounding
    other = job(micro_batch=8, activation_checkpointing="full")
    before, after = budget_of(other).peak, carried(budget_of(other), like).peak
    assert after.allocated_bytes == before.allocated_bytes
    assert after.components.context > before.components.context
    assert carried(budget_of(other), budget_of(TARGET)) is budget_of(other)
