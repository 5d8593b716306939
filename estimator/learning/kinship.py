"""Kinship: how much of a mechanism's error in one job is its error in another, by what differs between the two.

An error that was seen travels only as far as the mechanism that makes it is the same. Each row of the table is one
trait, with the share of the error (a correlation) that a difference in it leaves of each mechanism; 0: nothing. Several
differences multiply, so that all shares of a set of jobs together are a valid covariance. A setting without a row, also
one that is added later, lets only the CUDA context through.
"""

from collections.abc import Mapping
from functools import cache
from typing import Literal, get_args

from .subject import Subject

Mechanism = Literal["fixed", "tokens", "slack", "context", "nccl"]
"""Mechanism that makes an error.

``fixed``: tensors that no rule knows, whatever the batch (a copy of weights, a buffer of the loop); ``tokens``: what a
token takes in activations, logits and temporary tensors; ``slack``: what the allocator keeps; ``context``: CUDA
context, kernels and libraries; ``nccl``: NCCL's buffers.
"""
MECHANISMS: tuple[Mechanism, ...] = get_args(Mechanism)
STEP: tuple[Mechanism, ...] = ("fixed", "tokens")
"""The mechanisms of the allocated bytes."""
OUTSIDE: tuple[Mechanism, ...] = ("context", "nccl")
"""The mechanisms of the bytes outside of torch's allocator."""
_Shares = tuple[float, float, float, float, float]
"""Shares of the mechanisms, in their order."""
_ALL: _Shares = (1, 1, 1, 1, 1)
_ELSE: _Shares = (0, 0, 0, 1, 0)
"""A setting of the step without a row: what it changes is not known."""
_UNKNOWN_SHARE = 0.5
"""At least, for a version or a card that is unknown on one side; not more, as it may be the same as two others that
differ."""
_TRAITS: Mapping[str, _Shares] = {
    #                                  fixed tokens slack context nccl
    "machine": (0.97, 0.98, 0.95, 0.90, 0.90),
    "card": (0.95, 0.95, 0.90, 0.00, 0.00),
    "driver": (1.00, 1.00, 1.00, 0.60, 0.80),
    "allocator": (1.00, 1.00, 0.00, 1.00, 1.00),
    "hidden": (0.00, 0.00, 0.00, 1.00, 0.80),
    # versions: of torch no error travels to another release; of the others none in what they run
    "software.torch": (0.00, 0.00, 0.00, 0.00, 0.00),
    "software.cuda": (0.90, 0.90, 0.90, 0.00, 0.50),
    "software.transformers": (0.00, 0.00, 0.00, 1.00, 1.00),
    "software.bitsandbytes": (0.50, 0.50, 0.50, 0.80, 1.00),
    "software.peft": (0.50, 0.50, 0.50, 1.00, 1.00),
    "software.litgpt": (0.00, 0.00, 0.00, 1.00, 1.00),
    "software.torchtitan": (0.00, 0.00, 0.00, 1.00, 1.00),
    "software.trl": (0.00, 0.00, 0.00, 1.00, 1.00),
    "software.vllm": _ALL,
    "software.sglang": _ALL,
    "software.module_loading": (1.00, 1.00, 1.00, 0.00, 1.00),
    "software.cublas_workspace": (0.00, 1.00, 0.90, 0.90, 1.00),
    # the model
    "model.family": (0.00, 0.00, 0.30, 1.00, 1.00),
    "model.shape": (0.50, 0.80, 0.60, 1.00, 1.00),
    "model.task": (0.00, 0.00, 0.00, 1.00, 1.00),
    "model.attention": (0.90, 0.00, 0.00, 0.90, 1.00),
    "model.num_labels": _ALL,  # in the shape
    "model.config": _ALL,  # in family and shape
    "model.id": _ALL,
    "model.code_folder": _ALL,
    "model.trust_remote_code": _ALL,
    # the step
    "training.framework": (0.00, 0.00, 0.00, 0.80, 0.90),
    "training.micro_batch": (1.00, 0.97, 0.75, 1.00, 1.00),
    "training.sequence_length": (1.00, 0.95, 0.75, 1.00, 1.00),
    "training.gradient_accumulation": _ALL,
    "accumulates": (0.90, 0.90, 0.50, 1.00, 1.00),
    "training.optimizer": (0.00, 0.90, 0.00, 1.00, 1.00),
    "training.optimizer_options": (0.00, 0.95, 0.50, 1.00, 1.00),
    "training.precision": (0.00, 0.00, 0.00, 0.95, 1.00),
    "training.compile": (0.00, 0.00, 0.00, 0.00, 1.00),
    "training.varying_lengths": (0.90, 0.80, 0.30, 1.00, 1.00),
    "training.trainable_parameters": _ALL,
    # adapters
    "lora": (0.00, 0.00, 0.00, 0.80, 0.90),
    "lora.rank": (0.50, 0.90, 0.70, 1.00, 1.00),
    "lora.targets": (0.50, 0.70, 0.60, 1.00, 1.00),
    "lora.quantization": (0.00, 0.00, 0.00, 0.80, 1.00),
    # parallelism: more ranks of the same kind
    "distributed": (0.00, 0.00, 0.00, 0.90, 0.00),
    "parallel.strategy": (0.00, 0.00, 0.00, 0.90, 0.00),
    "parallel.data_shard": (0.70, 0.95, 0.60, 1.00, 0.80),
    "parallel.data_replicate": (0.90, 0.97, 0.80, 1.00, 0.80),
    "parallel.load_on_rank_zero": (0.90, 1.00, 0.90, 1.00, 1.00),
    # what no step depends on
    "name": _ALL,
    "run": _ALL,
    "target": _ALL,
    "unsure": _ALL,
    "saving": _ALL,
    "peak": (0.50, 0.30, 0.50, 1.00, 1.00),
}
_TABLES = ("run.", "target.", "unsure.", "saving.")
"""Tables without an effect on a step."""


def kinship(one: Subject, other: Subject) -> dict[Mechanism, float]:
    """Return the share of each mechanism's error that two subjects have in common; the same for either order."""
    shares = [1.0] * len(MECHANISMS)
    first, second = one.traits, other.traits
    for name in first.keys() | second.keys():
        mine, its = first.get(name), second.get(name)
        if mine == its:
            continue
        row = share_row(name)
        unknown = (mine is None or its is None) and _may_be_unknown(name)
        shares = [
            had * (max(share, _UNKNOWN_SHARE) if unknown else share) for had, share in zip(shares, row, strict=True)
        ]
    return dict(zip(MECHANISMS, shares, strict=True))


def differences(one: Subject, other: Subject) -> dict[str, object]:
    """Return the settings of the first subject that differ from the other's and that change a step, by dotted key."""
    first, second = one.traits, other.traits
    names = (name for name in first if first[name] != second.get(name) and "." in name)
    return {name: first[name] for name in sorted(names) if share_row(name) != _ALL}


@cache
def share_row(name: str) -> _Shares:
    """Return what a difference in a trait leaves of each mechanism's error."""
    if name in _TRAITS:
        return _TRAITS[name]
    return _ALL if name.startswith(_TABLES) else _ELSE


def _may_be_unknown(name: str) -> bool:
    return name.startswith("software.") or name in ("card", "driver", "machine")
