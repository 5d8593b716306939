"""A job on one card after another: its budget there, and whether its ranks fit on cards that a name may stand for."""

from dataclasses import dataclass, field

from vramtop.estimator.budget import Budget
from vramtop.estimator.job import BF16_CAPABILITY, Gpu, Job, find_gpu
from vramtop.monitor.board.fit import VERDICTS_BEST_FIRST, Verdict, check_fit
from vramtop.monitor.fleet.schedulers import CardMatch, CardSize

from ...job import beyond_formula, estimator_on_card
from ...reports import need_text
from ..option_values import described_devices

GOOD: tuple[Verdict, ...] = ("fits", "tight")
"""Verdicts with which a job may be started there."""
USUAL_GPUS_PER_NODE = 8
"""GPUs of a node that nothing is known of."""


@dataclass(slots=True, kw_only=True)
class CardJudge:
    """Judges one job on cards, each only once."""

    job: Job
    budget: Budget
    gpu: Gpu | None
    """The card that the budget was estimated for; None: no particular one."""
    _beyond: int | None = None
    _known: dict[tuple[str | None, int], tuple[Budget, Verdict]] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """GPUs that the job takes."""
        return len(self.budget.ranks)

    @property
    def ranks_per_usual_node(self) -> int:
        """Maximum of ranks on a node of the usual size, with the same number on each node."""
        return max(size for size in range(1, USUAL_GPUS_PER_NODE + 1) if self.ranks % size == 0)

    def on(self, card: CardSize) -> tuple[Budget, Verdict]:
        """Return the budget on a card, and whether the job fits on as many of them as it has ranks."""
        key = (card.gpu.name if card.gpu else None, card.total_bytes)
        if key not in self._known:
            budget = self._estimate(card.gpu)
            verdict = check_fit(budget, described_devices(card.gpu, card.total_bytes, self.ranks)).verdict
            self._known[key] = (budget, verdict)
        return self._known[key]

    def verdict(self, match: CardMatch) -> Verdict:
        """Return whether the job fits whichever of the cards is meant; unknown: only on some of them."""
        if match.mig and self.ranks > 1:
            return "does_not_fit"
        verdicts = [self.on(card)[1] for card in match.cards]
        if not verdicts:
            return "unknown"
        if "does_not_fit" in verdicts and any(verdict in GOOD for verdict in verdicts):
            return "unknown"
        return max(verdicts, key=VERDICTS_BEST_FIRST.index)

    def budget_on(self, match: CardMatch) -> Budget:
        """Return the budget on the smallest of the cards; the one that was estimated first if none is known."""
        return self.on(match.cards[0])[0] if match.cards else self.budget

    def emulating_cards(self, verdict: Verdict) -> list[str]:
        """Return the labels of the cards judged so, fits or tight, that can only emulate the job's bf16, slowly.

        Without emulation torch's is_bf16_supported asks for compute capability 8 (2.13, torch/cuda/__init__.py).
        """
        if verdict not in GOOD or not self.budget.job.training.precision.startswith("bf16"):
            return []
        names = dict.fromkeys(name for (name, _), (_, found) in self._known.items() if name and found == verdict)
        return [gpu.label for gpu in map(find_gpu, names) if gpu.compute_capability < BF16_CAPABILITY]

    def host_bytes(self, ranks: int) -> int:
        """Return the RAM that this number of ranks needs on one machine, at most; 0: unknown."""
        return 0 if self.budget.host is None else self.budget.host.high_bytes(ranks)

    def least_host_bytes(self, ranks: int) -> int:
        """Return the RAM that is expected to be needed; 0: unknown."""
        return 0 if self.budget.host is None else self.budget.host.peak_bytes(ranks)

    def _estimate(self, gpu: Gpu | None) -> Budget:
        if gpu is None or gpu == self.gpu:
            return self.budget
        if self._beyond is None:
            self._beyond = beyond_formula(self.job, self.budget, self.gpu)
        estimate = estimator_on_card(self.job, gpu, self._beyond)
        return estimate(self.job) if estimate else self.budget


def need_sentence(budget: Budget) -> str:
    """Return what a job needs: ``8 × 62.1 GiB (58.0 - 66.3) of GPU memory``."""
    return f"{need_text(budget, len(budget.ranks))} of GPU memory"
