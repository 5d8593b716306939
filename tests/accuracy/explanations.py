"""Measure how often ``explain`` finds the true cause of a divergence (``python tests/accuracy/explanations.py``).

Forty jobs diverge for every plausible cause (``explanation_jobs``). The observed memory is the diverging job's estimate
times a prediction error drawn from the residuals of the accuracy table with a fixed seed; ``explain`` gets the job
without the divergence. Jobs with even indices were used to tune the priors, the others are held out. ``--measure
allocated`` observes torch's counters instead of the process's bytes, and ``--pairs`` combines two causes.
"""

import argparse
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from accuracy_cases import read_cases
from explanation_jobs import JOBS, TrueCause, combine, plausible_causes
from predictions import predict

from vramtop.estimator.budget import Budget
from vramtop.estimator.causes.cause_search import Measure, Observation
from vramtop.estimator.causes.explain import Explanation, explain
from vramtop.estimator.common.errors import VramtopError
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import with_changes

FIGURES: dict[Measure, tuple[str, ...]] = {"device": ("reserved", "device"), "allocated": ("allocated",)}
REPEATS = 3
_NO_CAUSE = "(nothing)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Settings of a simulation."""

    measure: Measure = "device"
    pairs: bool = False
    """Each job diverges for two random causes at once."""
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One simulated run of a job and its explanations."""

    job_index: int
    """Index in ``JOBS``."""
    truth: TrueCause | None
    """None: the job runs with its own settings."""
    visible: bool
    """True if the observed memory lies outside the budget's range, so that a user would see the divergence."""
    observed_bytes: int
    found: tuple[Explanation, ...]
    seconds: float
    """Processor time of ``explain``."""

    @property
    def rank(self) -> int | None:
        """Rank of the true cause among the explanations, from 1; None: it is not among them."""
        return next(
            (rank for rank, each in enumerate(self.found, 1) if self.truth and _matches(each, self.truth)), None
        )

    @property
    def names_one_of_two(self) -> bool:
        """True if at least one of two true causes is among the first three explanations."""
        wanted = set(self.truth.name.split(" + ")) if self.truth else set()
        return any(wanted & set(each.name.split(" + ")) for each in self.found[:3])

    @property
    def group(self) -> int | None:
        """Rank of the true cause if causes that predict equal bytes count as one."""
        return None if self.rank is None else self.found[self.rank - 1].group + 1


def _matches(found: Explanation, truth: TrueCause) -> bool:
    """Return True if two causes are the same; numeric settings, which are searched for, may differ by a third."""
    numeric = {"training.micro_batch", "training.sequence_length", "parallel.data_shard"} & truth.changes.keys()
    found_names, true_names = found.name.split(" + "), truth.name.split(" + ")
    return sorted(found_names) == sorted(true_names) and all(
        abs(found.changes[k] / truth.changes[k] - 1) <= 1 / 3 for k in numeric
    )


def residuals(measure: Measure) -> list[float]:
    """Return the ratios of measured to predicted bytes of the table's rows that are off by 10 % at most."""
    cases = (case for case in read_cases() if case.figure in FIGURES[measure])
    errors = (predict(case).error for case in cases)
    return [1 / (1 + error) for error in errors if abs(error) <= 0.1]


def trials(setup: Setup) -> Iterator[Trial]:
    """Simulate every job with every plausible cause, and with its own settings."""
    generator = random.Random(setup.seed)  # noqa: S311 - not for cryptography
    errors = residuals(setup.measure)
    for index, job in enumerate(JOBS):
        budget, causes = estimate(job), list(plausible_causes(job, estimate))
        if setup.pairs:
            pairs = [combine(*generator.sample(causes, 2)) for _ in range(2 * len(causes))]
            causes = [pair for pair in pairs if pair]
        for truth in (None, *causes):
            memory = _true_memory(job, truth)
            if memory is None:
                continue
            for _ in range(1 if setup.pairs else REPEATS):
                peak = memory.allocated_bytes if setup.measure == "allocated" else memory.device_bytes
                observed = round(peak * generator.choice(errors))
                started = time.process_time()
                seen = Observation(device_bytes=observed)
                found = explain(budget, seen, observed, estimate, measure=setup.measure)
                yield Trial(
                    job_index=index,
                    truth=truth,
                    visible=_visible(budget, observed, setup.measure),
                    observed_bytes=observed,
                    found=found,
                    seconds=time.process_time() - started,
                )


@dataclass(frozen=True, slots=True)
class _TrueMemory:
    device_bytes: int
    allocated_bytes: int


def _true_memory(job: Job, truth: TrueCause | None) -> _TrueMemory | None:
    """Return the memory of the job with its true cause; None if the combination of settings is invalid."""
    try:
        budget = estimate(with_changes(job, truth.changes) if truth else job)
    except VramtopError:
        return None
    more = truth.allocated_bytes if truth else 0
    return _TrueMemory(budget.peak.device_bytes + more, budget.peak.allocated_bytes + more)


def _visible(budget: Budget, observed: int, measure: Measure) -> bool:
    if measure == "allocated":
        return abs(observed / budget.peak.allocated_bytes - 1) > 0.05
    return not budget.peak.low_bytes <= observed <= budget.peak.high_bytes


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures; the exit code is always 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", choices=tuple(FIGURES), default="device")
    parser.add_argument("--pairs", action="store_true", help="let each job diverge for two causes at once")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--misses", action="store_true", help="print every true cause that was not found")
    options = parser.parse_args(arguments)
    done = list(trials(Setup(measure=options.measure, pairs=options.pairs, seed=options.seed)))
    tuning, held_out = [t for t in done if t.job_index % 2 == 0], [t for t in done if t.job_index % 2]
    print(f"{len(JOBS)} jobs, {len(done)} trials, {options.measure} bytes")
    _print_figures("tuning jobs", tuning)
    _print_figures("held-out jobs", held_out)
    _print_speed(done)
    if not options.pairs:
        _print_confusions(done)
    if options.misses:
        _print_misses(done)
    return 0


def _print_figures(title: str, done: Sequence[Trial]) -> None:
    visible = [t for t in done if t.truth and t.visible]
    hidden = sum(1 for t in done if t.truth and not t.visible)
    first, three, found = (sum(1 for t in visible if t.rank and t.rank <= most) for most in (1, 3, 99))
    grouped = sum(1 for t in visible if t.group == 1)
    total, lines = len(visible), statistics.mean(len(t.found) for t in visible)
    print(
        f"{title}: {total} visible divergences ({hidden} not visible); true cause first {first / total:.0%}, "
        f"in the first group of equal causes {grouped / total:.0%}, in the first three {three / total:.0%}, "
        f"found at any rank {found / total:.0%}, no explanation {sum(1 for t in visible if not t.found) / total:.0%}; "
        f"{lines:.1f} explanations on average"
    )
    if any(" + " in t.truth.name for t in visible if t.truth):
        print(
            "  at least one of the two causes in the first three "
            f"{sum(t.names_one_of_two for t in visible) / total:.0%}"
        )
    unchanged = [t for t in done if t.truth is None]
    silent = sum(1 for t in unchanged if not t.found)
    explained = sum(1 for t in unchanged if t.found and t.visible)
    print(
        f"  without a cause: {len(unchanged)} trials, no explanation {silent / len(unchanged):.0%}; "
        f"outside the range and explained {explained}"
    )


def _print_speed(done: Sequence[Trial]) -> None:
    times = sorted(t.seconds * 1000 for t in done if t.visible)
    print(f"a search takes {statistics.median(times):.0f} ms, at most {times[-1]:.0f} ms (processor time)")


def _print_confusions(done: Sequence[Trial]) -> None:
    print(f"\n{'true cause':26}{'visible':>8}{'first':>7}{'three':>7}{'found':>7}  first explanation if another")
    for name in sorted({t.truth.name for t in done if t.truth}):
        visible = [t for t in done if t.truth and t.truth.name == name and t.visible]
        ranks = [t.rank or 99 for t in visible]
        confused_with = Counter(t.found[0].name if t.found else _NO_CAUSE for t in visible if t.rank != 1)
        others = ", ".join(f"{other} {count}" for other, count in confused_with.most_common(4))
        first, three, found = (sum(rank <= most for rank in ranks) for most in (1, 3, 98))
        print(f"{name:26}{len(visible):>8}{first:>7}{three:>7}{found:>7}  {others}")


def _print_misses(done: Sequence[Trial]) -> None:
    for t in done:
        if t.truth and t.visible and t.rank is None:
            differences = (f"{each.name} {(each.predicted_bytes - t.observed_bytes) / 2**30:+.1f}" for each in t.found)
            found = "; ".join(differences) or _NO_CAUSE
            print(f"job {t.job_index} ({JOBS[t.job_index].label}), {t.truth.name} {dict(t.truth.changes)}: {found}")


if __name__ == "__main__":
    raise SystemExit(main())
