"""What rehearsals take libraries of CUDA to keep: against figures that were measured with them."""

import sys
from types import ModuleType

import pytest

from vramtop.estimator.worker.replaced import replaced

torch = pytest.importorskip("torch")

from vramtop.estimator.worker.rehearsal.attention import give_flash_attention  # noqa: E402
from vramtop.estimator.worker.rehearsal.fake_gpu import Doubts  # noqa: E402
from vramtop.estimator.worker.rehearsal.recurrent_kernels import recurrent_layers  # noqa: E402


@pytest.mark.parametrize(
    ("kind", "parameters", "reserve", "workspace"),
    [("LSTM", 3_038_090, 736_000_000, 17_730_560), ("GRU", 2_279_370, 864_000_000, 13_169_920)],
)
def test_recurrent_layers_keep_what_cudnn_was_measured_to_keep(kind, parameters, reserve, workspace) -> None:
    """Pytorch's issue 2895: four layers of 320, and a linear one that makes ten classes of them."""
    with torch.device("meta"):
        net = getattr(torch.nn, kind)(123, 320, 4)
        head = torch.nn.Linear(320, 10)
        tokens = torch.empty(250, 100, 123)
    assert sum(each.numel() for module in (net, head) for each in module.parameters()) == parameters
    kept: list[int] = []
    made: list[int] = []

    class Made(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            made.append(result.nbytes if isinstance(result, torch.Tensor) else 0)
            return result

    def keep(tensor):
        kept.append(tensor.nbytes)
        return tensor

    with (
        replaced(*recurrent_layers(lambda _: True, Doubts())),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda each: each),
        Made(),
    ):
        net(tokens)[0].sum().backward()
    assert reserve in kept
    assert made.count(workspace) == 2  # forward and backward


@pytest.mark.parametrize(("torch_version", "is_ampere"), [("2.13.0", True), ("2.13.0", False), ("2.10.0", True)])
def test_bf16_recurrent_layers_are_cudnn_s_since_it_takes_them(torch_version, is_ampere, monkeypatch) -> None:
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion(torch_version))
    doubts = Doubts()
    with replaced(*recurrent_layers(lambda _: True, doubts, is_ampere=is_ampere)):
        torch.nn.LSTM(4, 8, dtype=torch.bfloat16)(torch.empty(5, 2, 4, dtype=torch.bfloat16))
    single_steps = "recurrent layers without cuDNN run as single steps" in doubts.sentences
    assert single_steps is (not is_ampere or torch_version == "2.10.0")


def test_models_of_an_older_transformers_get_flash_attn_which_packs_and_pads(monkeypatch) -> None:
    model = ModuleType("transformers.models.older")
    model.is_flash_attn_2_available = lambda: False
    model.flash_attn_func = None  # as before 4.53, where flash-attn was not installed
    monkeypatch.setitem(sys.modules, model.__name__, model)
    give_flash_attention()
    assert model.is_flash_attn_2_available()
    assert model.flash_attn_func is not None
    assert model._flash_attention_forward is not None
    padded = torch.arange(24.0).reshape(2, 4, 3)
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    tokens, indices, before, longest = model.unpad_input(padded, mask)
    assert (tokens.shape, before.tolist(), longest) == ((5, 3), [0, 3, 5], 3)
    assert torch.equal(model.pad_input(tokens, indices, 2, 4), padded * mask[..., None])
    assert torch.equal(model.index_first_axis(padded.flatten(0, 1), indices), tokens)
