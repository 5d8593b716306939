"""Saved activations of LitGPT's blocks compared with torch autograd, and the logits of its scripts."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from model_configs import llama_config
from torch.nn import functional

from vramtop.estimator.estimation import estimate
from vramtop.estimator.formula.activations.saved_activations import saved_activations
from vramtop.estimator.formula.logits_and_loss import loss_bytes
from vramtop.estimator.formula.loss_bytes import LossBytes
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.job.resolved_job import resolve_job
from vramtop.estimator.model.count_parameters import count_parameters
from vramtop.estimator.model.rank_share import stages
from vramtop.estimator.model.read_architecture import read_architecture

HIDDEN, MLP, HEADS, LENGTH, RANK, VOCAB = 256, 704, 8, 128, 8, 32000
HEAD = HIDDEN // HEADS
EVERYTHING = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def job(
    targets: list[str] | None,
    *,
    kv_heads: int = HEADS,
    software: dict[str, str] | None = None,
    quantization: str = "none",
    **training: Any,
) -> Job:
    config = llama_config(
        hidden=HIDDEN, mlp=MLP, layers=2, heads=HEADS, kv_heads=kv_heads, vocab=VOCAB, tie_word_embeddings=False
    )
    lora = {"lora": {"rank": RANK, "targets": targets, "quantization": quantization}} if targets else {}
    return job_from_mapping(
        {
            "model": {"config": config},
            "training": {"framework": "litgpt", "precision": "bf16", "sequence_length": LENGTH, **training},
            "software": software or {},
            **lora,
        },
        where="test",
    )


class Adapted(torch.nn.Module):
    """A frozen linear layer with dropout and two adapter matrices; ``parts``: sizes and which are adapted."""

    def __init__(self, size: int, parts: list[tuple[int, bool]]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(sum(n for n, _ in parts), size))
        self.adapted = [n for n, adapted in parts if adapted]
        offsets = torch.arange(len(self.weight)).split([n for n, _ in parts])
        self.places = torch.cat([offsets[i] for i, (_, a) in enumerate(parts) if a] or [torch.empty(0)])
        self.weight.requires_grad = not self.adapted
        if self.adapted:
            self.down = torch.nn.Parameter(torch.zeros(RANK * len(self.adapted), size))
            self.up = torch.nn.Parameter(torch.zeros(sum(self.adapted), RANK))

    def forward(self, x: Any) -> Any:
        out = functional.linear(x, self.weight)
        if not self.adapted:
            return out
        low = functional.linear(torch.native_dropout(x, 0.05, True)[0], self.down)  # the GPU's dropout
        ups = zip(low.chunk(len(self.adapted), dim=-1), self.up.split(self.adapted), strict=True)
        rows = [functional.conv1d(a.transpose(1, 2), b.unsqueeze(-1)) for a, b in ups]
        added = torch.cat(rows, dim=1).transpose(1, 2)
        if added.shape != out.shape:
            flat = out.new_zeros(LENGTH, out.shape[-1])
            added = flat.index_copy(1, self.places, added.reshape(LENGTH, -1)).view(out.shape)
        return out + added * 2.0


class Norm(torch.nn.Module):
    """RMSNorm of litgpt since 0.4.6."""

    def __init__(self, trained: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(HIDDEN), requires_grad=trained)

    def forward(self, x: Any) -> Any:
        wide = x.float()
        normed = wide * torch.rsqrt(torch.mean(wide * wide, dim=-1, keepdim=True) + 1e-6)
        return (normed * self.weight.float()).to(x.dtype)


class Block(torch.nn.Module):
    """One of LitGPT's blocks: the operations of its ``CausalSelfAttention`` and ``LLaMAMLP``, in their order."""

    def __init__(self, targets: list[str] | None, kv_heads: int) -> None:
        super().__init__()
        on = set(targets or ())
        self.kv_heads = kv_heads
        kv = kv_heads * HEAD
        self.norm_1, self.norm_2 = Norm(not on), Norm(not on)
        self.qkv = Adapted(HIDDEN, [(HIDDEN, "q_proj" in on), (kv, "k_proj" in on), (kv, "v_proj" in on)])
        self.out = Adapted(HIDDEN, [(HIDDEN, "o_proj" in on)])
        self.gate = Adapted(HIDDEN, [(MLP, "gate_proj" in on)])
        self.up = Adapted(HIDDEN, [(MLP, "up_proj" in on)])
        self.down = Adapted(MLP, [(HIDDEN, "down_proj" in on)])
        for layer in (self.qkv, self.out, self.gate, self.up, self.down):
            layer.weight.requires_grad = not on

    def forward(self, x: Any) -> Any:
        shared = HEADS // self.kv_heads
        qkv = self.qkv(self.norm_1(x)).view(1, LENGTH, self.kv_heads, shared + 2, HEAD).permute(0, 2, 3, 1, 4)
        q, k, v = qkv.split((shared, 1, 1), dim=2)
        if shared > 1:
            k, v = (t.expand(1, self.kv_heads, shared, LENGTH, HEAD) for t in (k, v))
        q, k, v = (t.reshape(1, HEADS, LENGTH, HEAD) for t in (q, k, v))
        cos = torch.ones(LENGTH, HEAD, dtype=x.dtype)
        q, k = ((t * cos + t.flip(-1) * cos).contiguous() for t in (q, k))
        y = Fused.apply(q, k, v).transpose(1, 2).reshape(1, LENGTH, HIDDEN)
        x = self.out(y) + x
        normed = self.norm_2(x)
        return self.down(functional.silu(self.gate(normed)) * self.up(normed)) + x


class Fused(torch.autograd.Function):
    """Save the tensors that flash attention saves on a GPU; the output has the layout of the queries."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
        output = torch.empty_like(q)
        ctx.save_for_backward(q, k, v, output, q.new_empty(q.shape[:3], dtype=torch.float32))
        return output


def saved_by_autograd(targets: list[str] | None, kv_heads: int) -> int:
    """Bytes of distinct storages that one block saves, parameters excepted."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        block = Block(targets, kv_heads)
        weights = {weight.untyped_storage()._cdata for weight in block.parameters()}
        kept: dict[int, torch.UntypedStorage] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in weights and tensor.shape[-1] != RANK and tensor.dtype != torch.int64:
                kept[storage._cdata] = storage
            return tensor

        x = torch.zeros(1, LENGTH, HIDDEN, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            block(x + 0)
    finally:
        torch.set_default_dtype(torch.float32)
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("kv_heads", [8, 2])
@pytest.mark.parametrize("targets", [None, ["q_proj", "v_proj"], EVERYTHING])
def test_a_block_saves_what_autograd_saves(targets: list[str] | None, kv_heads: int) -> None:
    stated = job(targets, kv_heads=kv_heads)
    arch = read_architecture(stated.model.config or {})
    stage = stages(resolve_job(stated), count_parameters(arch))[0]
    saved = saved_activations(resolve_job(stated), arch, stage)
    assert saved.layer_bytes == pytest.approx(saved_by_autograd(targets, kv_heads), rel=0.03)


def loss_of(stated: Job) -> LossBytes:
    arch = read_architecture(stated.model.config or {})
    return loss_bytes(resolve_job(stated), arch, stages(resolve_job(stated), count_parameters(arch))[0])


def test_logits_of_the_previous_micro_batch_exist_while_the_next_are_cast() -> None:
    """16-bit logits, their fp32 copies, and the fp32 ones that the script's variable holds."""
    logits = 512 * VOCAB
    loss = loss_of(job(["q_proj"], sequence_length=512))
    assert loss.forward_bytes == (4 + 2 + 4) * logits
    assert loss.backward_bytes == (4 + 4) * logits + 8 * logits // 4
    assert loss.retained_bytes == loss.retained_before_bytes == 4 * logits


def test_full_finetuning_cuts_the_last_position_off_by_a_copy() -> None:
    logits = 2 * 512 * VOCAB
    assert loss_of(job(None, sequence_length=512, micro_batch=2)).backward_bytes == 12 * logits


def test_early_versions_start_with_the_longest_sample() -> None:
    assert loss_of(job(["q_proj"], software={"litgpt": "0.1"})).retained_before_bytes == 0


def test_old_4_bit_layers_keep_their_inputs_and_those_of_the_micro_batch_before() -> None:
    targets, old = ["q_proj", "v_proj"], {"bitsandbytes": "0.42.0"}
    tokens, per_layer = 2 * LENGTH, 2 * (3 * HIDDEN + MLP)

    def forward(software: dict[str, str]) -> int:
        budget = estimate(job(targets, quantization="nf4", software=software, micro_batch=2))
        return next(phase.components.activations for phase in budget.phases if phase.name == "forward")

    today = forward({})
    once = (2 * per_layer + 2 * HIDDEN) * tokens  # two blocks, and the head
    assert forward({**old, "litgpt": "0.1"}) - today == once
    assert forward({**old, "litgpt": "0.4"}) - today == 2 * once


def test_the_head_is_quantized_too_and_unpacked_twice_for_its_product() -> None:
    plain, quantized = (loss_of(job(["q_proj"], quantization=kind)) for kind in ("none", "nf4"))
    assert quantized.forward_bytes - plain.forward_bytes == 4 * VOCAB * HIDDEN - 4 * LENGTH * VOCAB
    kinds = ("none", "nf4")
    plain_weights, weights = (estimate(job(["q_proj"], quantization=k)).phases[0].components.weights for k in kinds)
    linear = 2 * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * MLP) + VOCAB * HIDDEN
    assert plain_weights - weights == pytest.approx(linear * (2 - 0.5625), rel=0.001)


def test_the_head_is_adapted_if_it_is_named() -> None:
    without, with_head = (estimate(job(t)).model.trainable_parameters for t in (["q_proj"], ["q_proj", "lm_head"]))
    assert with_head - without == RANK * (HIDDEN + VOCAB)


@pytest.mark.slow
def test_queries_and_values_are_parts_of_a_fused_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fused = {"model_type": "gpt_neox", "vocab_size": 1000, "hidden_size": HIDDEN, "intermediate_size": MLP}
    config = {**fused, "num_hidden_layers": 2, "num_attention_heads": HEADS}
    tables = {"model": {"config": config}, "lora": {"rank": RANK, "targets": ["q_proj", "v_proj"]}}
    stated = job_from_mapping({**tables, "training": {"framework": "litgpt"}}, where="test")
    assert estimate(stated).model.trainable_parameters == 2 * RANK * (HIDDEN + 3 * HIDDEN)
    exact = estimate(stated, method="exact", python=sys.executable)  # where peft finds no such layers
    assert exact.method == "exact"
    assert exact.model.trainable_parameters == estimate(stated).model.trainable_parameters
