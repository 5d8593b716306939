"""Losses on log-probabilities: the formula against every vocabulary-wide tensor that torch allocates."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from model_configs import llama_config
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from vramtop.estimator.budget import Budget
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.gpu_catalogue import find_gpu
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import with_changes
from vramtop.estimator.job.settings import Training

ROWS, LENGTH, VOCABULARY, HIDDEN = 4, 128, 2048, 16
LOGITS = ROWS * LENGTH * VOCABULARY
LLAMA = llama_config(hidden=512, mlp=1024, layers=2, heads=8, kv_heads=8, vocab=128_256, tie_word_embeddings=False)
JOB = {
    "model.config": LLAMA,
    "training.micro_batch": 4,
    "training.sequence_length": 1024,
    "training.activation_checkpointing": "full",
    "software.trl": "1.14",
}


class WideTensors(TorchDispatchMode):
    """Tracks the bytes of storages of at least half the 16-bit logits of a row."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor):
                self._track(tensor.untyped_storage())
        return out

    def take_peak(self) -> float:
        """Return the bytes per logit of the peak since the last call."""
        peak, self.peak = self.peak, self.now
        return peak / LOGITS

    def _track(self, storage: Any) -> None:
        size, key = storage.nbytes(), storage._cdata
        if size >= LOGITS // ROWS and key not in self._known:
            self._known.add(key)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._forget, size, key)

    def _forget(self, size: int, key: int) -> None:
        self.now -= size
        self._known.discard(key)


def whole_log_softmax(logits: Any, tokens: Any) -> Any:
    return logits[:, :-1].log_softmax(-1).gather(2, tokens[:, 1:, None])[..., 0]


def selected(logits: Any, tokens: Any) -> Any:
    shifted = logits[:, :-1]
    chosen = shifted.gather(2, tokens[:, 1:, None])[..., 0]
    return chosen - torch.stack([row.logsumexp(-1) for row in shifted])


def selected_by_rows(logits: Any, tokens: Any) -> Any:
    rows = zip(logits[:, :-1], tokens[:, 1:], strict=True)
    return torch.stack([functional.log_softmax(row, -1).gather(1, one[:, None])[:, 0] for row, one in rows])


def measure(loss: Callable[..., Any], *, keeps_logits: bool) -> tuple[float, float]:
    """Return bytes per logit: up to the reference's log-probabilities, and in the backward pass."""
    hidden = torch.randn(ROWS, LENGTH, HIDDEN, requires_grad=True)
    head = torch.randn(VOCABULARY, HIDDEN, requires_grad=True)
    tokens = torch.randint(0, VOCABULARY, (ROWS, LENGTH))

    def model() -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            out = functional.linear(hidden, head)
        return out if loss is selected_by_rows else out.float()  # accelerate casts what models return

    with WideTensors() as wide:
        logits = model()
        scores = loss(logits, tokens)
        if not keeps_logits:
            del logits
        with torch.no_grad():
            loss(model(), tokens)
        forward = wide.take_peak()
        logits = None
        total = scores.sum()
        del scores
        total.backward()
        return forward, wide.take_peak()


@pytest.mark.parametrize(("loss", "keeps", "trl"), [(whole_log_softmax, True, "0.14"), (selected, False, "1.14")])
def test_bytes_per_logit_are_those_that_torch_allocates(loss: Callable[..., Any], keeps: bool, trl: str) -> None:
    forward, backward = measure(loss, keeps_logits=keeps)
    job = {"training.loss": "log-probs", "training.reference_pass": True, "software.trl": trl}
    budget = budget_of(**{key.replace(".", "__"): value for key, value in job.items()})
    logits = 4 * 1024 * LLAMA["vocab_size"]  # type: ignore[operator]
    found = {phase.name: phase.components.logits / logits for phase in budget.phases}
    assert found["forward"] == pytest.approx(forward, rel=0.02)
    assert found["backward"] == pytest.approx(backward, rel=0.02)


def test_under_deepspeed_logits_stay_in_16_bits_and_go_row_by_row() -> None:
    forward, backward = measure(selected_by_rows, keeps_logits=False)
    sharding = {"parallel__strategy": "zero1", "parallel__data_shard": 2}
    budget = budget_of(training__loss="log-probs", training__reference_pass=True, **sharding)
    assert logits_of(budget) / (4 * 1024 * LLAMA["vocab_size"]) == pytest.approx(forward, rel=0.02)  # type: ignore[operator]
    assert backward < forward


def budget_of(**changes: Any) -> Budget:
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    return estimate(
        with_changes(Job(training=Training(precision="bf16-mixed")), {**JOB, **dotted}), gpu=find_gpu("h100-80gb")
    )


def logits_of(budget: Budget) -> int:
    return max(phase.components.logits for phase in budget.phases)


def test_only_the_completions_logits_count() -> None:
    whole = logits_of(budget_of(training__loss="log-probs"))
    half = logits_of(budget_of(training__loss="log-probs", training__loss_length=512))
    assert half == pytest.approx(whole / 2, rel=0.01)


def test_a_pair_takes_what_two_examples_take() -> None:
    pairs = budget_of(training__sequences_per_example=2, training__loss="log-probs", training__micro_batch=2)
    singles = budget_of(training__loss="log-probs")
    assert pairs.peak == singles.peak


def test_tiles_hold_a_part_of_the_logits_and_an_fp32_gradient_of_the_head() -> None:
    head = LLAMA["vocab_size"] * LLAMA["hidden_size"]  # type: ignore[operator]
    tiled = budget_of(training__loss="chunked", software__trl="1.16")
    backward = tiled.phase("backward")
    assert backward is not None
    tile, cast = 2 * 4096 * 32768, 2 * 32768 * 512
    inputs = 4 * 1024 * 512 * (4 + 4 + 4)  # the scored hidden states, their copy's gradient, and the fp32 sum
    assert logits_of(tiled) == pytest.approx(tile + cast + inputs + 4 * head, rel=0.01)
    adapters = budget_of(training__loss="chunked", software__trl="1.16", lora={"rank": 8})
    assert logits_of(adapters) == pytest.approx(tile + cast + inputs, rel=0.01)
    assert logits_of(tiled) < logits_of(budget_of(training__loss="full")) / 5
    at_head = adapters.phase("backward")
    assert at_head is not None
    assert at_head.components.temporary < 2 * head  # a tile of the head's weight is cast, not all of it


def test_liger_holds_the_logits_of_one_example() -> None:
    one = logits_of(budget_of(training__loss="fused-log-probs"))
    full = logits_of(budget_of(training__loss="log-probs"))
    assert one < 0.5 * full


def test_a_divergence_holds_many_copies_of_the_logits() -> None:
    assert logits_of(budget_of(training__loss="divergence")) == 68 * 4 * 1024 * 128_256


def test_a_reference_model_adds_its_weights_and_no_logits_of_its_own() -> None:
    weights = 4 * budget_of().model.parameters
    for loss, beside in (("chunked", True), ("chunked", False), ("log-probs", True)):
        settings = {"training__loss": loss, "training__reference_pass": beside, "software__trl": "1.16"}
        alone = budget_of(**settings)
        held = budget_of(**settings, other_models=[{"role": "reference"}])
        assert held.peak.components.weights - alone.peak.components.weights == weights
        assert held.peak.components.logits <= alone.peak.components.logits
        before = held.phase("forward")
        assert before is not None
        if not beside:  # it ran before the trained model, and left nothing
            assert before.components.total_bytes == alone.phase("forward").components.total_bytes + weights  # type: ignore[union-attr]
