"""The stand-in for Mamba 2's fused kernel: what a real block saves with it, counted by autograd's hooks."""

import sys
import types
from typing import Any

import pytest

from vramtop.estimator.worker.loops import training_loop

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOKENS, HIDDEN, HEADS, HEAD, STATE = 256, 128, 8, 32, 16
CONFIG: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "mamba_n_heads": HEADS,
    "mamba_d_head": HEAD,
    "mamba_d_state": STATE,
    "mamba_chunk_size": 64,
    "vocab_size": 100,
    "num_hidden_layers": 1,
    "attn_layer_indices": [],
}


@pytest.fixture
def mixer() -> Any:
    config = transformers.AutoConfig.for_model("bamba", **CONFIG)
    model = transformers.AutoModel.from_config(config).bfloat16().train()
    return next(module for module in model.modules() if type(module).__name__ == "BambaMixer")


def saved_bytes(mixer: Any) -> int:
    weights = {weight.untyped_storage()._cdata for weight in mixer.parameters()}
    kept: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        if tensor.untyped_storage()._cdata not in weights and tensor.numel() >= TOKENS:
            kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = mixer(torch.zeros(1, TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True))
    output.sum().backward()
    return sum(storage.nbytes() for storage in kept.values())


def test_the_fused_kernel_keeps_the_projection_and_the_scans_output(mixer: Any) -> None:
    plain = saved_bytes(mixer)
    with training_loop.fused_state_spaces([type(mixer).__module__]):
        fused = saved_bytes(mixer)
    inner = HEADS * HEAD
    projected = 2 * inner + 2 * STATE + HEADS
    assert fused == TOKENS * (2 * (HIDDEN + projected + inner) + 4)
    assert plain > 4 * fused
    assert saved_bytes(mixer) == plain


def test_it_stands_in_only_where_the_kernels_are_installed(mixer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = type(mixer).__module__
    monkeypatch.setattr(training_loop.importlib.util, "find_spec", lambda _name: None)
    assert training_loop.kernel_versions([module]) == {}
    monkeypatch.setattr(training_loop.importlib.util, "find_spec", lambda _name: object())
    monkeypatch.setattr(training_loop.importlib.metadata, "version", lambda _name: "2.3")
    assert training_loop.kernel_versions([module]) == {"mamba_ssm": "2.3", "causal_conv1d": "2.3"}
    assert training_loop.kernel_versions([sys.__name__]) == {}


def test_modules_that_import_what_they_are_asked_for_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As transformers 5.20 has aliases of its image processors, which need torchvision."""

    def load(name: str) -> Any:
        raise ModuleNotFoundError("No module named 'torchvision'")

    alias = types.ModuleType("transformers.models.made_up.image_processing_made_up_fast")
    monkeypatch.setattr(alias, "__getattr__", load, raising=False)
    monkeypatch.setitem(sys.modules, alias.__name__, alias)
    assert training_loop.kernel_versions() == {}
    with training_loop.fused_state_spaces([alias.__name__]):
        pass
