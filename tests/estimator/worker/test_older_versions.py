"""Older transformers' loss and experts on today's models, against a transcription of what these versions ran."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from storage_counter import StorageCounter

from vramtop.estimator.worker.model.build import separate_experts, use_older_loss

SIZES: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
    "use_cache": False,
}
ROWS, TOKENS = 2, 64
NAMES = ("w1", "w3", "w2")


def model(kind: str = "llama", **fields: Any) -> Any:
    torch.set_default_dtype(torch.bfloat16)
    try:
        config = transformers.AutoConfig.for_model(kind, **SIZES, **fields)
        return transformers.AutoModelForCausalLM.from_config(config)
    finally:
        torch.set_default_dtype(torch.float32)


def loss_of_4_48(built: Any, ids: Any) -> Any:
    """Return the loss as ``LlamaForCausalLM`` and ``ForCausalLMLoss`` of transformers 4.48 compute it."""
    logits = built.lm_head(built.model(input_ids=ids).last_hidden_state)
    wide = logits.float()
    shifted = wide[..., :-1, :].contiguous()
    loss = torch.nn.functional.cross_entropy(shifted.view(-1, SIZES["vocab_size"]), ids[..., 1:].reshape(-1))
    return loss, logits


def loss_of_4_45(built: Any, ids: Any) -> Any:
    """Return the loss as ``LlamaForCausalLM`` of transformers 4.45 computes it."""
    logits = built.lm_head(built.model(input_ids=ids).last_hidden_state)
    logits = logits.float()
    shifted = logits[..., :-1, :].contiguous()
    loss = torch.nn.functional.cross_entropy(shifted.view(-1, SIZES["vocab_size"]), ids[..., 1:].reshape(-1))
    return loss, logits


def peaks(built: Any, run: Any) -> tuple[int, int, int]:
    """Return the highest bytes of forward, what it leaves, and the highest bytes of backward, beside the weights."""
    ids = torch.randint(0, SIZES["vocab_size"], (ROWS, TOKENS))
    counter = StorageCounter()
    resize, empty = torch.UntypedStorage.resize_, []

    def emptied(storage: Any, size: int) -> Any:  # the counter sees only storages that come and go
        counter.live -= storage.nbytes() - size
        empty.append(storage)  # its release would be counted again
        return resize(storage, size)

    for tensor in built.parameters():
        counter.count(tensor)
    before = counter.live
    torch.UntypedStorage.resize_ = emptied  # type: ignore[method-assign]
    try:
        with counter:
            loss, logits = run(built, ids)
            forward, left = counter.peak - before, counter.live - before
            del logits
            counter.reset_peak()
            loss.backward()
    finally:
        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]
    return forward, left, counter.peak - before


@pytest.mark.parametrize(("cast", "run"), [(False, loss_of_4_48), (True, loss_of_4_45)])
def test_the_loss_takes_what_the_older_version_took(cast: bool, run: Any) -> None:
    def by_model(built: Any, ids: Any) -> Any:
        outputs = built(input_ids=ids, labels=ids)
        return outputs.loss, outputs.logits

    ours = model()
    use_older_loss(ours, "causal-lm", SimpleNamespace(copies_shifted_logits=True, casts_logits_in_model=cast))
    one_label = 8 * ROWS * TOKENS  # labels are int64, and cut or copied once more or less
    today, expected = peaks(model(), by_model), peaks(model(), run)
    found = peaks(ours, by_model)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == pytest.approx(theirs, abs=4 * one_label)
    assert found[0] - today[0] > 1.8 * ROWS * TOKENS * SIZES["vocab_size"]  # a copy of the logits, in fp32 or nearly


class _OldBlock(torch.nn.Module):
    """``MixtralSparseMoeBlock`` of transformers 4.48, with every token sent to experts in turn."""

    def __init__(self, experts: Any, top_k: int) -> None:
        super().__init__()
        self.experts, self.top_k = experts, top_k

    def forward(self, hidden_states: Any) -> Any:
        count, hidden = len(self.experts), hidden_states.shape[-1]
        hidden_states = hidden_states.view(-1, hidden)
        rows = hidden_states.shape[0]
        selected = (torch.arange(rows * self.top_k) % count).view(rows, self.top_k)
        weights = torch.full((rows, self.top_k), 0.5).to(hidden_states.dtype)
        final = torch.zeros((rows, hidden), dtype=hidden_states.dtype)
        mask = torch.nn.functional.one_hot(selected, num_classes=count).permute(2, 1, 0)
        for number in range(count):
            expert = self.experts[number]
            idx, top_x = torch.where(mask[number])
            state = hidden_states[None, top_x].reshape(-1, hidden)
            found = expert(state) * weights[top_x, idx, None]
            final.index_add_(0, top_x, found.to(hidden_states.dtype))
        return final


def test_separate_experts_save_what_the_old_loop_saved() -> None:
    built = model("mixtral", num_local_experts=4, num_experts_per_tok=2)
    separate_experts(built, NAMES)
    experts = built.model.layers[0].mlp.experts
    linear = [module for module in built.modules() if type(module) is torch.nn.Linear]
    assert len(linear) == 4 + 3 * 4 + 1  # attention, experts, head
    tokens = torch.randn(ROWS * TOKENS, SIZES["hidden_size"], dtype=torch.bfloat16, requires_grad=True)

    def saved(run: Any) -> int:
        found: dict[int, int] = {}

        def keep(tensor: Any) -> Any:
            if tensor.is_floating_point() and not isinstance(tensor, torch.nn.Parameter):
                found[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            kept = run(tokens * 1)
        assert kept.shape == tokens.shape
        return sum(found.values())

    indices = (torch.arange(tokens.shape[0] * 2) % 4).view(-1, 2)
    weights = torch.full(indices.shape, 0.5, dtype=torch.bfloat16)
    ours = saved(lambda hidden: experts(hidden, indices, weights))
    assert ours == saved(_OldBlock(experts, 2))
    assert ours > 0


def test_experts_that_were_always_fused_stay_so() -> None:
    built = model()
    before = [type(module) for module in built.modules()]
    separate_experts(built, NAMES)
    assert [type(module) for module in built.modules()] == before
