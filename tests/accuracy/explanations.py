"""Measures how often ``explain`` finds the true cause of a divergence (``python tests/accuracy/explanations.py``).

Forty jobs, each diverging in every plausible way (``explanation_jobs``). The truth is the diverging job's estimate with
a measured error of predictions (a residual of the accuracy table, drawn with a fixed seed); ``explain`` gets the job as
it was read. Jobs with even numbers served to choose priors, the others are held out. ``--measure allocated`` uses
torch's counters, not the process's bytes, ``--loaded`` adds the plateau before the first step, and ``--pairs`` combines
two causes.
"""

import argparse
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from accuracy_cases import read_cases, read_measured
from explanation_jobs import JOBS, Truth, both, truths
from report import replay

from vramtop.estimator.budget.budget import Budget
from vramtop.estimator.causes.cause_search import Measure
from vramtop.estimator.causes.explain import Explanation, explain
from vramtop.estimator.common.errors import VramtopError
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file import with_changes

FIGURES: dict[Measure, tuple[str, ...]] = {"device": ("reserved", "device"), "allocated": ("allocated",)}
REPEATS = 3
_NAME_OF_NOTHING = "(nothing)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Settings of a trial."""

    measure: Measure = "device"
    loaded: bool = False
    """``explain`` also gets the memory of the process after its weights were loaded."""
    pairs: bool = False
    """Two random causes at once, not one."""
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One diverging job and its explanations."""

    place: int
    """Index of the job in the list."""
    truth: Truth | None
    """None: the job runs with the settings that were read."""
    visible: bool
    """True if the observed memory lies outside of the budget's range, so that a user would ask."""
    observed: int
    """Observed bytes."""
    found: tuple[Explanation, ...]
    seconds: float

    @property
    def rank(self) -> int | None:
        """Rank of the true cause, from 1; None: it is not named."""
        return next((place for place, each in enumerate(self.found, 1) if self.truth and _is(each, self.truth)), None)

    @property
    def half(self) -> bool:
        """True if at least one of two true causes is among the first three."""
        wanted = set(self.truth.name.split(" + ")) if self.truth else set()
        return any(wanted & set(each.name.split(" + ")) for each in self.found[:3])

    @property
    def group(self) -> int | None:
        """Rank of the true cause where causes that predict equal bytes count once."""
        return None if self.rank is None else self.found[self.rank - 1].group + 1


def _is(found: Explanation, truth: Truth) -> bool:
    """Return True if two causes are the same, with numbers within a third (a sequence's length is searched for)."""
    told = {"training.micro_batch", "training.sequence_length", "parallel.data_shard"} & truth.changes.keys()
    names, same = found.name.split(" + "), truth.name.split(" + ")
    return sorted(names) == sorted(same) and all(abs(found.changes[k] / truth.changes[k] - 1) <= 1 / 3 for k in told)


def residuals(measure: Measure) -> list[float]:
    """Return measured over predicted bytes, for rows of the accuracy table without a known reason for their error."""
    cases = (case for case in (*read_cases(), *read_measured()) if case.figure in FIGURES[measure])
    return [1 / (1 + replay(case).error) for case in cases if not case.explained]


def trials(setup: Setup) -> Iterator[Trial]:
    """Yield every job with every truth, and with its settings as read."""
    draw, off, noise = random.Random(setup.seed), residuals(setup.measure), residuals("device")  # noqa: S311 - no secret
    for place, job in enumerate(JOBS):
        budget, known = estimate(job), list(truths(job, estimate))
        if setup.pairs:
            drawn = [both(*draw.sample(known, 2)) for _ in range(2 * len(known))]
            known = [truth for truth in drawn if truth]
        for truth in (None, *known):
            held = _held(job, truth)
            if held is None:
                continue
            for _ in range(1 if setup.pairs else REPEATS):
                observed = round((held.allocated if setup.measure == "allocated" else held.device) * draw.choice(off))
                loaded = round(held.loaded * draw.choice(noise)) if setup.loaded else None
                begun = time.process_time()
                found = explain(job, budget, observed, estimate, measure=setup.measure, loaded_bytes=loaded)
                yield Trial(
                    place=place,
                    truth=truth,
                    visible=_visible(budget, observed, setup.measure),
                    observed=observed,
                    found=found,
                    seconds=time.process_time() - begun,
                )


@dataclass(frozen=True, slots=True)
class _Held:
    device: int
    allocated: int
    loaded: int


def _held(job: Job, truth: Truth | None) -> _Held | None:
    try:
        budget = estimate(with_changes(job, truth.changes) if truth else job)
    except VramtopError:
        return None
    more, loading = (truth.allocated_bytes, truth.loading_bytes) if truth else (0, 0)
    phase = budget.phase("loading")
    loaded = phase.components.total_bytes if phase else 0
    return _Held(budget.peak.device_bytes + more, budget.peak.allocated_bytes + more, loaded + loading)


def _visible(budget: Budget, observed: int, measure: Measure) -> bool:
    if measure == "allocated":
        return abs(observed / budget.peak.allocated_bytes - 1) > 0.05
    return not budget.peak.low_bytes <= observed <= budget.peak.high_bytes


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures; the exit code is always 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", choices=tuple(FIGURES), default="device")
    parser.add_argument("--loaded", action="store_true", help="tell it also what was held before the first step")
    parser.add_argument("--pairs", action="store_true", help="contradict each job in two ways at once")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--misses", action="store_true", help="print every cause that was not named")
    options = parser.parse_args(arguments)
    done = list(trials(Setup(measure=options.measure, loaded=options.loaded, pairs=options.pairs, seed=options.seed)))
    settling, held_out = [t for t in done if t.place % 2 == 0], [t for t in done if t.place % 2]
    print(f"{len(JOBS)} jobs, {len(done)} trials, by {options.measure} bytes")
    _print_figures("jobs looked at", settling)
    _print_figures("jobs held out", held_out)
    _print_speed(done)
    if not options.pairs:
        _print_confusions(done)
    if options.misses:
        _print_misses(done)
    return 0


def _print_figures(title: str, done: Sequence[Trial]) -> None:
    asked = [t for t in done if t.truth and t.visible]
    hidden = sum(1 for t in done if t.truth and not t.visible)
    first, three, named = (sum(1 for t in asked if t.rank and t.rank <= most) for most in (1, 3, 99))
    grouped = sum(1 for t in asked if t.group == 1)
    total, lines = len(asked), statistics.mean(len(t.found) for t in asked)
    print(
        f"{title}: {total} diverge ({hidden} do not show); true cause first {first / total:.0%}, in the first group of "
        f"equal ones {grouped / total:.0%}, in the first three {three / total:.0%}, named {named / total:.0%}, nothing "
        f"said {sum(1 for t in asked if not t.found) / total:.0%}; {lines:.1f} lines"
    )
    if any(" + " in t.truth.name for t in asked if t.truth):
        print(f"  one of the two at least in the first three {sum(t.half for t in asked) / total:.0%}")
    right = [t for t in done if t.truth is None]
    silent = sum(1 for t in right if not t.found)
    shown = sum(1 for t in right if t.found and t.visible)
    print(f"  as read: {len(right)} trials, silent {silent / len(right):.0%}; diverging and explained {shown}")


def _print_speed(done: Sequence[Trial]) -> None:
    times = sorted(t.seconds * 1000 for t in done if t.visible)
    print(f"a search takes {statistics.median(times):.0f} ms, at most {times[-1]:.0f} ms (processor time)")


def _print_confusions(done: Sequence[Trial]) -> None:
    print(f"\n{'true cause':26}{'shows':>6}{'first':>7}{'three':>7}{'named':>7}  taken for, where it is not first")
    for name in sorted({t.truth.name for t in done if t.truth}):
        asked = [t for t in done if t.truth and t.truth.name == name and t.visible]
        ranks = [t.rank or 99 for t in asked]
        mistaken = Counter(t.found[0].name if t.found else _NAME_OF_NOTHING for t in asked if t.rank != 1)
        others = ", ".join(f"{other} {count}" for other, count in mistaken.most_common(4))
        first, three, named = (sum(rank <= most for rank in ranks) for most in (1, 3, 98))
        print(f"{name:26}{len(asked):>6}{first:>7}{three:>7}{named:>7}  {others}")


def _print_misses(done: Sequence[Trial]) -> None:
    for t in done:
        if t.truth and t.visible and t.rank is None:
            off = (f"{each.name} {(each.predicted_bytes - t.observed) / 2**30:+.1f}" for each in t.found)
            found = "; ".join(off) or _NAME_OF_NOTHING
            print(f"job {t.place} ({JOBS[t.place].label}), {t.truth.name} {dict(t.truth.changes)}: {found}")


if __name__ == "__main__":
    raise SystemExit(main())
