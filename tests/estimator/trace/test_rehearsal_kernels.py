"""Rehearsals of programs with kernels of other libraries, and with CUDA graphs."""

import sys
from pathlib import Path

import pytest
from rehearsed import rehearse, rehearse_beside_cpu, torchrun, trains
from slow_cases import first_quick, quick_every

pytest.importorskip("torch")

OPERATOR = trains(
    "scaled(net(torch.randn(4096, 64, device=dev))).square().mean().backward()",
    before="""
def scaled(x: torch.Tensor) -> torch.Tensor:
    wide = torch.empty(4 * x.numel(), device=x.device)
    made = x * 2
    del wide
    return made
def needs_gpu(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("a kernel in C++")
if dev == "cuda":
    scaled = torch.library.custom_op("mine::scaled", scaled, mutates_args=())
    scaled.register_autograd(lambda ctx, gradient: gradient * 2)
    op = torch.library.custom_op("mine::compiled", needs_gpu, mutates_args=())
    op.register_fake(lambda x: torch.empty_like(x))
    assert op(torch.zeros(3, device=dev)).device.type == "cuda"
else:
    class Scaled(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x, plain=scaled: plain(x))
        backward = staticmethod(lambda ctx, gradient: gradient * 2)
    scaled = Scaled.apply
""",
)


def test_an_operator_defined_in_python_allocates_what_its_code_does(program) -> None:
    found = rehearse_beside_cpu(program(OPERATOR), rel=0.001)
    assert {each.steps for each in found.answer.steps} == {3}


JIT = """
from . import driver
class JITFunction:
    configs = ()
    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)
    def run(self, *args, **kwargs):
        raise AssertionError("no GPU")
"""
TUNER = """
class Autotuner:
    configs = ("a", "b")
    def run(self, *args, **kwargs):
        raise AssertionError("no GPU")
"""
DRIVER = """
class Config:
    active = None
    def set_active(self, active):
        self.active = active
driver = Config()
"""
LAUNCHES = trains(
    """
count = torch.zeros(1, dtype=torch.int64, device=dev)
assert count.item() == 0
jit.JITFunction()[(1,)](count, 3, out=net(torch.randn(64, 64).to(dev)))
if count.item(): pass
tuned.run(count)
net(torch.randn(4096, 64).to(dev)).square().mean().backward()
""",
    before="""
from triton.runtime import autotuner, driver, jit
assert driver.driver.active.get_current_target().backend == "cuda"
assert driver.driver.active.utils.get_device_properties(0)["multiprocessor_count"] > 1
tuned = autotuner.Autotuner()
""",
)


def test_kernels_of_triton_do_nothing(program) -> None:
    Path("triton/runtime").mkdir(parents=True)
    for name, text in (("jit", JIT), ("autotuner", TUNER), ("driver", DRIVER), ("__init__", "")):
        Path(f"triton/runtime/{name}.py").write_text(text, encoding="utf-8")
    Path("triton/__init__.py").touch()
    found = rehearse([sys.executable, program(LAUNCHES)])
    assert {each.steps for each in found.answer.steps} == {3}
    assert any("train.py:13 reads a number that is only known in a real run" in each for each in found.warnings)
    assert found.allocated_bytes - found.workspace_bytes == pytest.approx(256 << 20, rel=0.01)  # emptying the L2 cache


STEPS = """
def step():
    optimizer.zero_grad(set_to_none=True)
    nn.functional.mse_loss(net(x), y).backward()
    optimizer.step()
"""
NET = """
import torch, torch.nn as nn
net = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
x, y = (torch.randn(4096, 1024, device="cuda") for _ in "xy")
"""
GRAPH = """
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for i in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
for i in range(5):
    graph.replay()
"""
GRAPHED = """
net = torch.cuda.make_graphed_callables(net, (torch.randn_like(x, requires_grad=True),))
for i in range(3):
    step()
"""


def test_a_captured_step_runs_once(program) -> None:
    graph = rehearse([sys.executable, program(NET + STEPS + GRAPH)])
    eager = rehearse([sys.executable, program(NET + STEPS + "for i in range(3):\n    step()\n")])
    assert graph.allocated_bytes == eager.allocated_bytes
    assert graph.budget.peak.reserved_bytes >= eager.budget.peak.reserved_bytes
    assert any("CUDA graphs run once" in each for each in graph.warnings)
    assert "compiled" in graph.answer.doubt_kinds


@pytest.mark.slow
def test_a_graphed_modules_memory_is_its_own(program) -> None:
    """Its activations and gradients stay reserved for its graphs, beside what the rest of the step takes."""
    graphed = rehearse([sys.executable, program(NET + STEPS + GRAPHED)])
    eager = rehearse([sys.executable, program(NET + STEPS + "for i in range(3):\n    step()\n")])
    assert {each.steps for each in graphed.answer.steps} == {3}
    activations = 4096 * 4096 * 4
    assert graphed.budget.peak.reserved_bytes > eager.budget.peak.reserved_bytes + activations


ATTENTION = """
import torch, torch.nn as nn
{imports}
def heads(x):
    return [each.transpose(1, 2) for each in x]
qkv, out = (nn.Linear(512, n).cuda().bfloat16() for n in (1536, 512))
optimizer = torch.optim.SGD([*qkv.parameters(), *out.parameters()], 0.1)
for step in range(3):
    x = torch.randn(4, 1024, 512, device="cuda", dtype=torch.bfloat16)
    q, k, v = qkv(x).view(4, 1024, 3, 8, 64).unbind(2)
    y = {attention}
    out(y.reshape(4, 1024, 512)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
TORCHS = "nn.functional.scaled_dot_product_attention(*heads((q, k, v)), is_causal=True).transpose(1, 2)"


@pytest.mark.parametrize(
    ("imports", "attention"),
    quick_every(
        3,
        [
            ("from flash_attn import flash_attn_func", "flash_attn_func(q, k, v, causal=True)"),
            ("import flash_attn.flash_attn_interface as f", "f.flash_attn_func(q, k, v, 0.0, softmax_scale=0.1)"),
            ("from flash_attn import flash_attn_func as f", "f(q, k, v, return_attn_probs=True)[0]"),
        ],
    ),
)
def test_flash_attention_takes_what_torchs_own_takes(program, imports: str, attention: str) -> None:
    found = rehearse([sys.executable, program(ATTENTION.format(imports=imports, attention=attention))])
    same = rehearse([sys.executable, program(ATTENTION.format(imports="", attention=TORCHS))])
    assert found.allocated_bytes == same.allocated_bytes
    assert {each.steps for each in found.answer.steps} == {3}


def test_flash_attention_of_packed_sequences_writes_no_scores(program) -> None:
    imports = "from flash_attn import flash_attn_varlen_func as f, flash_attn_qkvpacked_func as g"
    packed = "f(*(each.reshape(-1, 8, 64) for each in (q, k, v)), None, None, 1024, 1024)"
    attention = f"{packed}.view(q.shape) + g(torch.stack([q, k, v], 2))"
    found = rehearse([sys.executable, program(ATTENTION.format(imports=imports, attention=attention))])
    of_inputs = 4 * 1024 * 512 * 2
    assert found.allocated_bytes - found.workspace_bytes < 32 * of_inputs  # scores alone would take 16 of them per head


@pytest.mark.parametrize(
    "imports",
    first_quick(
        [
            "try:\n    import flash_attn\nexcept ImportError:\n    flash_attn = None\nassert flash_attn is None",
            "import importlib.util\nassert importlib.util.find_spec('flash_attn') is None",
        ]
    ),
    ids=["a way without it", "a question"],
)
def test_flash_attention_is_not_there_for_who_only_asks(program, imports: str) -> None:
    found = rehearse([sys.executable, program(ATTENTION.format(imports=imports, attention=TORCHS))])
    assert {each.steps for each in found.answer.steps} == {3}


XFORMERS = """
def memory_efficient_attention(*args, **kwargs):
    raise NotImplementedError("no GPU")
"""


@pytest.mark.parametrize(
    ("attention", "mask"),
    quick_every(
        4,
        [
            ("f(q, k, v, attn_bias=None, p=0.0)", "None"),
            ("f(q, k, v, attn_bias=torch.zeros(4, 8, 1024, 1024, device='cuda', dtype=q.dtype))", "m"),
            (
                "f(*(each.transpose(1, 2).flatten(0, 1) for each in (q, k, v))).view(4, 8, 1024, 64).transpose(1, 2)",
                "-",
            ),
            ("forward_requires_grad(q, k, v)[0]", "None"),
        ],
    ),
)
def test_xformers_attention_takes_what_torchs_own_takes(program, attention: str, mask: str) -> None:
    Path("xformers/ops").mkdir(parents=True)
    program("", "xformers/__init__.py")
    program("from .fmha import *\n", "xformers/ops/__init__.py")
    program(XFORMERS, "xformers/ops/fmha.py")
    imports = "from xformers.ops import memory_efficient_attention as f\n"
    imports += "from xformers.ops import memory_efficient_attention_forward_requires_grad as forward_requires_grad"
    text = ATTENTION.format(imports=imports, attention=attention)
    found = rehearse([sys.executable, program(text)])
    bias = "torch.zeros(4, 8, 1024, 1024, device='cuda', dtype=q.dtype)" if mask == "m" else None
    torchs = TORCHS.replace("is_causal=True", f"attn_mask={bias}")
    if mask == "-":
        torchs = "nn.functional.scaled_dot_product_attention(*(e.transpose(1, 2).flatten(0, 1).unsqueeze(1) for e in "
        torchs += "(q, k, v))).view(4, 8, 1024, 64).transpose(1, 2)"
    same = rehearse([sys.executable, program(ATTENTION.format(imports="", attention=torchs))])
    assert found.allocated_bytes == pytest.approx(same.allocated_bytes, rel=0.01)


def test_a_librarys_own_parameters_and_python_kernels_run_as_they_are(program) -> None:
    """As bitsandbytes defines them: a class of parameters that moves itself, and a kernel for CUDA in Python."""
    before = """
class Packed(nn.Parameter):
    def __new__(cls, data, moved=False):
        made = torch.Tensor._make_subclass(cls, data, False)
        made.moved = moved
        return made
    def to(self, *args, **kwargs):
        return Packed(super().to(*args, **kwargs), True)
torch.library.define("packs::unpack", "(Tensor packed) -> Tensor")
@torch.library.register_fake("packs::unpack")
def _(packed):
    return packed.new_empty(2 * packed.numel())
@torch.library.register_kernel("packs::unpack", "cuda")
def _(packed):
    work = torch.empty(4 * packed.numel(), device=packed.device)
    assert packed.data_ptr() and work.is_cuda
    return torch.empty(2 * packed.numel(), device=packed.device)
packed = Packed(torch.zeros(1024, dtype=torch.uint8)).to("cuda")
assert isinstance(packed, Packed) and packed.moved and packed.is_cuda and packed.dtype == torch.uint8
before = torch.cuda.memory_allocated()
unpacked = torch.ops.packs.unpack(packed)
assert (torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()) == (before + 24 * 1024, before + 8 * 1024)
"""
    text = trains("(net[0] * unpacked).sum().backward()", "nn.ParameterList([torch.zeros(2048)])", before)
    assert rehearse([sys.executable, program(text)]).answer.steps[0].steps == 3


def test_products_of_groups_run_in_other_types_than_bf16(program) -> None:
    text = """
out = torch._grouped_mm(*net, offs=ends)
assert out.shape == (512, 300)
out.square().sum().backward()
"""
    net = "nn.ParameterList([torch.randn(512, 256), torch.randn(4, 256, 300)])"
    ends = "ends = torch.tensor([128, 256, 384, 512], dtype=torch.int32).to(dev)"
    rehearse_beside_cpu(program(trains(text, net, ends)))


TILES = """
_TRITON_AVAILABLE = False
def _fill_kernel(tile):
    raise AssertionError("no GPU")
def fill(tile):
    if _TRITON_AVAILABLE:
        _fill_kernel[(triton.cdiv(5, 2),)](tile, BLOCK_SIZE=2)
    else:
        tile.copy_(tile.float() + 1)
"""
TILED = trains(
    """
tile = torch.empty(1 << 20, dtype=torch.bfloat16, device=dev)
fill(tile)
net(torch.randn(4, 64, device=dev)).square().mean().backward()
""",
    before="from trl.kernels.chunked_logprob import fill",
)


def test_trl_s_kernels_write_into_the_tensors_that_they_are_given_where_triton_is_missing(program) -> None:
    for folder in ("trl", "trl/kernels"):
        Path(folder).mkdir()
        Path(folder, "__init__.py").touch()
    program(TILES, "trl/kernels/chunked_logprob.py")
    found = rehearse([sys.executable, program(TILED)])
    assert 4 << 20 <= found.allocated_bytes - found.workspace_bytes < 5 << 20  # the tile of the step before, too


ALIGNED = trains(
    """
scores = net(torch.randn(1000, 16, 8).to(dev)).log_softmax(-1)
nn.functional.ctc_loss(scores, labels.to(dev), torch.full((16,), 1000), torch.full((16,), 400)).backward()
""",
    "nn.Linear(8, 32)",
    "labels = torch.randint(1, 32, (16, 400))",
)


def test_the_backward_pass_of_a_loss_over_alignments_takes_as_much_as_the_forward_pass_keeps(program) -> None:
    phases = rehearse([sys.executable, program(ALIGNED)]).answer.phases
    kept = 16 * 1000 * (2 * 400 + 1) * 4
    gradient = 1000 * 16 * 32 * 4
    assert phases["backward"].allocated - phases["forward"].allocated == pytest.approx(kept + gradient, rel=0.001)


SEQUENCES = trains(
    """
texts = [torch.randint(0, 100, (each,)) for each in (100, 200, 50, 300)]
if sys.argv[1] == "jagged":
    tokens = torch.nested.nested_tensor(texts, layout=torch.jagged, device="cuda" if step else "cpu").to("cuda")
    found, wanted = net(tokens).values(), tokens.values()
else:
    tokens = torch.cat(texts)[None].cuda()
    found, wanted = net(tokens)[0], tokens[0]
F.cross_entropy(found, wanted).backward()
""",
    "nn.Sequential(nn.Embedding(100, 64), Block(), Block(), nn.Linear(64, 100))",
    """
import torch.nn.functional as F
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(64, 192), nn.Linear(64, 64), nn.LayerNorm(64)
    def forward(self, x):
        parts = (each.unflatten(-1, [4, -1]).transpose(1, 2) for each in self.qkv(self.norm(x)).chunk(3, -1))
        return x + F.gelu(self.out(F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(-2)))
""",
)


@pytest.mark.slow
def test_jagged_sequences_take_what_one_packed_sequence_takes(program) -> None:
    name = program(SEQUENCES)
    jagged, packed = (rehearse([sys.executable, name, each]) for each in ("jagged", "packed"))
    assert jagged.allocated_bytes == pytest.approx(packed.allocated_bytes, rel=0.001)
    assert jagged.allocated_bytes - jagged.workspace_bytes > 2**22


BOXES = trains(
    """
boxes = net(torch.randn(6400, 4).to(dev))
kept = torch.ops.torchvision.nms(boxes.detach(), boxes[:, 0].detach(), 0.5)
boxes[kept].sum().backward()
""",
    "nn.Linear(4, 4)",
    'torch.library.define("torchvision::nms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")',
)


def test_overlapping_boxes_take_the_overlaps_of_all_pairs(program) -> None:
    found = rehearse([sys.executable, program(BOXES)])
    overlaps, boxes, order = 6400 * 100 * 8, 6400 * 4 * 4, 6400 * 8
    expected = overlaps + 3 * boxes + 3 * order  # input, result, sorted boxes; order, positions, what is kept
    assert found.allocated_bytes - found.workspace_bytes == pytest.approx(expected, rel=0.01)
    assert any("train.py:8 makes a tensor whose size depends on values" in each for each in found.warnings)


WRITTEN = trains(
    """
moved = torch.empty(8, 8, device=dev)
moved[places] = torch.ones(4, 8, device=dev)
net(moved).sum().backward()
""",
    "nn.Linear(8, 8)",
    """
import ctypes
places = torch.full((4,), 1000, device=dev)
address = ctypes.c_void_p(places.data_ptr())  # a compiled kernel would write numbers below 8 there
""",
)


def test_values_are_not_known_once_native_code_has_their_address(program) -> None:
    found = rehearse([sys.executable, program(WRITTEN)])
    assert {each.steps for each in found.answer.steps} == {3}


FLEXIBLE = trains(
    """
x = torch.randn(8, 512, 512, device=dev, dtype=torch.bfloat16)
q, k, v = net(x).view(8, 512, 3, 8, 64).permute(2, 0, 3, 1, 4).unbind()
if kind == "built in":
    made = nn.functional.scaled_dot_product_attention(q, k, v)
else:
    made = attention(q, k, v, block_mask=mask)
made.float().square().mean().backward()
""",
    "nn.Linear(512, 3 * 512).bfloat16()",
    """
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
kind = sys.argv[1]
attention = torch.compile(flex_attention) if kind == "compiled" else flex_attention
mask = None if kind == "built in" else create_block_mask(lambda b, h, q, k: q >= k, None, None, 512, 512, device=dev)
""",
)


@pytest.mark.slow
def test_compiled_flexible_attention_takes_what_one_kernel_takes_and_others_all_scores(program) -> None:
    file = program(FLEXIBLE)
    found = {kind: rehearse([sys.executable, file, kind]) for kind in ("built in", "compiled", "eager")}
    peaks = {kind: each.allocated_bytes for kind, each in found.items()}
    assert peaks["compiled"] == pytest.approx(peaks["built in"], rel=0.02)
    assert peaks["eager"] > peaks["compiled"] + 8 * 8 * 512 * 512 * 4
    assert not found["compiled"].answer.doubt_kinds


@pytest.mark.slow
def test_batch_norm_over_ranks_takes_what_that_of_one_takes(program) -> None:
    before = """
torch.distributed.init_process_group("nccl")
net = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten())
net = nn.SyncBatchNorm.convert_sync_batchnorm(net) if "sync" in sys.argv else net
"""
    lines = "net(torch.randn(16, 3, 64, 64, device=dev)).square().mean().backward()"
    file = program(trains(lines, "nn.parallel.DistributedDataParallel(net.cuda())", before))
    found, own = (torchrun(f"--nproc-per-node 2 {file} {kind}") for kind in ("sync", ""))
    assert found.allocated_bytes == pytest.approx(own.allocated_bytes, rel=0.001)
    assert not found.warnings


def test_fourier_transforms_take_a_work_area_and_copy_what_becomes_real(program) -> None:
    text = """
image = torch.randn(4, 256, 256, 8, device=dev)  # 8 MiB
over_rows = torch.fft.rfft2(image, dim=(1, 2))
assert over_rows.shape == (4, 256, 129, 8) and over_rows.stride(2) == 1  # the channels lie outside
assert torch.fft.fft(over_rows, dim=3).shape == over_rows.shape
back = torch.fft.irfft2(over_rows, s=(256, 256), dim=(1, 2))
assert back.shape == image.shape
del image, back
torch.fft.irfft(over_rows, dim=2).sum().mul(net[0]).sum().backward()
"""
    found = rehearse([sys.executable, program(trains(text, "nn.ParameterList([torch.ones(1)])"))])
    rows = 4 * 256 * 129 * 8 * 8
    image = 4 * 256 * 256 * 8 * 4
    with_copy_and_area = image + rows + (image + rows + rows)
    assert found.allocated_bytes == pytest.approx(with_copy_and_area, rel=0.02)


ENCODES = trains(
    """
with torch.no_grad():
    made = {}
    assert made.shape == tokens.shape
del made
net[0].sum().backward()
""",
    "nn.ParameterList([torch.ones(1)])",
    """
encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True), 2).to(dev).eval()
attention = nn.MultiheadAttention(256, 4, batch_first=True).to(dev).eval()
tokens = torch.randn(8, 512, 256, device=dev)
padding = (torch.arange(512)[None] >= torch.tensor([128] * 8)[:, None]).to(dev)
""",
)


@pytest.mark.parametrize(
    ("call", "tensors"),
    quick_every(
        2,
        [
            ("encoder(tokens)", 1 + 1 + 4 + 1),  # the layer's input, what is normalized, four in between, the output
            ("encoder(tokens, src_key_padding_mask=padding)", (1 + 1 + 4 + 1) / 4),
            ("attention(tokens, tokens, tokens, need_weights=False)[0]", 3 + 1 + 1),
            ("attention(tokens, tokens, tokens)[0]", 3 + 8 + 2 + 1),  # 512 scores of 4 heads for each token of 256
        ],
        start=1,
    ),
)
def test_attention_without_gradients_takes_what_its_own_kernels_do(program, call: str, tensors: float) -> None:
    found = rehearse([sys.executable, program(ENCODES.format(call))])
    parameters = 4 * (2 * (12 * 256**2 + 13 * 256) + 4 * 256**2 + 4 * 256 + 1)
    expected = parameters + (1 + tensors) * 8 * 512 * 256 * 4
    assert found.allocated_bytes - found.workspace_bytes == pytest.approx(expected, rel=0.02)
