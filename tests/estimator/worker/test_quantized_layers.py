"""Quantized linear layers, k-bit preparation and dropout of adapters: the stand-ins against peft and bitsandbytes."""

import contextlib
import gc
import itertools
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from storage_counter import StorageCounter
from worker_requests import complete

from vramtop.estimator.job.rules.dtype_widths import tensor_bytes
from vramtop.estimator.worker.model.build import prepare_for_training
from vramtop.estimator.worker.model.quantized import (
    Linear4bit,
    autocast_seen_by_peft,
    cast_to_fp32,
    quantize_linear_layers,
)
from vramtop.estimator.worker.request.request import Request, read_request

SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
    "use_cache": False,
}
TARGETS = ["q_proj", "o_proj", "down_proj"]
ROWS, TOKENS = 2, 64


def request(
    kind: str = "nf4",
    *,
    prepared: str = "none",
    adapter: str | None = None,
    dropout: float = 0.0,
    older: dict[str, bool] | None = None,
    **training: Any,
) -> Request:
    own = {"quantization": kind, "fp32_parameters": prepared, "adapter_dtype": adapter, "dropout": dropout}
    tables = {"training": {"precision": "bf16", **training}, "lora": {"rank": 8, "targets": TARGETS, **own}}
    return read_request(complete({**tables, "older": older or {}}))


def model() -> Any:
    torch.set_default_dtype(torch.bfloat16)
    try:
        return transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**SIZES))
    finally:
        torch.set_default_dtype(torch.float32)


def quantized(kind: str) -> Any:
    built = model()
    quantize_linear_layers(built, request(kind))
    return built


def live_bytes(built: Any, *, autocast: bool) -> tuple[int, int]:
    """Return what a forward pass leaves allocated beside the model, and the highest bytes of its backward pass."""
    ids = torch.randint(0, 512, (ROWS, TOKENS))
    casting = torch.autocast("cpu", dtype=torch.bfloat16) if autocast else contextlib.nullcontext()
    counter = StorageCounter()
    for tensor in itertools.chain(built.parameters(), built.buffers()):
        counter.count(tensor)
    before = counter.live
    with counter, autocast_seen_by_peft():
        with casting:
            loss = built(input_ids=ids, labels=ids).loss
        after = counter.live
        counter.reset_peak()
        loss.backward()
    del loss
    gc.collect()
    return after - before, counter.peak - before


@pytest.mark.parametrize("kind", ["nf4", "nf4-double", "int8"])
def test_a_layer_stores_what_bitsandbytes_stores(kind: str) -> None:
    layer = quantized(kind).model.layers[0].mlp.up_proj
    stored = [tensor.nbytes for tensor in (*layer.parameters(), *layer.buffers())]
    assert sorted(stored) == sorted(tensor_bytes((256, 128), kind))


def test_head_and_norms_are_not_quantized() -> None:
    kinds = {name: type(module) for name, module in quantized("nf4").named_modules()}
    assert kinds["lm_head"] is torch.nn.Linear
    assert sum(kind is Linear4bit for kind in kinds.values()) == 7 * SIZES["num_hidden_layers"]


def test_a_quantized_layer_returns_the_dtype_that_it_reads() -> None:
    layer = quantized("nf4").model.layers[0].mlp.up_proj
    for dtype in (torch.bfloat16, torch.float32):
        assert layer(torch.randn(3, 128, dtype=dtype)).dtype == dtype


@pytest.mark.slow
def test_only_8_bit_layers_and_older_4_bit_ones_keep_their_input() -> None:
    def kept(layer: Any) -> bool:
        tensor = torch.randn(ROWS, 128, dtype=torch.bfloat16, requires_grad=True) * 1
        result = layer(tensor)
        counter = StorageCounter()
        counter.count(tensor)
        del tensor
        gc.collect()
        assert result.requires_grad
        return counter.live > 0

    older = model()
    quantize_linear_layers(older, request(older={"keeps_quantized_inputs": True}))
    assert not kept(quantized("nf4").model.layers[0].mlp.up_proj)
    assert kept(older.model.layers[0].mlp.up_proj)
    assert kept(quantized("int8").model.layers[0].mlp.up_proj)


def test_preparation_casts_what_pefts_function_casts() -> None:
    ours, theirs = quantized("nf4"), quantized("nf4")
    cast_to_fp32(ours, "all")
    theirs = prepare_model_for_kbit_training(theirs, use_gradient_checkpointing=False)
    found = [{name: tensor.dtype for name, tensor in each.named_parameters()} for each in (ours, theirs)]
    assert found[0] == found[1]
    assert found[0]["model.norm.weight"] == found[0]["lm_head.weight"] == torch.float32
    by_trl = quantized("nf4")
    cast_to_fp32(by_trl, "norms")
    assert by_trl.model.norm.weight.dtype == torch.float32
    assert by_trl.lm_head.weight.dtype == torch.bfloat16


@pytest.mark.slow
def test_the_residual_stream_of_a_prepared_model_is_fp32() -> None:
    """Checkpoints double: what each block after the first reads is fp32; the last norm kept an fp32 copy anyway."""
    settings: dict[str, Any] = {"activation_checkpointing": "full"}
    kept = {
        prepared: live_bytes(prepare_for_training(model(), request(prepared=prepared, **settings)), autocast=True)[0]
        for prepared in ("none", "norms")
    }
    stream = 2 * ROWS * TOKENS * SIZES["hidden_size"]
    assert kept["norms"] - kept["none"] == (SIZES["num_hidden_layers"] - 1) * stream


@pytest.mark.slow
@pytest.mark.parametrize("adapter", [None, "bf16"])
def test_dropout_costs_a_mask_and_what_the_adapter_reads(adapter: str | None) -> None:
    """fp32 adapters read a copy of their own with or without dropout; 16-bit ones read what other layers save too."""
    without, dropped = (
        live_bytes(prepare_for_training(model(), request(adapter=adapter, dropout=rate)), autocast=False)[0]
        for rate in (0.0, 0.1)
    )
    tokens, blocks, hidden, mlp = ROWS * TOKENS, SIZES["num_hidden_layers"], 128, 256
    mask = 4 if adapter is None else 2  # a CPU's is as wide as the input, CUDA's one byte
    # the first block's first adapter has nothing before it that needs a gradient, and so no mask
    expected = tokens * mask * (blocks * (2 * hidden + mlp) - hidden)
    if adapter is not None:  # own inputs; without dropout only attention's output was saved besides
        expected += tokens * blocks * 2 * hidden
    assert dropped - without == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nf4", "nf4-double"])
@pytest.mark.parametrize("prepared", ["none", "norms", "all"])
@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize(("adapter", "dropout"), [(None, 0.0), (None, 0.1), ("bf16", 0.1)])
def test_steps_take_what_they_take_with_bitsandbytes(
    kind: str, prepared: str, checkpointed: bool, adapter: str | None, dropout: float
) -> None:
    """Runs where bitsandbytes is installed: the same bytes after forward, and the same peak of backward."""
    library = pytest.importorskip("bitsandbytes")
    checkpointing = "full" if checkpointed else "none"
    ours = prepare_for_training(
        model(),
        request(kind, prepared=prepared, adapter=adapter, dropout=dropout, activation_checkpointing=checkpointing),
    )
    theirs = _with_bitsandbytes(library, kind, prepared)
    theirs = get_peft_model(theirs, LoraConfig(r=8, target_modules=TARGETS, lora_dropout=dropout))
    if adapter:
        for parameter in theirs.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(torch.bfloat16)
    if checkpointed:
        theirs.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        theirs.enable_input_require_grads()
    for autocast in (False, True) if prepared != "norms" else (True,):
        assert live_bytes(ours, autocast=autocast) == live_bytes(theirs.train(), autocast=autocast)


def _with_bitsandbytes(library: Any, kind: str, prepared: str) -> Any:
    built, nested = model(), kind == "nf4-double"
    for path, module in list(built.named_modules()):
        if type(module) is not torch.nn.Linear or path == "lm_head":
            continue
        sizes = module.in_features, module.out_features
        options = {"compress_statistics": nested, "quant_type": "nf4"}
        layer = library.nn.Linear4bit(*sizes, False, torch.bfloat16, **options)
        weight = module.weight.data.clone()
        layer.weight = library.nn.Params4bit(weight, requires_grad=False, module=layer, **options)
        built.set_submodule(path, layer.to("cpu"))
    built.is_loaded_in_4bit = True
    if prepared == "all":
        built = prepare_model_for_kbit_training(built, use_gradient_checkpointing=False)
    if prepared == "norms":
        for name, module in built.named_modules():
            if "norm" in name:
                module.to(torch.float32)
    return built


@pytest.mark.parametrize("strategy", ["fsdp1", "fsdp2"])
@pytest.mark.parametrize("kind", ["nf4", "nf4-double"])
def test_quantized_weights_are_traced_in_shards(ask_worker: Any, strategy: str, kind: str) -> None:
    """Packed weights are sharded, their scales are not."""

    def weights(parallel: dict[str, Any]) -> int:
        message = {
            "op": "trace",
            "config": {"model_type": "llama", **SIZES},
            "training": {"precision": "bf16", "micro_batch": 1, "sequence_length": 32},
            "lora": {"rank": 8, "targets": TARGETS, "quantization": kind, "adapter_dtype": "bf16"},
            "optimizer": {"path": "torch.optim:SGD", "options": {}},
            "parallel": parallel,
        }
        answer = ask_worker(message)
        assert "unsupported" not in answer
        return int(answer["phases"]["loading"]["components"]["weights"])

    whole, shard = weights({}), weights({"strategy": strategy, "data_shard": 2})
    linear = SIZES["num_hidden_layers"] * (128 * (2 * 128 + 2 * 64) + 3 * 128 * 256)
    assert whole - shard >= linear // 2 // 2
    assert shard > whole // 2
