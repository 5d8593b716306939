"""Rehearsals of real programs: against the same programs run for real on the CPU, and of programs that misbehave."""

import os
import sys
from pathlib import Path

import pytest
from real_run import real_peak
from rehearsed import rehearse, rehearse_beside_cpu, torchrun, trains
from slow_cases import first_quick, quick_every

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.formula.process_memory import communicator_bytes
from vramtop.estimator.isolation.protocol import VARIABLE
from vramtop.estimator.job.gpu_catalogue import find_gpu
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import Parallel, Program
from vramtop.estimator.trace import isolated_run
from vramtop.estimator.trace.python_command import python_command
from vramtop.estimator.trace.rehearsal import rehearse_job

pytest.importorskip("torch")

GAN = """
import sys, torch, torch.nn as nn
dev = sys.argv[1]
G = nn.Sequential(nn.ConvTranspose2d(64, 128, 4), nn.BatchNorm2d(128), nn.ReLU(), nn.ConvTranspose2d(128, 3, 4, 2, 1))
G.to(dev)
D = nn.Sequential(nn.Conv2d(3, 128, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True), nn.Flatten(), nn.Linear(2048, 1)).to(dev)
og, od = torch.optim.Adam(G.parameters(), 2e-4), torch.optim.Adam(D.parameters(), 2e-4)
bce = nn.BCEWithLogitsLoss()
for i in range(3):
    x, z = torch.randn(64, 3, 8, 8).to(dev), torch.randn(64, 64, 1, 1, device=dev)
    od.zero_grad()
    f = G(z)
    (bce(D(x), torch.ones(64, 1, device=dev)) + bce(D(f.detach()), torch.zeros(64, 1, device=dev))).backward()
    od.step()
    og.zero_grad()
    bce(D(f), torch.ones(64, 1, device=dev)).backward()
    og.step()
"""
LISTS = """
import sys, torch, torch.nn as nn
dev = sys.argv[1]
net = nn.Sequential(*(nn.Linear(300, 300) for _ in range(12))).to(dev)
average = torch.optim.swa_utils.AveragedModel(net)
optimizer = torch.optim.Adadelta(net.parameters())
for i in range(3):
    optimizer.zero_grad()
    net(torch.randn(8, 300, device=dev)).square().mean().backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    average.update_parameters(net)
"""
LOADER = """
import sys, torch, torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
dev = sys.argv[1]
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.a, self.b = nn.Embedding(2000, 64), nn.Linear(64, 256), nn.Linear(256, 2000)
    def forward(self, ids):
        return self.b(torch.tanh(self.a(self.e(ids))))
net = Net()
net.b.weight = nn.Parameter(torch.zeros(2000, 256))
net.to(dev)
optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
data = TensorDataset(torch.randint(1, 2000, (40, 50)))
for step, (ids,) in enumerate(DataLoader(data, 8, pin_memory=True, num_workers=1)):
    ids[:, 40:] = 0
    ids = ids.to(dev, non_blocking=True)
    kept = net(ids)[ids != 0]
    assert kept.shape == (8 * 40, 2000), kept.shape
    loss = nn.functional.cross_entropy(kept, ids[ids != 0])
    loss.backward()
    if step % 2:
        optimizer.step()
        optimizer.zero_grad()
"""
ENCODED = trains(
    "net(embedding.repeat(16384, 1)).sum().backward()",
    "nn.Linear(256, 512)",
    """
import gc
encoder = nn.Sequential(nn.Linear(256, 4096), nn.Linear(4096, 256)).to(dev)
with torch.no_grad():
    embedding = encoder(torch.ones(1, 256, device=dev))
del encoder
gc.collect()
""",
)
"""A text encoder that is deleted once the prompt is encoded."""


@pytest.mark.parametrize(
    "text",
    quick_every(2, [GAN, LISTS, ENCODED]),
    ids=["two networks", "averaged lists of tensors", "a module that is deleted"],
)
def test_what_is_allocated_is_what_the_same_program_takes_on_the_cpu(program, text: str) -> None:
    found = rehearse_beside_cpu(program(text))
    assert not [each for each in found.warnings if "have not been measured" not in each]
    assert {each.steps for each in found.answer.steps} == {3}


CONVOLUTIONS = trains(
    """
x = torch.randn(64 + {longer} * step, 3, 64, 64, device=dev)
with torch.autocast(dev, dtype=torch.bfloat16, enabled={autocast}):
    loss = net(x).square().mean()
loss.backward()
""",
    "nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 64 * 64, 10))",
    """
torch.backends.cudnn.benchmark = {benchmark}
layers = nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)
""",
)


def test_convolutions_take_workspaces_whose_size_is_known_within_a_range(program) -> None:
    found = rehearse([sys.executable, program(CONVOLUTIONS.format(benchmark=False, longer=0, autocast=False))])
    tensors = 4 * (2 * 64 * 64 * 64 * 64 + 64 * 64 * 9)
    assert tensors * 2 in [each.bytes for each in found.answer.peak_tensors if each.component == "temporary"]
    peak, facts = found.budget.peak, found.answer.convolutions
    assert facts.expected.reserved == found.answer.peak_reserved == facts.high.reserved
    assert facts.high.reserved - facts.low.reserved >= tensors
    assert peak.reserved_range.low_bytes == round(0.96 * facts.low.reserved) + found.workspace_bytes
    assert peak.reserved_range.high_bytes == round(1.06 * facts.high.reserved) + found.workspace_bytes
    assert peak.allocated_range.low_bytes < found.allocated_bytes - tensors
    assert not found.warnings


def test_a_share_of_the_gpu_that_the_program_limits_itself_to_is_named(program) -> None:
    text = trains("loss = net(torch.randn(8, 64, device=dev)).sum()\nloss.backward()", "nn.Linear(64, 64)", "{}")
    limit = "torch.cuda.set_per_process_memory_fraction"
    assert not rehearse([sys.executable, program(text.format(f"{limit}(1.0)"))]).warnings
    (warning,) = rehearse([sys.executable, program(text.format(f"{limit}(0.5, 0)"))]).warnings
    assert "limits the program to 50% of the GPU, beyond which it runs out of memory" in warning


def test_convolutions_that_were_never_measured_widen_the_range_with_a_warning(program) -> None:
    text = CONVOLUTIONS.format(benchmark=False, longer=0, autocast=True)
    found = rehearse([sys.executable, program(text)])
    (warning,) = found.warnings
    assert warning == "cuDNN workspaces for convolutions in bfloat16 have not been measured: the range is wide."
    peak = found.budget.peak
    assert peak.reserved_range.high_bytes > 1.3 * peak.reserved_bytes
    assert peak.reserved_range.low_bytes < 0.7 * peak.reserved_bytes


@pytest.mark.slow
def test_benchmark_empties_the_cache_at_shapes_that_are_new(program) -> None:
    same, longer = (
        rehearse([sys.executable, program(CONVOLUTIONS.format(benchmark=True, longer=each, autocast=False))])
        for each in (0, 1)
    )
    kept = rehearse([sys.executable, program(CONVOLUTIONS.format(benchmark=False, longer=1, autocast=False))])
    assert any("cudnn.benchmark tries every plan" in each for each in same.budget.assumptions)
    assert longer.answer.peak_reserved < kept.answer.peak_reserved
    assert longer.answer.convolutions.expected.reserved == longer.answer.peak_reserved


def test_the_context_grows_with_the_first_convolution(program) -> None:
    lines = "net(torch.randn(4, 4, 8, 8, device=dev)).sum().backward()"
    with_it, without = (
        rehearse([sys.executable, program(trains(lines, f"nn.{layer}"))])
        for layer in ("Conv2d(4, 4, 3)", "Linear(8, 8)")
    )
    loading = [each.budget.phases[0].components.context for each in (with_it, without)]
    assert loading[0] == loading[1]
    assert with_it.budget.peak.components.context > without.budget.peak.components.context
    assert without.answer.convolutions is None


def test_values_that_the_host_made_decide_shapes_and_gradients_accumulate(program) -> None:
    found = rehearse([sys.executable, program(LOADER), "cuda"], steps=2)
    assert not found.warnings  # the masked rows are counted: their number is known
    logits = 8 * 40 * 2000 * 4
    largest = {(each.shape, each.component, each.bytes) for each in found.answer.peak_tensors}
    assert ((320, 2000), "logits", logits) in largest
    lines = {each.line for each in found.answer.peak_tensors}
    assert any(line.endswith("train.py:22") for line in lines)
    names = {each.module for each in found.answer.peak_tensors}
    assert {"e.weight", "b.weight"} <= names


def test_a_size_that_depends_on_unknown_values_is_a_warning_and_a_wider_range(program) -> None:
    text = """
y = net(torch.randn(4096, 512, device=dev))
y = torch.cat([y[y.sum(1) > 0]] * 2) if {0} else y
y = y[y.sum(1) > 1] if {0} else y
(y.pow(2).sum() + net(torch.randn(3001, 512, device=dev)).pow(2).sum()).backward()
"""
    plain, masked = (
        rehearse([sys.executable, program(trains(text.format(each), "nn.Linear(512, 512)"))]) for each in (False, True)
    )
    assert not plain.warnings
    (warning,) = masked.warnings
    assert "train.py:8 makes a tensor whose size depends on values (index): the largest is assumed" in warning
    assert "(as in 1 other line)." in warning
    assert masked.budget.peak.low_bytes < plain.budget.peak.low_bytes
    assert masked.budget.peak.allocated_range.low_bytes > 2 * 3001 * 512 * 4  # which are there whatever the values are
    assert masked.allocated_bytes > plain.allocated_bytes


def test_a_model_of_transformers_is_built_from_its_config_and_follows_autocast_and_checkpointing(program) -> None:
    Path("model").mkdir()
    Path("model/config.json").write_text(
        '{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "intermediate_size": 8192,'
        ' "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000}'
    )
    Path("model/generation_config.json").write_text('{"max_new_tokens": 77}')
    text = """
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("model", dtype=torch.bfloat16, attn_implementation="flash_attention_2")
assert model.generation_config.max_new_tokens == 77
data = [{"input_ids": torch.ones(1024, dtype=torch.long), "labels": torch.ones(1024, dtype=torch.long)}] * 16
arguments = TrainingArguments(
    "out", per_device_train_batch_size=2, bf16=True, max_steps=2, report_to=[], gradient_checkpointing=True,
    optim="adamw_torch_fused", logging_steps=1, save_strategy="no",
)
Trainer(model, arguments, train_dataset=data).train()
print(torch.cuda.max_memory_allocated())
"""
    found = rehearse([sys.executable, program(text)], steps=2)
    parts = found.answer.phases["backward"].components
    weights = found.answer.trained * 2
    assert found.answer.trained == 374_360_064
    assert parts["weights"] == pytest.approx(weights, rel=0.001)
    assert parts["optimizer"] == pytest.approx(2 * weights, rel=0.001)
    assert parts["activations"] < 0.2 * 2**30  # one input of each of 4 blocks, and what one block saves
    assert found.answer.host_bytes < 3 * 2**30
    assert found.answer.versions["transformers"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    quick_every(
        4,
        [
            (
                "raise ValueError('no data\\nin this\\nfolder ' + 'x' * 9999)",
                r"failed during the rehearsal, at train\.py:1: ValueError: no data$",
            ),
            ("import torch", "ended without calling a model on a GPU"),
            ("import torch\nprint 'loss'", r"failed during the rehearsal, at train\.py:2: SyntaxError: "),
            (
                "import ctypes, torch\ndef read():\n  ctypes.string_at(0)\nread()",
                r"ended without a result \(.+\), at train\.py:3: Segmentation fault$",
            ),
            (
                "import torch\nnet = torch.nn.LSTM(4, 4)\nopt = torch.optim.SGD(net.parameters(), 0.1)\n"
                "for _ in range(3): net(torch.ones(2, 3, 4))[0].sum().backward(); opt.step()",
                "trained without putting anything on the GPU",
            ),
            (
                "import torch\nfrom apex_of_no_one.optimizers import FusedAdam",
                r"at train\.py:2: ModuleNotFoundError: No module named 'apex_of_no_one'; install apex_of_no_one for "
                r"that Python, or name another Python: --python PATH",
            ),
            (
                "import os\nos.environ['HF_HUB_OFFLINE'] = '1'\nfrom huggingface_hub import hf_hub_download\n"
                "hf_hub_download('no/model', 'config.json')",
                r"needs no/model, which is not on this machine, and the hub did not give it \(at train\.py:4\); "
                r"download it first: hf download no/model",
            ),
            ("import json\njson.loads('{')", r"at train\.py:2, in /.*/json/decoder\.py:\d+: JSONDecodeError"),
            (
                "input('size: ')",
                "; it asks for input, and a rehearsal types none: give its answers as arguments, or in",
            ),
            ("import os\nos.environ['LOCAL_RANK']", r"'LOCAL_RANK'; a launcher sets it: give the whole launch line"),
            (
                "from torch.utils.cpp_extension import load\nload('mine', ['no_file.cu'])",
                "compiled extensions cannot be rehearsed: turn them off if it can do without, or measure it on a GPU",
            ),
            (
                "import urllib.request\nurllib.request.urlopen('http://weights.invalid/resnet.pth')",
                "; it wants to download something from the network, which it does not reach: give it the file first",
            ),
            ("batch = 3\nassert batch % 2 == 0", r"at train\.py:2: AssertionError: assert batch % 2 == 0$"),
            (
                "import torch\ntorch.nn.Linear(2, 2).to('cuda:3')",
                r"at train\.py:2.*: invalid device ordinal; say how many GPUs it finds, such as --gpu-type 4xh100",
            ),
            (
                "import torch\nclass Data(list):\n"
                "  def __getitem__(self, at): raise OSError('y' * 900 + '\\nno file')\n"
                "next(iter(torch.utils.data.DataLoader(Data([1]), num_workers=1)))",
                r"OSError: Caught OSError in DataLoader worker process 0\. no file$",
            ),
            (
                "try:\n  {}['key']\nexcept KeyError:\n  raise SystemExit(1)",
                r"failed during the rehearsal, at train\.py:2: KeyError: 'key'$",
            ),
            ("raise SystemExit('usage: train.py')", "ended with exit code 1 before an optimizer stepped"),
            (
                "import torch\nnet = torch.nn.Linear(8, 8).cuda()\ntorch.optim.SGD(net.parameters(), 0.1)\n"
                "net(torch.ones(2, 8).cuda())",
                "ended with exit code 0 before an optimizer stepped",
            ),
            (  # it calls a model, such as one that embeds its data, when the time is over
                "import torch\nnet = torch.nn.Linear(8, 8).cuda()\nwhile len('sleep'): net(torch.ones(2, 8).cuda())",
                "no optimizer stepped within 2 s",
            ),
            ("import time\ntime.sleep(60)", r"no optimizer stepped within 2 s; the program was at train\.py:2"),
            (
                "import torch\nnet = torch.nn.Linear(2, 2).cuda()\nx = torch.ones(1, 2, device='cuda')\n"
                "opt = torch.optim.Adam(net.parameters())\nwhile len('sleep'): net(x).sum().backward()",
                r"no optimizer stepped within 2 s; the program was at /?[\w./-]+\.py:\d+",
            ),
            (
                "import threading, time\nthread = threading.Thread(target=time.sleep, args=(60,))\nthread.start()",
                r"no optimizer stepped within 2 s",
            ),
            (
                "import threading\ndef run():\n    raise ValueError('no data')\nthreading.Thread(target=run).start()",
                r"failed during the rehearsal, at train\.py:3: ValueError: no data",
            ),
            ("import os\nos._exit(7)", r"without a result \(exit code 7\)"),
            ("print('x' * 10**8)\nraise KeyError('a')", "KeyError"),
            (
                "import torch\ntorch.zeros(3, device='cuda').repeat_interleave(torch.rand(3, device='cuda').long())",
                "repeat",
            ),
            (
                "import torch\nif len((torch.rand(9, device='cuda') > 0.5).nonzero()) == 9:\n  raise ValueError('all')",
                r"ValueError: all; a value that was assumed may be why: train\.py:2 makes a tensor",
            ),
        ],
    ),
)
def test_a_program_that_does_not_train_is_told_in_a_sentence(program, text: str, sentence: str) -> None:
    with pytest.raises(CannotTellError, match=sentence) as raised:
        rehearse([sys.executable, program(text)], timeout=2 if "sleep" in text else 100)
    assert len(raised.value.output) <= 1 << 16


def test_a_program_that_takes_the_host_s_memory_is_ended(program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated_run, "_MAX_HOST_SHARE", 2**30 / isolated_run._free_host_bytes())
    with pytest.raises(CannotTellError, match="host"):
        rehearse([sys.executable, program("import time\nkept = b'x' * 1_500_000_000\ntime.sleep(99)")], timeout=60)


def test_a_rehearsal_ends_when_other_processes_take_the_host_s_memory(program, monkeypatch: pytest.MonkeyPatch) -> None:
    free_now = isolated_run._free_host_bytes
    at_the_start = iter([2**44])
    monkeypatch.setattr(isolated_run, "_free_host_bytes", lambda: next(at_the_start, free_now()))
    with pytest.raises(CannotTellError, match="this host was running out of memory"):
        rehearse([sys.executable, program("import time\ntime.sleep(99)")], timeout=60)


def test_a_python_without_torch_is_one_sentence(program, tmp_path: Path) -> None:
    Path("python").write_text(f'#!/bin/sh\nexec {sys.prefix}/bin/python -S "$@"\n')
    Path("python").chmod(0o755)
    with pytest.raises(
        CannotTellError, match=r"cannot import torch \(No module named 'torch'\); name the program's"
    ) as raised:
        rehearse(["./python", program("")])
    assert not raised.value.output


@pytest.mark.slow
def test_a_program_that_catches_everything_ends_after_its_steps(program) -> None:
    text = """
while True:
    try:
        net(torch.ones(1, 2, device="cuda")).sum().backward()
        optimizer.step()
    except BaseException:
        pass
"""
    assert rehearse([sys.executable, program(trains(text, "nn.Linear(2, 2)"))], steps=2).answer.steps[0].steps == 2


def test_default_devices_data_parallel_and_folders_are_followed(program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "python ")
    text = """
import os, torch, torch.nn as nn
os.makedirs("deep/er")
os.chdir("deep")
open("file", "w").write("1")
assert open("file").read() == "1" and os.listdir("er") == []
torch.set_default_device("cuda")
net = nn.DataParallel(nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64)))
optimizer = torch.optim.RMSprop(net.parameters())
assert all(each.is_cuda for each in net.parameters())
for _ in range(3):
    x = torch.randn(32, 64)
    assert x.is_cuda and torch.tensor([1.0]).device.type == torch.as_tensor(2.0).device.type == "cuda"
    z = torch.where((torch.rand(32) > 0.5)[:, None], net(x), torch.zeros_like(x))
    loss = (z**2).mean() + torch.as_tensor(3.0)
    assert len(torch.autograd.grad(loss, list(net.parameters()), retain_graph=True)) == 4
    loss.backward()
    optimizer.step()
    assert z.detach().cpu().numpy().shape == (32, 64) and float(loss) > 0 and f"{loss:.1f}" and loss.tolist()
"""
    found = rehearse([sys.executable, program(text)])
    assert not found.warnings
    assert not Path("deep").exists()


SPLIT = trains(
    """
x, y = torch.randn(8192, 1024), torch.zeros(8192, dtype=torch.long).cuda()
out = net(x)
assert out.shape == (8192, 16384) and out.get_device() == 0
nn.functional.cross_entropy(out, y).backward()
""",
    "nn.DataParallel(net)",
    "net = nn.Sequential(nn.Linear(1024, 1024, bias=False), nn.ReLU(), nn.Linear(1024, 16384, bias=False)).cuda()",
)


def test_data_parallel_splits_the_batch_and_gathers_on_the_first_gpu(program) -> None:
    job = Job(program=Program(command=f"{sys.executable} {program(SPLIT)}", gpus=4))
    found = rehearse_job(job, may_run=True)
    mib = 1 << 20
    weights, logits = (4 + 64) * mib, 8192 * 16384 * 4
    inputs = 8192 // 4 * (1024 * 4) * 2 + 8192 * 8  # of the first quarter, what ReLU keeps, and all labels
    forward = found.budget.phase("forward")
    expected = weights + inputs + 2 * logits  # those that were gathered, and their log-probabilities
    assert forward.allocated_bytes - found.workspace_bytes == pytest.approx(expected, rel=0.01)
    assert "The program uses 4 GPUs in one process. This is GPU 0, which holds the most" in found.warnings[0]
    assert dict(found.answer.gpus)[1] < dict(found.answer.gpus)[0] / 2
    assert found.answer.groups == (4,)
    first, *others = found.budget.ranks
    assert first.device_bytes == found.budget.peak.device_bytes
    assert len(others) == 3
    outside = first.device_bytes - dict(found.answer.gpus)[0]
    assert others[0].device_bytes == pytest.approx(dict(found.answer.gpus)[1] + outside, rel=0.001)


BY_HAND = """
import torch, torch.nn as nn
first = nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024, bias=False), nn.ReLU()) for _ in range(2))).to("cuda:0")
second = nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024, bias=False), nn.ReLU()) for _ in range(6))).to("cuda:1")
optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], foreach=False)
for _ in range(3):
    hidden = first(torch.randn(4096, 1024, device="cuda:0"))
    hidden.register_hook(lambda gradient: print(gradient.get_device()))
    second(hidden.to("cuda:1")).square().mean().backward()
    assert {each.grad.get_device() for each in first.parameters()} == {0}
    assert {each.grad.get_device() for each in second.parameters()} == {1}
    optimizer.step()
    optimizer.zero_grad()
assert torch.cuda.max_memory_allocated(0) < torch.cuda.max_memory_allocated(1)
"""


def test_a_model_split_by_hand_is_counted_on_its_fullest_gpu(program) -> None:
    name = program(BY_HAND)
    both = rehearse_job(Job(program=Program(command=f"{sys.executable} {name}", gpus=2)), may_run=True)
    mib = 1 << 20
    assert [gpu for gpu, _ in both.answer.gpus] == [1, 0]
    assert both.budget.phases[0].components.weights == 6 * 4 * mib
    assert both.budget.peak.components.optimizer == 6 * 8 * mib
    # weights and states; six layers' results and the copied input; the square's backward pass: a mean's gradient, a
    # power, twice that, and the product
    assert both.allocated_bytes - both.workspace_bytes == pytest.approx((6 * 12 + 16 * (7 + 4)) * mib, rel=0.01)


MAPPED = trains(
    """
tokens = torch.zeros(2, 256, dtype=torch.long, device="cuda:0")
net(input_ids=tokens, labels=tokens).loss.backward()
assert all(each.grad.device == each.device for each in net.parameters())
""",
    "net",
    """
from transformers import AutoConfig, AutoModelForCausalLM
config = AutoConfig.for_model(
    "llama", hidden_size=512, intermediate_size=2048, num_hidden_layers=6, num_attention_heads=8, vocab_size=8192
)
config.save_pretrained("model")
net = AutoModelForCausalLM.from_pretrained("model", device_map="auto", torch_dtype=torch.float32)
assert set(net.hf_device_map.values()) == set(range(torch.cuda.device_count()))
""",
).replace("net.to(dev)", "net")


def test_a_device_map_spreads_a_model_over_the_gpus_that_are_found(program) -> None:
    command = f"{sys.executable} {program(MAPPED)}"
    one, two = (rehearse_job(Job(program=Program(command=command, gpus=count)), may_run=True) for count in (1, 2))
    weights = [each.budget.phases[0].components.weights for each in (one, two)]
    assert weights[0] == pytest.approx(one.budget.model.parameters * 4, rel=0.01)
    assert 0.4 < weights[1] / weights[0] < 0.6
    assert not one.warnings
    assert two.allocated_bytes < one.allocated_bytes


def test_a_failure_names_the_version_that_the_repository_asks_for(program) -> None:
    file = program("import torch\nfrom torch.nn import Gone")
    Path("requirements.txt").write_text("torch==1.13.1\n", encoding="utf-8")
    with pytest.raises(CannotTellError, match=r"requirements\.txt asks for torch 1\.13\.1, and 2\.\S+ is installed"):
        rehearse([sys.executable, file])


@pytest.mark.parametrize("gpus", first_quick([1, 2]))
def test_what_a_device_map_leaves_on_the_cpu_counts_on_the_gpu_with_a_warning(program, gpus) -> None:
    text = MAPPED.replace('="auto"', '="auto", max_memory={0: "40MB", "cpu": "1GB"}').replace("assert", "0 and")
    found = rehearse_job(
        Job(program=Program(command=f"{sys.executable} {program(text)}", gpus=gpus)), may_run=True
    ).budget
    assert "on the CPU or on disk, where they cannot be trained: they count on the GPU here" in found.warnings[0]
    assert found.phases[0].components.weights == pytest.approx(found.model.parameters * 4, rel=0.01)


def test_the_old_launcher_tells_the_program_its_local_rank(program) -> None:
    before = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--local-rank", type=int)
dev = parser.parse_args().local_rank
"""
    file = program(trains("net(torch.ones(2, 4, device='cuda')).sum().backward()", "nn.Linear(4, 4)", before))
    found = rehearse([sys.executable, "-m", "torch.distributed.launch", "--nproc_per_node=2", file])
    assert found.budget.model.parameters == 20


@pytest.mark.parametrize("views", quick_every(2, [False, True]))
def test_torchrun_starts_one_of_many_ranks_whose_replica_has_buckets(program, views: bool) -> None:
    text = """
import os, sys, torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
assert dist.get_rank() == rank == 0 and dist.get_world_size() == 16 and torch.cuda.device_count() == 8
assert os.environ["LOCAL_WORLD_SIZE"] == "8"
dist.barrier()
x = torch.ones(4, device="cuda")
dist.all_reduce(x), dist.broadcast(x, 0)
sizes = [torch.zeros(1, dtype=torch.long, device="cuda") for _ in range(16)]
dist.all_gather(sizes, torch.tensor([7], device="cuda"))
assert [each.item() for each in sizes] == [7] * 16
sizes = torch.empty(16, dtype=torch.long, device="cuda")
dist.all_gather_into_tensor(sizes, torch.tensor([7], device="cuda"))
assert sizes.tolist() == [7] * 16
whole = torch.empty(64, device="cuda")
dist.all_gather_into_tensor(whole, x), dist.reduce_scatter_tensor(x, whole)
found, host = [None] * 16, dist.new_group(backend="gloo")
dist.all_gather_object(found, {"own": 1}, group=host)
host.monitored_barrier(), dist.monitored_barrier(host)
assert found == [{"own": 1}] * 16
dist.broadcast_object_list(found)
net = nn.Sequential(nn.Linear(1024, 512, bias=False), nn.Linear(512, 1024, bias=False)).to(rank)
net = DistributedDataParallel(net, device_ids=[rank], gradient_as_bucket_view=sys.argv[1] == "True")
optimizer = torch.optim.AdamW(net.parameters())
for step in range(6):
    loss = net(torch.randn(2, 1024).to(rank)).mean()
    if step % 2:
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    else:
        with net.no_sync():
            loss.backward()
"""
    found = torchrun(f"--nnodes=2 --nproc-per-node 8 {program(text)} {views}")
    peak = found.budget.phase("optimizer step").components
    size = 2 * 1024 * 512 * 4
    assert (peak.weights, peak.gradients, peak.optimizer) == (size, size, 2 * size)
    assert peak.communication - (0 if views else size) == 688 << 20  # of NCCL
    assert found.budget.job.parallel == Parallel(strategy="ddp", data_replicate=16)
    assert not found.warnings


def test_data_that_a_thread_makes_while_buckets_are_made_stays_on_the_host(program) -> None:
    """C++ asks for buckets without naming the GPU, as a thread asks for its data; ``Batch`` lets both meet."""
    text = """
import collections, threading, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.cuda.set_device(0)
dist.init_process_group("nccl")
held, met = [], []
class Batch(collections.namedtuple("Batch", "x")):
    def __new__(cls, x):  # DDP makes it again in its own hook before the forward pass
        before = torch.cuda.memory_allocated()
        data = threading.Thread(target=lambda: held.append(torch.empty(1 << 20)))
        data.start(), data.join()
        assert torch.cuda.memory_allocated() == before and held[-1].device.type == "cpu"
        met.append(x.is_cuda)
        return super().__new__(cls, x)
net = DistributedDataParallel(torch.nn.Linear(64, 64).cuda(), device_ids=[0])
net.module.forward = lambda batch: torch.nn.functional.linear(batch.x, net.module.weight, net.module.bias)
for step in range(3):
    net(Batch(torch.randn(2, 64))).sum().backward()
assert met == [False, True] * 3
"""
    assert not torchrun(f"--nproc-per-node 2 {program(text)}").warnings


def test_collectives_that_have_not_ended_are_on_the_gpu(program) -> None:
    before = """
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
mesh = torch.distributed.device_mesh.init_device_mesh("cuda", (4,))
net = nn.Sequential(nn.Embedding(32000, 256), nn.Linear(256, 1024)).cuda()
parallelize_module(net, mesh, {
    "0": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "1": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)})
"""
    text = """
out = net(torch.randint(32000, (8, 128), device="cuda"))
assert out.to_local().shape == (8, 128, 256) and out.is_cuda
out.sum().backward()
"""
    found = torchrun(f"--nproc-per-node 4 {program(trains(text, 'net', before))}")
    assert found.budget.model.parameters == 32000 * 256 + 256 * 1024 + 1024


SHARDED = """
import sys, torch, torch.nn as nn, torch.distributed as dist
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
kind = sys.argv[1]
dist.init_process_group("nccl")
with torch.device("meta" if kind == "meta" else "cuda"):
    net = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(4)))
options = {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)} if kind == "mixed" else {}
if kind == "offload":
    options["offload_policy"] = CPUOffloadPolicy()
for each in (*net, net):
    fully_shard(each, **options)
if kind == "meta":
    net.to_empty(device="cuda")
    for each in net:
        each.reset_parameters()
weight = net[0].weight
assert isinstance(weight, DTensor) and weight.device.type == ("cpu" if kind == "offload" else "cuda")
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(3):
    loss = net(torch.randn(16, 1024, device="cuda")).float().mean()
    loss.backward()
    assert nn.utils.clip_grad_norm_(net.parameters(), 1.0).full_tensor().item() > 0
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("kind", quick_every(3, ["plain", "meta", "mixed", "offload"], start=2))
def test_fsdp2_holds_its_shards_and_gathers_a_layer_ahead(program, kind: str) -> None:
    found = torchrun(f"--nproc-per-node 4 {program(SHARDED)} {kind}")
    whole = 1024 * 1024 * 4
    shards = 0 if kind == "offload" else whole  # of four layers
    backward, step = (found.budget.phase(name).components for name in ("backward", "optimizer step"))
    assert (step.weights, step.gradients, step.optimizer) == (shards, shards, 2 * shards)
    gathered = whole // 2 if kind == "mixed" else whole
    assert backward.communication - step.communication >= gathered
    assert found.budget.job.parallel == Parallel(strategy="fsdp2", data_shard=4)
    assert not found.warnings


FLAT = """
import sys, torch, torch.nn as nn, torch.distributed as dist
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
dev, strategy, *kinds = sys.argv[1:]
dist.init_process_group("nccl" if dev == "cuda" else "gloo")
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(256, 1024, bias=False), nn.Linear(1024, 256)
    def forward(self, x):
        return x + self.b(self.a(x).relu())
options = {"device_id": torch.device(dev), "use_orig_params": "original" in kinds}
if "mixed" in kinds:
    options["mixed_precision"] = MixedPrecision(torch.bfloat16, torch.float32, torch.bfloat16)
if dev == "cuda":  # torch has it for no other device
    options["sync_module_states"] = True
if "offload" in kinds:
    options["cpu_offload"] = CPUOffload(offload_params=True)
net = nn.Sequential(*(Block() for _ in range(5)), nn.Linear(256, 32))
net = FullyShardedDataParallel(
    net.to(dev), auto_wrap_policy=ModuleWrapPolicy({Block}), sharding_strategy=ShardingStrategy[strategy], **options
)
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
for _ in range(3):
    loss = net(torch.randn(64, 256, device=dev)).float().square().mean()
    loss.backward()
    assert net.clip_grad_norm_(1.0).item() > 0
    optimizer.step()
    optimizer.zero_grad()
"""


FLAT_COUNT = 5 * (2 * 256 * 1024 + 256) + 256 * 32 + 32


@pytest.mark.slow
@pytest.mark.parametrize(
    "line", ["FULL_SHARD", "FULL_SHARD original", "FULL_SHARD mixed", "SHARD_GRAD_OP mixed original", "NO_SHARD"]
)
def test_fsdp1_takes_what_two_real_ranks_take(program, line: str) -> None:
    name = program(FLAT)
    found = torchrun(f"--nproc-per-node=2 {name} cuda {line}")
    expected = real_peak(name, *line.split(), ranks=2)
    assert found.allocated_bytes - found.workspace_bytes == pytest.approx(expected, rel=0.01)
    assert found.budget.job.parallel == Parallel(strategy="fsdp1", data_shard=2)
    assert found.answer.trained == found.answer.parameters == FLAT_COUNT
    assert not found.warnings


PIPELINE = """
import os, sys, torch, torch.nn as nn, torch.distributed as dist
from torch.distributed import pipelining
dev, kind = sys.argv[1:]
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("nccl" if dev == "cuda" else "gloo")
many = 2 if "Interleaved" in kind else 1
stages = []
for at in range(many):
    layers = (nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(2))
    stages.append(pipelining.PipelineStage(nn.Sequential(*layers).to(dev), rank + ranks * at, ranks * many,
                                           torch.device(dev)))
kind = getattr(pipelining, kind)
schedule = kind(stages if many > 1 else stages[0], n_microbatches=4, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.SGD([each for stage in stages for each in stage.submod.parameters()], 0.1)
for _ in range(3):
    x = torch.randn(2048, 256, device=dev)
    if rank:
        schedule.step(target=x)
    else:
        schedule.step(x)
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ScheduleGPipe", "Schedule1F1B", "ScheduleInterleaved1F1B"])
def test_a_stage_of_a_pipeline_takes_what_the_first_of_two_real_ranks_takes(program, kind: str) -> None:
    name = program(PIPELINE)
    found = torchrun(f"--nproc-per-node=2 {name} cuda {kind}")
    expected = real_peak(name, kind, ranks=2)
    assert found.allocated_bytes - found.workspace_bytes == pytest.approx(expected, rel=0.01)
    assert found.allocated_bytes > 16 * 2**20  # activations, of which the weights are a tenth


def test_fsdp1_keeps_offloaded_shards_on_the_host(program) -> None:
    found = torchrun(f"--nproc-per-node=2 {program(FLAT)} cuda FULL_SHARD offload")
    backward, step = (found.budget.phase(name).components for name in ("backward", "optimizer step"))
    unit, root = (256 * 1024 * 2 + 256) * 4, (256 * 32 + 32) * 4
    assert (step.weights, step.gradients, step.optimizer) == (0, 0, 0)
    # shards of reduced gradients stay on the GPU until the backward pass ends (``prepare_gradient_for_optim``)
    assert unit * 5 // 2 <= backward.gradients <= (unit * 5 + root) // 2 + 2 * unit
    assert not found.warnings


@pytest.mark.parametrize(
    ("flags", "ranks", "words"),
    quick_every(
        5,
        [
            ("--num_gpus 4", 4, ["--local_rank=0", "x"]),
            ("--include localhost:1,3 --no_local_rank", 2, ["x"]),
            ("--num_nodes 2 --num_gpus 4", 8, ["--local_rank=0", "x"]),
            ("--exclude localhost:0@b:1,2 --hostfile hosts", 5, ["--local_rank=0", "x"]),
            ("--hostfile hosts", 8, ["--local_rank=0", "x"]),
        ],
    ),
)
def test_deepspeed_starts_rank_0(program, flags: str, ranks: int, words: list[str]) -> None:
    Path("deepspeed/launcher").mkdir(parents=True)
    program("", "deepspeed/__init__.py")
    program("", "deepspeed/launcher/__init__.py")
    text = """
import argparse
def parse_args(args):
    parser = argparse.ArgumentParser()
    for name in ("num_gpus", "num_nodes"):
        parser.add_argument("--" + name, type=int, default=-1)
    for name in ("include", "exclude", "hostfile"):
        parser.add_argument("--" + name, default="")
    for name in ("module", "no_local_rank"):
        parser.add_argument("--" + name, action="store_true")
    parser.add_argument("user_script")
    parser.add_argument("user_args", nargs=argparse.REMAINDER)
    return parser.parse_args(args)
def fetch_hostfile(path):
    return {"localhost": 4, "b": 4} if path else None
def parse_inclusion_exclusion(pool, include, exclude):
    named = [each.partition(":")[::2] for each in (include + exclude).split("@") if each]
    slots = {host: set(map(int, numbers.split(","))) for host, numbers in named}
    every = {host: set(range(count)) for host, count in pool.items()}
    return slots if include else {host: numbers - slots.get(host, set()) for host, numbers in every.items()}
"""
    program(text, "deepspeed/launcher/runner.py")
    name = program(f"""
import sys, torch
assert sys.argv[1:] == {words}
torch.distributed.init_process_group("nccl")
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).cuda())
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    net(torch.ones(2, 8, device="cuda")).sum().backward()
    optimizer.step()
""")
    line = ["env", f"PYTHONPATH={Path.cwd()}", "deepspeed", *flags.split(), name, "x"]
    assert rehearse(line, python=sys.executable).answer.world_size == ranks


def test_the_program_finds_the_gpu_that_is_asked_for_and_its_own_memory(program) -> None:
    text = """
import torch
assert torch.cuda.is_available() and torch.cuda.device_count() == 1
print(torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory)
before = torch.cuda.memory_allocated()
free, total = torch.cuda.mem_get_info()
assert 300 << 20 < total - free < 800 << 20  # of the context
x = torch.zeros(1 << 20, device="cuda")
assert free - torch.cuda.mem_get_info()[0] == 20 << 20
assert torch.cuda.memory_allocated() - before == 4 << 20 and torch.cuda.memory_reserved() == 20 << 20
del x
torch.cuda.empty_cache()
assert torch.cuda.memory_reserved() == 0 and torch.cuda.max_memory_allocated() == 4 << 20
assert str(torch.ones(2).cuda().device) == "cuda:0" and torch.ones(2).cuda().cpu().device.type == "cpu"
assert torch.cuda.get_device_capability() == (8, 9) and torch.cuda.is_bf16_supported()
raise RuntimeError(torch.cuda.get_device_name())
"""
    with pytest.raises(CannotTellError, match="RuntimeError: NVIDIA GeForce RTX 4090"):
        rehearse([sys.executable, program(text)], gpu=find_gpu("4090"))


def test_commands_of_python_are_understood(in_folder: Path) -> None:
    Path("train.py").write_text("")
    Path("tool").write_text(f"#!{sys.executable}\n")
    Path("tool").chmod(0o755)
    Path("ls").write_text("#!/bin/sh\n")
    here, environ = sys.executable, dict(os.environ)
    for line, words, given in (
        (f"{here} train.py --lr 1", ["train.py", "--lr", "1"], {}),
        (f"{here} -u -W ignore -m a.b x", ["-m", "a.b", "x"], {}),
        (f"A=1 B=2 {here} -c pass", ["-c", "pass"], {"A": "1", "B": "2"}),
        ("./tool x", ["./tool", "x"], {}),
        (f"env A=1 {here} train.py", ["train.py"], {"A": "1"}),
        ("uv run --with x -p 3.12 train.py 1", ["train.py", "1"], {}),
        ("uv run -m a.b", ["-m", "a.b"], {}),
        ("torchrun --nproc_per_node=2 train.py", ["-m", "torch.distributed.run", "--nproc_per_node=2", "train.py"], {}),
    ):
        found = python_command(line.split(), environ, None if here in line or "tool" in line else here)
        assert found[1:] == (words, given)
    for line, sentence in (
        ("", "no command given"),
        (f"{here}", "names no program"),
        (f"{here} nope.py", r"nope\.py: no such file"),
        ("./ls", "is not a Python program"),
        ("nothing-there x", "there is no nothing-there in PATH"),
        ("mpirun python train.py", "write -np N"),
        ("srun -n 2 tool train.py", "no Python program is found after srun"),
        ("uv run --with x tool", "no Python program is found after uv run"),
        ("horovodrun train.py", "starts several processes"),
        ("./nopython train.py", r"there is no \./nopython"),
    ):
        with pytest.raises(InputError, match=sentence):
            python_command(line.split(), environ)


def test_the_python_of_a_project_or_launcher_runs_the_program(in_folder: Path) -> None:
    folder = in_folder / ".venv" / "bin"
    folder.mkdir(parents=True)
    for name, text in (("python", ""), ("python3", ""), ("accelerate", ""), ("torchrun", f"#!{folder / 'python3'}\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (in_folder / "train.py").write_text("")
    for line, python in (
        ("uv run python train.py", "python"),
        ("poetry run python train.py", "python"),
        (".venv/bin/torchrun train.py", "python3"),
        ("uv run --no-sync torchrun train.py", "python3"),
        (f"{folder}/accelerate launch train.py", "python"),
        (f"{folder}/accelerate-launch train.py", "python"),
        (f"conda run -p {in_folder / '.venv'} --no-capture-output python train.py", "python"),
        ("mamba run -p .venv torchrun train.py", "python3"),
    ):
        assert python_command(line.split(), dict(os.environ))[0] == folder / python


def test_environments_of_conda_and_pixi_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environments = {
        "conda run -n own python": "conda/envs/own",
        "conda run --name=base python": "conda",
        "conda run -n elsewhere python": "other/elsewhere",
        "conda run python": "active",
        "pixi run python": ".pixi/envs/default",
        "pixi run -e cuda python": ".pixi/envs/cuda",
    }
    for each in environments.values():
        python = tmp_path / each / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.touch(0o755)
    (tmp_path / ".conda").mkdir()
    (tmp_path / ".conda/environments.txt").write_text(f"{tmp_path}/other/elsewhere\n")
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside/train.py").touch()
    monkeypatch.chdir(tmp_path / "inside")
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "CONDA_EXE": f"{tmp_path}/conda/bin/conda",
        "CONDA_PREFIX": f"{tmp_path}/active",
    }
    for line, folder in environments.items():
        python, words, _ = python_command([*line.split(), "train.py"], environ)
        assert (python, words) == (tmp_path / folder / "bin" / "python", ["train.py"])
    with pytest.raises(InputError, match="no environment gone of conda's is found"):
        python_command(["conda", "run", "-n", "gone", "python", "train.py"], environ)


RANKS = """
import os, sys, torch, torch.nn as nn, torch.distributed as dist, torch.multiprocessing as mp
def train(rank, ranks, wide):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29501", rank=rank, world_size=ranks)
    assert dist.get_world_size() == ranks and dist.get_rank() == 0
    net = nn.parallel.DistributedDataParallel(nn.Linear(wide, wide, bias=False).cuda())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.ones(2, wide, device="cuda")).sum().backward()
        optimizer.step()
if __name__ == "__main__":
    rank, size, local, on_node = sys.argv[1:]
    if rank == "spawn":
        mp.spawn(train, args=(int(size), 1024), nprocs=int(size), join=local == "join")
    else:
        assert torch.cuda.device_count() == int(on_node) and os.environ[local] == "0"
        train(int(os.environ[rank]), int(os.environ[size]), 1024)
"""


@pytest.mark.parametrize(
    ("line", "words", "ranks"),
    quick_every(
        3,
        [
            ("srun -N 2 --ntasks-per-node=4 --job-name x", "SLURM_PROCID SLURM_NTASKS SLURM_LOCALID 4", 8),
            ("srun -n8 -u", "SLURM_PROCID SLURM_NTASKS SLURM_LOCALID 8", 8),
            ("mpirun -np 4 -npernode 2", "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK 2", 4),
            ("mpiexec -n 2", "PMI_RANK PMI_SIZE MPI_LOCALRANKID 2", 2),
            ("", "spawn 4 join 4", 4),
            ("", "spawn 4 no 4", 4),
        ],
        start=1,
    ),
)
def test_rank_0_of_other_launchers(program, line: str, words: str, ranks: int) -> None:
    found = rehearse([*line.split(), sys.executable, program(RANKS), *words.split()])
    assert found.answer.world_size == ranks
    weights = 1024 * 1024 * 4
    assert found.budget.peak.components.weights == weights
    assert found.budget.peak.components.communication - weights == communicator_bytes([ranks])  # a bucket, and NCCL's


def test_parameters_that_the_program_changes_itself_are_trained(program) -> None:
    text = """
import torch
net = torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False), torch.nn.Linear(64, 8, bias=False)).cuda()
net[0].requires_grad_(False)
first, second = torch.zeros_like(net[1].weight), None
while True:
    net(torch.randn(8, 64, device="cuda")).sum().backward()
    with torch.no_grad():
        second = torch.zeros_like(first) if second is None else second
        first.lerp_(net[1].weight.grad, 0.1)
        second.lerp_(first.square(), 0.1)
        net[1].weight -= 0.1 * first
"""
    found = rehearse([sys.executable, program(text)])
    assert (found.budget.model.parameters, found.answer.trained) == (64 * 64 + 64 * 8, 64 * 8)
    assert found.budget.peak.components.optimizer == 2 * 64 * 8 * 4


def test_tensors_of_the_program_s_own_class_are_moved(program) -> None:
    image = "torch.randn(2, 1, 32, 32, 32).as_subclass(Image).to(dev)"
    lines = f"image = {image}\nnet(image).square().sum().backward()"
    rehearse_beside_cpu(program(trains(lines, "nn.Conv3d(1, 4, 3)", "class Image(torch.Tensor): pass")), rel=0.02)


def test_models_that_are_not_trained_are_told_apart(program) -> None:
    before = """
import copy
teacher = nn.Linear(1024, 2048, bias=False).cuda()
net = nn.Sequential(nn.Linear(1024, 512, bias=False), nn.Linear(512, 2048, bias=False)).cuda()
net[0].requires_grad_(False)
average = copy.deepcopy(net)
"""
    text = """
x = torch.randn(8, 1024, device="cuda")
with torch.no_grad():
    y = teacher(x)
(net(x) - y).pow(2).mean().backward()
"""
    found = rehearse([sys.executable, program(trains(text, "net", before, "SGD(net[1].parameters(), 0.1)"))])
    parts = found.answer.phases["backward"].components
    own, teacher = 4 * (1024 * 512 + 512 * 2048), 4 * 1024 * 2048
    assert (parts["weights"], parts["other_models"]) == (own, teacher + own)
    assert (found.budget.model.parameters, found.answer.trained) == (own // 4, 512 * 2048)


@pytest.mark.parametrize(
    "average",
    quick_every(
        2,
        [
            "[each.detach().clone() for each in net.parameters()]",
            "{name: each.clone() for name, each in net.state_dict().items()}",
            "[each.detach().double() for each in net.parameters()]",
        ],
        start=1,
    ),
    ids=["list", "state dict", "wider"],
)
def test_an_average_that_the_program_keeps_itself_is_another_model(program, average: str) -> None:
    before = f"""
net = nn.Sequential(nn.Linear(512, 512, bias=False), nn.Linear(512, 512, bias=False)).cuda()
average = {average}
"""
    lines = "net(torch.randn(8, 512, device=dev)).pow(2).mean().backward()"
    file = program(trains(lines, "net", before, "Adam(net.parameters())"))
    parts = rehearse([sys.executable, file]).answer.phases["optimizer step"].components
    own = 2 * 4 * 512 * 512
    assert (parts["weights"], parts["other_models"]) == (own, 2 * own if "double" in average else own)
    assert parts["optimizer"] == pytest.approx(2 * own, rel=0.01)


def test_a_part_of_a_model_may_be_called_before_the_whole(program) -> None:
    text = """
x = torch.randn(4, 512, device=dev)
with torch.no_grad():
    y = teacher(x) if step else teacher[0](x)
(net(x) - y).square().mean().backward()
"""
    teacher = "teacher = nn.Sequential(nn.Linear(512, 512), nn.ReLU()).cuda()"
    found = rehearse([sys.executable, program(trains(text, "nn.Linear(512, 512)", teacher))])
    parts = found.answer.phases["backward"].components
    assert parts["other_models"] == parts["weights"] == 4 * 512 * 513


@pytest.mark.parametrize(
    "made",
    [
        "[torch._foreach_add_([ids], [torch.empty_like(ids)]), ids][1]",
        *quick_every(3, ["torch.empty_like(ids)", "ids.new_empty(3)", "ids.resize_(4)"]),
    ],
)
def test_uninitialized_memory_has_no_known_value(program, made: str) -> None:
    lines = f"size = int({made}.max())\nnet(torch.ones(size, 2, device=dev)).sum().backward()"
    text = trains(lines, "nn.Linear(2, 2)", "ids = torch.tensor([7, 7, 7], device=dev)")
    (warning,) = rehearse([sys.executable, program(text)]).warnings
    assert "train.py:7 reads a number that is only known in a real run; 1 is assumed" in warning


def test_a_number_with_which_the_program_fails_is_assumed_to_be_larger(program) -> None:
    text = """
size = int((torch.rand(9, device=dev) * 500).long().sum())
net(torch.ones(size, 2, device=dev).unfold(0, 64, 64).transpose(1, 2)).sum().backward()
"""
    (warning,) = rehearse([sys.executable, program(trains(text, "nn.Linear(2, 2)"))]).warnings
    assert "train.py:7 reads a number that is only known in a real run; 100 is assumed" in warning


def test_a_program_that_fails_where_one_of_many_is_assumed_to_be_true_is_run_with_none(program) -> None:
    text = """
out = net(torch.randn(4, 2, device=dev))
if (out > 9).any():
    out = out.view(3, 3)
out.sum().backward()
"""
    (warning,) = rehearse([sys.executable, program(trains(text, "nn.Linear(2, 2)"))]).warnings
    assert "train.py:8 branches on a value that is only known in a real run; no is assumed" in warning


def test_what_a_library_makes_has_the_program_s_own_line_too(program) -> None:
    Path("lib/site-packages").mkdir(parents=True)
    program("def squash(x):\n    return x.tanh()\n", "lib/site-packages/layers.py")
    before = "sys.path.insert(0, 'lib/site-packages')\nfrom layers import squash"
    text = trains("squash(net(torch.ones(3000, 1000, device=dev))).sum().backward()", "nn.Linear(1000, 1000)", before)
    found = rehearse([sys.executable, program(text)]).budget.largest
    places = {(Path(each.line).name, Path(each.own_line).name) for each in found}
    assert {("layers.py:2", "train.py:8"), ("train.py:8", ""), ("train.py:5", "")} <= places


def test_gradients_that_are_zeroed_after_a_step_are_not_in_the_forward_pass(program) -> None:
    text = """
net(torch.randn(32, 256).to(dev)).square().mean().backward()
nn.utils.clip_grad_norm_(net.parameters(), 1.0)
"""
    net = "nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(4)))"
    phases = rehearse([sys.executable, program(trains(text, net))]).answer.phases
    assert not phases["forward"].components["gradients"]
    assert phases["forward"].components["activations"] >= 4 * 32 * 256 * 4
    assert phases["backward"].components["gradients"] >= 4 * 256 * 256 * 4
    assert not phases["optimizer step"].components["activations"]


def test_what_is_held_while_loading_only_may_be_the_peak(program) -> None:
    before = """
whole = nn.Linear(8192, 8192).cuda()
net = nn.Linear(64, 64)
with torch.no_grad():
    net.weight.copy_(whole.weight[:64, :64])
net.cuda()
{}
"""
    text = trains("net(torch.randn(8, 64, device=dev)).sum().backward()", "net", before)
    freed, kept = (rehearse([sys.executable, program(text.format(line))]).budget for line in ("del whole", ""))
    assert freed.peak.phase == "loading"
    assert freed.peak.components.weights >= 8192 * 8192 * 4
    assert freed.peak.reserved_bytes >= freed.peak.allocated_bytes >= 8192 * 8192 * 4
    assert kept.peak.phase != "loading"
    assert freed.phase("backward").components.total_bytes < freed.phase("loading").components.total_bytes
    smaller = rehearse([sys.executable, program(text.format("del whole").replace("8192", "2048"))]).budget
    assert smaller.phase("backward").components.total_bytes > smaller.phase("loading").components.total_bytes
    assert (smaller.peak.phase, smaller.peak.components.weights) == ("loading", 2048 * 2048 * 4 + 8192 + 16896)


def test_a_weight_may_be_larger_than_the_memory_of_the_host(program) -> None:
    before = """
class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.stacked = nn.Parameter(torch.empty(256, 2**15, 2**16))
        self.zeros = nn.Parameter(torch.zeros(2**39, dtype=torch.bfloat16))
    def forward(self, x):
        return x * self.stacked[0, 0, 0] * self.zeros[0]
"""
    text = trains("net(torch.randn(8, device=dev)).sum().backward()", "Experts().to(torch.bfloat16)", before)
    found = rehearse([sys.executable, program(text)])
    assert found.answer.trained == 2**39 * 2
    assert found.answer.host_bytes < 2 * 2**30


def test_the_range_of_a_small_program_is_narrow(program) -> None:
    text = trains("net(torch.ones(2, 2048, device=dev)).sum().backward()", "nn.Linear(2048, 2048)")
    found = rehearse([sys.executable, program(text)])
    span = found.budget.peak.allocated_range
    assert span.high_bytes - span.low_bytes < 2 * (0.1 * (found.workspace_bytes + 2**20) + 3 * 2**20)


LIBRARIES = {
    "diffusers/__init__.py": "",
    "diffusers/models/__init__.py": "",
    "diffusers/models/modeling_utils.py": """
import json, torch
class ModelMixin(torch.nn.Module):
    @classmethod
    def load_config(cls, name, return_unused_kwargs=False, subfolder="", **kwargs):
        return json.load(open(f"{name}/{subfolder}/config.json")), kwargs
    @classmethod
    def from_config(cls, config, **kwargs):
        return cls(**config)
    def register_to_config(self, **kwargs):
        pass
    def from_pretrained(self, name):
        raise OSError("reads weights")
""",
    "timm/__init__.py": "",
    "timm/models/__init__.py": "",
    "timm/models/_builder.py": "def load_pretrained(model):\n    raise OSError('reads weights')\n",
    "torchvision/__init__.py": "",
    "torchvision/extension.py": "def _has_ops():\n    return False\n",
    "models/unet/config.json": '{"width": 64}',
}


def test_libraries_of_images_build_models_without_weights(program) -> None:
    for name, text in LIBRARIES.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    text = """
import torch
from safetensors.torch import load_file, save_file
from diffusers.models.modeling_utils import ModelMixin
from timm.models import _builder
import torchvision.extension
assert torch.ops.torchvision.nms.default
class Net(ModelMixin):
    def __init__(self, width):
        super().__init__()
        self.a = torch.nn.Conv2d(3, width, 3)
net = Net.from_pretrained("models", subfolder="unet", torch_dtype=torch.bfloat16, variant="fp16").to("cuda")
assert net.a.weight.dtype == torch.bfloat16 and not net.training
_builder.load_pretrained(net)
net.load_state_dict(torch.hub.load_state_dict_from_url("https://nowhere.example/weights.pth"))
state = load_file("weights.safetensors")
assert state["large"].shape == (1024, 1024) and state["small"].tolist() == [1.0, 2.0]
try:
    load_file("pointer.safetensors")
except OSError as error:
    assert "git lfs pull" in str(error)
boxes = torch.tensor([[0.0, 0, 4, 4]], device="cuda")
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    net.a(torch.ones(2, 3, 8, 8, device="cuda", dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
"""
    import torch
    from safetensors.torch import save_file

    save_file({"large": torch.zeros(1024, 1024), "small": torch.tensor([1.0, 2.0])}, "weights.safetensors")
    Path("pointer.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    found = rehearse([sys.executable, program(text)])
    assert found.answer.trained == 64 * 3 * 9 + 64


def test_masks_of_ones_are_left_out_and_adapters_need_no_weights(program) -> None:
    Path("model").mkdir()
    Path("model/config.json").write_text(
        '{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 64,'
        ' "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 100}'
    )
    Path("adapter").mkdir()
    Path("adapter/adapter_config.json").write_text(
        '{"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "target_modules": ["q_proj"],'
        ' "base_model_name_or_path": "model"}'
    )
    text = """
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM
from transformers.integrations import sdpa_attention
seen = []
attention = torch.nn.functional.scaled_dot_product_attention
def watched(*args, attn_mask=None, **kwargs):
    seen.append(attn_mask is not None)
    return attention(*args, attn_mask=attn_mask, **kwargs)
torch.nn.functional.scaled_dot_product_attention = watched
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("model"), "adapter", is_trainable=True).cuda()
optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], 0.1)
ids = torch.ones(2, 16, dtype=torch.long)
for masked in (False, True):
    mask = torch.ones_like(ids)
    mask[0, 8:] = 1 - masked
    model(ids.cuda(), attention_mask=mask.cuda(), labels=ids.cuda()).loss.backward()
    optimizer.step()
assert seen == [False, True], seen
raise KeyError("reached")
"""
    with pytest.raises(CannotTellError, match="KeyError: 'reached'"):
        rehearse([sys.executable, program(text)])


def test_a_program_that_changes_its_parameters_itself_and_loads_what_it_saved(program) -> None:
    text = """
import torch
net = torch.nn.Linear(64, 64).cuda()
torch.save(net.state_dict(), "b.pt")
with open("b.pt", "rb") as file:
    before = torch.cuda.memory_allocated()
    net.load_state_dict(torch.load(file))
    assert torch.cuda.memory_allocated() == before
assert torch.load("b.pt", map_location="cuda")["weight"].is_cuda
for _ in range(1000):
    action = torch.distributions.Categorical(logits=net(torch.randn(8, 64, device="cuda")))
    action.log_prob(action.sample()).sum().backward()
    with torch.no_grad():
        for each in net.parameters():
            each.add_(each.grad, alpha=-0.1)
            each.grad = None
raise KeyError("too late")
"""
    found = rehearse([sys.executable, program(text)])
    assert not found.answer.steps
    assert found.answer.phases["backward"].components["gradients"] >= 64 * 64 * 4


def test_packed_sequences_take_their_own_tokens_in_a_recurrent_layer(program) -> None:
    text = """
x = torch.randn(32, 200, 64, device=dev)
packed = nn.utils.rnn.pack_padded_sequence(x, torch.arange(169, 201), batch_first=True, enforce_sorted=False)
with torch.autocast(dev):
    y, _ = net(packed)
y, lengths = nn.utils.rnn.pad_packed_sequence(y, batch_first=True)
assert y.shape == (32, 200, 96) and lengths[0] == 169
y.float().pow(2).sum().backward()
"""
    found = rehearse([sys.executable, program(trains(text, "nn.LSTM(64, 96, batch_first=True)"))])
    tokens = sum(range(169, 201))
    assert (tokens * 96 * 5,) in {each.shape for each in found.answer.peak_tensors}
    assert found.warnings == (
        "memory kept by recurrent layers follows a rule inferred from cuDNN of 2017; cuDNN publishes none.",
    )


def test_data_of_an_evaluation_in_inference_mode(program) -> None:
    text = """
import torch
net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 10)).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
def batch(count):
    return torch.randn(count, 3, 32, 32).to(device="cuda", dtype=torch.float32, memory_format=torch.channels_last)
for step in range(3):
    net(batch(2)).sum().backward()
    optimizer.step()
with torch.inference_mode():
    net.eval()
    for step in range(2):
        net(batch(64)).softmax(1).argmax(1).sum().item()
"""
    found = rehearse([sys.executable, program(text)])
    assert found.answer.phases["evaluation"].allocated >= 64 * 3 * 32 * 32 * 4


SAVES = """
import copy, os, pickle, shutil, torch, torch.nn as nn
from safetensors.torch import load_file, load_model, save, load, save_file, save_model
net = nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 256), nn.Linear(256, 512)).cuda()
net[2].weight = net[0].weight
optimizer = torch.optim.AdamW(net.parameters())
def step():
    net(torch.randn(4, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
step()
state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "ids": torch.arange(5), "step": 1}
torch.save(state, "draft.pt")
os.mkdir("run")
os.replace("draft.pt", "run/last.pt")
before = torch.cuda.memory_allocated()
alias = copy.copy(net[1].weight)
assert alias.is_cuda and alias.requires_grad and torch.cuda.memory_allocated() == before
found = torch.load("run/last.pt", weights_only=True)
assert found["step"] == 1 and found["ids"].tolist() == [0, 1, 2, 3, 4]
assert {each.device.type for each in found["net"].values()} == {"cuda"}
one, other = found["net"]["0.weight"], found["net"]["2.weight"]
assert one.shape == (512, 256) and one.data_ptr() == other.data_ptr() != found["net"]["1.weight"].data_ptr()
saved = (2 * 512 * 256 + 2 * 512 + 256) * 4
assert torch.cuda.memory_allocated() - before >= 3 * saved - 512 * 256 * 4
net.load_state_dict(found["net"])
optimizer.load_state_dict(found["optimizer"])
del found, one, other
assert torch.load("run/last.pt", map_location="cpu")["net"]["0.bias"].device.type == "cpu"
assert torch.load("run/last.pt", map_location={"cuda:0": "cpu"})["net"]["0.bias"].device.type == "cpu"
with open("model.pkl", "wb") as file:
    pickle.dump(net, file)
with open("model.pkl", "rb") as file:
    again = pickle.load(file)
assert again[2].weight is again[0].weight and again[0].weight.requires_grad and again[0].weight.is_cuda
del again
save_model(net, "model.safetensors")
load_model(net, "model.safetensors", device="cuda")
tensors = {"large": torch.zeros(512, 1024, device="cuda"), "none": torch.zeros(0, 4), "ids": torch.arange(5)}
save_file(tensors, "file.safetensors", metadata={"format": "pt"})
shutil.copy("file.safetensors", "copy.safetensors")
found = load_file("copy.safetensors")
assert found["large"].shape == (512, 1024) and found["ids"].tolist() == [0, 1, 2, 3, 4] and not found["none"].numel()
assert load(save({"a": torch.zeros(3, device="cuda")}))["a"].tolist() == [0, 0, 0]
del found, tensors
for _ in range(4):
    step()
"""


def test_what_a_program_saves_it_loads_again(program) -> None:
    found = rehearse([sys.executable, program(SAVES)])
    assert found.answer.steps[0].steps == 3
    assert not found.warnings


def test_a_model_of_transformers_is_saved_and_its_training_goes_on_from_a_checkpoint(program) -> None:
    text = """
import os, sys, torch
assert "transformers.trainer" in sys.modules  # the tests' Python has imported it
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=1000))
data = [{"input_ids": torch.arange(16), "labels": torch.arange(16)}] * 32
def trainer(steps):
    args = TrainingArguments("out", per_device_train_batch_size=2, max_steps=steps, save_steps=1, report_to=[])
    return Trainer(model, args, train_dataset=data)
trainer(1).train()
model.save_pretrained("parts", max_shard_size="200KB")
assert len([name for name in os.listdir("parts") if name.endswith(".safetensors")]) > 1
assert load_file("out/checkpoint-1/model.safetensors")["transformer.wte.weight"].shape == (1000, 64)
GPT2LMHeadModel.from_pretrained("parts")
going_on = trainer(5)
going_on.train(resume_from_checkpoint=True)
assert going_on.state.global_step == 5
"""
    found = rehearse([sys.executable, program(text)])
    assert [each.steps for each in found.answer.steps] == [1, 3]


THREAD = """
import sys, threading, torch, torch.nn as nn
from concurrent.futures import ThreadPoolExecutor
def train():
    net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(4):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = net(torch.randn(512, 256, device="cuda")).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
"""


@pytest.mark.parametrize(
    "start",
    [
        "thread = threading.Thread(target=train)\nthread.start()\nthread.join()",
        pytest.param("threading.Thread(target=train).start()\nsys.exit()", marks=pytest.mark.slow),
        pytest.param("with ThreadPoolExecutor() as pool:\n    pool.submit(train).result()", marks=pytest.mark.slow),
    ],
    ids=["joined", "left alone", "pool"],
)
def test_a_program_that_trains_in_a_thread_is_rehearsed_like_one_that_does_not(program, start: str) -> None:
    found = rehearse([sys.executable, program(THREAD + start)])
    expected = rehearse([sys.executable, program(f"{THREAD}train()")])
    assert found.answer.phases == expected.answer.phases
    assert not found.warnings


NAMED = """
if dev == "cuda":
    named = [
        torch.ones(512, 512, device=0),
        torch.ones_like(torch.empty(512, 512), device=0),
        torch.asarray(torch.ones(512, 512), device=torch.device(0)),
        torch.cuda.FloatTensor(512, 512),
        torch.ones(512, 512).type(torch.cuda.FloatTensor),
        torch.ones(512, 512).type("torch.cuda.FloatTensor"),
    ]
    assert all(x.is_cuda and x.shape == (512, 512) and x.dtype == torch.float32 for x in named)
else:
    named = [torch.ones(512, 512) for _ in range(6)]
net = nn.Sequential(nn.LazyLinear(256), nn.ReLU(), nn.LazyLinear(10)).to(dev)
net(named[0])
"""


def test_gpus_named_by_number_or_type_are_gpus(program) -> None:
    rehearse_beside_cpu(program(trains("sum(net(x).square().mean() for x in named).backward()", "net", NAMED)))


MADE_IN_C = """
x = net(torch.randn(8, 128, 64, device=dev))
made = (
    nn.utils.rnn.pad_sequence([each[: 128 - at] for at, each in enumerate(x)], batch_first=True),
    x + nn.utils.rnn.pad_sequence([each[:, 0] for each in x]).t().unsqueeze(2),
    Two.apply(x)[0],
    torch.where(x > 0, x, x.new(8, 128, 64).fill_(3)),
    x * x.new_tensor([[2.0] * 64] * 128),
    x * nn.functional.one_hot(torch.arange(1024).to(dev) % 64, 64).view_as(x),
    torch.sparse.mm(matrix, x.view(1024, 64)),
    nn.utils.rnn.pad_packed_sequence(nn.utils.rnn.pack_padded_sequence(x, torch.full((128,), 8)))[0],
    x * torch.ones(8, 128, 64).type_as(x),
    x * torch.ones(8, 128, 64).to(tensor=x),
    nn.Linear(64, 64).to(x)(x),
    nn.Linear(64, 64).to(tensor=x)(x),
)
sum(each.square().mean() for each in made).backward()
del x, made
"""
BY_HAND_IN_C = """
class Two(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x: (x * 2, x * 3))
    backward = staticmethod(lambda ctx, a, b: a * 2 + b * 3)
links = torch.stack([torch.arange(1024), torch.arange(1024)])
matrix = torch.sparse_coo_tensor(links, torch.ones(1024), (1024, 1024))
matrix, _ = matrix.to(dev), links.zero_()
"""


def test_what_cplusplus_makes_like_a_tensor_on_the_gpu_is_there_too(program) -> None:
    rehearse_beside_cpu(program(trains(MADE_IN_C, before=BY_HAND_IN_C)), rel=0.02)


def test_gradients_go_where_the_tensors_came_from(program) -> None:
    text = """
net(words(torch.randint(0, 100_000, (2048,))).cuda()).cpu().square().mean().backward()
assert net.weight.grad.is_cuda and not words.weight.grad.is_cuda
"""
    both = "SGD([*words.parameters(), *net.parameters()], 0.1)"
    words = "words = nn.Embedding(100_000, 512)"
    found = rehearse([sys.executable, program(trains(text, "nn.Linear(512, 8192)", words, both))])
    weights, of_words, of_outputs = 512 * 8192 * 4, 2048 * 512 * 4, 2048 * 8192 * 4
    expected = 2 * weights + 2 * of_words + of_outputs
    assert found.allocated_bytes - found.workspace_bytes == pytest.approx(expected, rel=0.01)


def test_attention_takes_tensors_of_other_ranks(program) -> None:
    """Only the kernel that writes the scores takes them on CUDA."""
    net = "nn.ParameterList(torch.randn(each) for each in ((512, 64), (2, 512, 64), (2, 2, 4, 512, 64)))"
    lines = "sum(nn.functional.scaled_dot_product_attention(q, q, q).sum() for q in net).backward()"
    rehearse_beside_cpu(program(trains(lines, net)))


def test_attention_over_sharded_heads_is_that_of_a_gpu(program) -> None:
    before = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
mesh = init_device_mesh("cuda", (2,))
whole = torch.randn(2, 4, 1024, 64, device="cuda", dtype=torch.bfloat16)
q = nn.Parameter(distribute_tensor(whole, mesh, [Shard(1)]))
del whole
"""
    lines = "nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()"
    found = torchrun(f"--nproc-per-node 2 {program(trains(lines, 'nn.ParameterList([q])', before))}")
    scores = 2 * 2 * 1024 * 1024 * 2
    assert found.answer.steps[0].steps == 3
    assert found.allocated_bytes - found.workspace_bytes < scores  # which no kernel wrote


def test_a_program_that_multiplies_no_matrices_has_no_workspaces_of_cublas(program) -> None:
    without, product = (
        rehearse([sys.executable, program(trains(f"{loss}.backward()", "nn.ParameterList([torch.zeros(1 << 20)])"))])
        for loss in ("net[0].square().sum()", "net[0].dot(net[0])")
    )
    assert (without.workspace_bytes, product.workspace_bytes > 0) == (0, True)


def test_each_group_of_gpus_has_its_own_communicator(program) -> None:
    before = """
import torch.distributed as dist
dist.init_process_group("nccl")
dist.new_group(backend="gloo")
dist.new_group([4, 5, 6, 7])
if sys.argv[1] == "mesh":
    torch.distributed.device_mesh.init_device_mesh("cuda", (2, 4))
"""
    name, taken = program(trains("net.weight.sum().backward()", before=before)), []
    for kind in ("world", "mesh"):
        found = torchrun(f"--nproc-per-node 8 {name} {kind}")
        assert not found.warnings
        taken.append(found.budget.peak.components.communication)
        groups = found.answer.groups
        assert sorted(groups) == ([8] if kind == "world" else [2, 4, 8])
    assert 0 < taken[0] < taken[1]


MIXTURE = """
import sys, torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
dev = sys.argv[1]
model = Qwen3MoeForCausalLM(Qwen3MoeConfig(
    vocab_size=500, hidden_size=128, intermediate_size=256, moe_intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=32, num_experts=8, num_experts_per_tok=2
)).to(dev, torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    tokens = torch.randint(0, 500, (2, 128)).to(dev)
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
def test_a_mixture_of_experts_takes_what_it_takes_on_the_cpu(program) -> None:
    """Experts are grouped by a histogram of integers; norms are cast after they were filled with ones."""
    pytest.importorskip("transformers")
    found = rehearse_beside_cpu(program(MIXTURE), rel=0.001)
    assert not found.warnings


MOVED_DATA = """
import sys, torch
dev = sys.argv[1]
net = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.BatchNorm1d(512))
buffer = torch.randn(300, 1000)
for each in [*net.parameters(), *net.buffers(), buffer]:
    each.data = each.data.to(dev)
if dev != "cpu":
    assert buffer.is_cuda and all(each.is_cuda for each in net.buffers())
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(3):
    net(torch.ones(64, 512, device=dev)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cat([*net.buffers()][:2])
buffer.data = buffer.data.cpu()
assert not buffer.is_cuda
"""


SCRIPTED = trains(
    "net(noisy(torch.randn(64, 256).to(dev))).square().mean().backward()",
    "torch.jit.script(nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).to(dev))",
    """
from torch.distributed.optim import ZeroRedundancyOptimizer  # which scripts optimizers while it is imported
@torch.jit.script
def noisy(x: torch.Tensor) -> torch.Tensor:
    return x + torch.zeros_like(x) + torch.ones(x.shape[0], 1, device=x.device)
""",
    "AdamW(net.parameters())",
)


NORMALIZED = trains(
    "net.train(step < 2)(torch.randn(256, 40, 64).to(dev)).square().mean().backward()",
    "nn.Sequential(*[each for _ in range(3) for each in (nn.Linear(64, 64), Norm(64), nn.ReLU())])",
    """
class Norm(nn.BatchNorm1d):
    def forward(self, x):
        return super().forward(x.transpose(1, 2)).transpose(1, 2)
""",
    "AdamW(net.parameters())",
)


LISTED = trains(
    """
loss = net(scaled * torch.randn(64, 32).to(dev)).square().mean()
loss.backward()
losses.append(loss.detach())
mean = torch.tensor(losses).mean()
""",
    "nn.Linear(32, 512)",
    """
frequencies = 1 / 10000 ** (torch.arange(0, 64, 2, device=dev)[:32].float() / 64)
scaled = torch.tensor([each if each > 0.5 else each / 8 for each in frequencies], device=frequencies.device)
losses = []
""",
    "AdamW(net.parameters())",
)


ALIGNED = trains(
    """
scores = net(torch.randn(8, 200, 80).to(dev)).log_softmax(-1).transpose(0, 1)
mask = labels >= 0
steps = torch.full((8,), 200, device=dev)
with torch.backends.cudnn.flags(enabled=False):
    loss = nn.functional.ctc_loss(scores, labels.masked_select(mask), steps, mask.sum(-1))
loss.backward()
""",
    "nn.Sequential(nn.Linear(80, 256), nn.ReLU(), nn.Linear(256, 32))",
    "labels = torch.randint(1, 32, (8, 40))\nlabels[:, 30:] = -100\nlabels = labels.to(dev)",
    "AdamW(net.parameters())",
)


INFERRED = """
import sys, torch, torch.nn as nn
dev = sys.argv[1]
attention = nn.MultiheadAttention(64, 4).to(dev)
head = nn.Linear(64, 64).to(dev)
optimizer = torch.optim.AdamW([*attention.parameters(), *head.parameters()])
for _ in range(3):
    x = torch.randn(32, 8, 64).to(dev)
    with torch.inference_mode():
        for _ in range(2):  # a parameter and its parts, and what depends on values
            y = attention(x, x, value=x + 1)[0]
            rows, columns = torch.where(y[0] > -1e9)
    x = x.mean(1).requires_grad_()
    scores = head(x)
    scaled = scores / scores.norm(float("inf"), dim=1, keepdim=True)
    slope, = torch.autograd.grad((scaled * scores.detach()).sum(), [x], create_graph=True)
    (slope.square().sum() + attention(x, x, x)[0].sum()).backward()
    optimizer.step()
"""


VIEWED = trains(
    """
ids = torch.ones(1024, 64, dtype=torch.int64).to(dev)
flat = ids.reshape(-1, 4)
ids[0] = 0
ids[1].add_(5)
flat[-1].fill_(9)
assert ids[0].sum().item() == 0 and ids[1, 0].item() == 6 and ids[-1, -4:].tolist() == [9] * 4
ids.chunk(2)[0].mul_(2)
part = ids.t()[3:5]
part.zero_()
order = torch.randperm(1024, device=dev)
mixed = ids[order][:, :4]  # unknown values of known ones
chosen = ids[mixed[:, 0].clamp(0, 5)]
assert flat[16, 0].item() == 12 and ids[5, 3].item() == 0 and ids[5, 5].item() == 2
net(ids[:, :4].float()).sum().backward()
""",
    "nn.Linear(4, 4)",
)


@pytest.mark.parametrize(
    "text",
    quick_every(7, [NORMALIZED, MOVED_DATA, SCRIPTED, LISTED, ALIGNED, INFERRED, VIEWED], start=2),
    ids=[
        "norms of batches in another order",
        "data that is set to what is on a GPU",
        "TorchScript",
        "a list of tensors",
        "a loss over alignments",
        "inference mode, and a backward pass through another",
        "views of known values",
    ],
)
def test_less_usual_code_takes_what_it_takes_on_the_cpu(program, text: str) -> None:
    found = rehearse_beside_cpu(program(text))
    assert ("torch.jit.script has no effect" in "".join(found.budget.warnings)) == ("jit.script" in text)


PACKED = """
class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("packed", torch.zeros(0, dtype=torch.int32))
        self.adapter = nn.Linear(64, 64)
    def forward(self, x):
        return self.adapter(x) + self.packed.sum()
net = Packed().cuda()
net.packed = torch.zeros(2**20, dtype=torch.int32, device="cuda")
"""


def test_packed_weights_in_buffers_are_weights(program) -> None:
    text = trains("net(torch.randn(8, 64, device=dev)).sum().backward()", "net", PACKED)
    forward = rehearse([sys.executable, program(text)]).budget.phase("forward")
    assert forward.components.weights == 2**22 + 64 * 64 * 4 + 512


FORMS = {
    "memory that is written as a whole, whose values are known": """
order = torch.tensor([2, 0, 1], device="cuda") + 1 - 1
def put(x): x[order] = order
written = lambda x: x.copy_(torch.tensor([1, 2, 3]))
for write in (lambda x: x.fill_(3), written, lambda x: x.scatter_(0, order, order), put):
    x = torch.empty_like(order)
    write(x)
    assert int(x.max()) > 1
""",
    "a freed block, which returns when the CPU knows that another stream is done": """
MIB = 1 << 20
gathering = torch.cuda.Stream()
def used(wait):
    with torch.cuda.stream(gathering):
        gathered = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.current_stream().wait_stream(gathering)
    gathered.float().sum()
    gathered.record_stream(torch.cuda.current_stream())
    event = torch.cuda.Event()
    event.record()
    del gathered
    if wait:
        assert not event.query()  # when it is first asked, but a program that asks until it is goes on
        while not event.query():
            pass
    return torch.cuda.memory_reserved()
first = used(wait=False)
assert used(wait=False) - first == 30 * MIB
later = used(wait=True)
assert [used(wait=True) for _ in range(3)] == [later] * 3
torch.cuda.current_stream().query()
""",
    "gradients of each sample": """
from torch.func import functional_call, grad, vmap
weights, rows = dict(net.named_parameters()), torch.randn(32, 64, device="cuda")
def loss():
    def of_one(weights, row):
        return functional_call(net, weights, (row[None],)).square().sum()
    return sum(each.square().sum() for each in vmap(grad(of_one), (None, 0))(weights, rows).values())
""",
    "products with a Jacobian": """
rows = torch.randn(32, 64, device="cuda")
def loss():
    after, change = torch.func.jvp(net, (rows,), (torch.randn_like(rows),))
    return (after * change).sum()
""",
    "orthogonal weights": """
net = torch.nn.utils.parametrizations.orthogonal(torch.nn.Linear(64, 64)).cuda()
""",
    "a history of memory": """
torch.cuda.memory._record_memory_history()
torch.cuda.memory._dump_snapshot("snapshot.pickle")
assert torch.cuda.memory_snapshot() == []
""",
    "few numbers of the host": """
times = torch.linspace(0, 1, 1000).cuda()
assert [(times == t).nonzero().item() for t in times[[3, 500]]] == [3, 500]
assert torch.tensor([0.25], device="cuda").item() == 0.25 and 1 < net(torch.ones(1, 64).cuda()).sum().item() < 2
with torch.inference_mode():
    assert torch.arange(4).to("cuda").sum().item() == 6
def loss():
    with torch.cuda.stream(stream=torch.cuda.Stream()):
        assert (times * net.weight.sum()).isnan().any().byte().item() == 0  # overflow
        held = torch.cuda.memory_allocated()
        meta = torch.zeros_like(times, device="meta")
        assert torch.cuda.memory_allocated() == held
        times.record_stream(torch.cuda.current_stream())
        return net(torch.ones(1, 64).cuda()).sum()
""",
    "a default type of a GPU": """
torch.set_default_tensor_type("torch.cuda.FloatTensor")
w = torch.nn.Parameter(torch.zeros(64, 64))
assert w.is_cuda and w.type() == "torch.cuda.FloatTensor" and isinstance(w, torch.cuda.FloatTensor)
(w @ torch.ones(64)).sum().backward()
torch.set_default_tensor_type(torch.FloatTensor)
assert not torch.ones(1).is_cuda
""",
    "modules that are copied and released beside numbers": """
import copy
ids = torch.arange(42_000).to("cuda")
for _ in range(30):
    copies = [copy.deepcopy(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))) for _ in range(4)]
    del copies
assert int(copy.deepcopy(ids)[-1]) == 41_999
""",
    "the state of a generator": """
generator = torch.Generator()
generator.set_state(generator.get_state().to("cuda").cpu())
torch.set_rng_state(torch.get_rng_state().cuda().add_(0).cpu())
""",
    "what torch.compile knows of CUDA, as unsloth asks": """
from torch._dynamo.trace_rules import get_torch_obj_rule_map
get_torch_obj_rule_map()  # as torch._dynamo.substitute_in_graph does
assert torch.cuda.device(1).idx == 1 and torch.cuda.device("cuda").idx == 0 and torch.cuda.device(None).idx == -1
""",
    "counted classes": """
def loss():
    after = net(torch.randn(32, 64, device="cuda"))
    counts = torch.bincount(after.argmax(1), minlength=64)
    assert counts.shape == (64,) and torch.bincount(after.argmax(1)).shape == (64,)
    return after.sum() / counts.sum()
""",
}


@pytest.mark.parametrize("form", [*[*FORMS][:2], *quick_every(5, [*FORMS][2:])])
def test_other_forms_of_programs_run(program, form: str) -> None:
    loss = "net = nn.Linear(64, 64).to(dev)\ndef loss(): return net(torch.randn(32, 64, device=dev)).sum()\n"
    found = rehearse([sys.executable, program(trains("loss().backward()", "net", loss + FORMS[form]))])
    assert found.answer.trained == 64 * 64 + 64
    assert found.answer.steps[0].steps == 3
    assert found.allocated_bytes > 2 * 4 * 64 * 64
    assert not found.warnings
