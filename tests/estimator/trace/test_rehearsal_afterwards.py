"""What follows the steps of a rehearsed program: evaluation, saving, and memory that stays after each step."""

import sys

import pytest
from rehearsed import rehearse, rehearse_beside_cpu, torchrun
from slow_cases import first_quick

from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.gpu_catalogue import find_gpu
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.program.text_script import training_script
from vramtop.monitor.board.capacity import DeviceCapacity
from vramtop.monitor.board.fit import check_fit

pytest.importorskip("torch")

EPOCHS = """
import sys, torch, torch.nn as nn
from torch.utils.data import DataLoader
dev = sys.argv[1]
net = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 512)).to(dev)
optimizer = torch.optim.AdamW(net.parameters())
item = (torch.ones(256),)
train, valid = DataLoader([item] * 512, 32), DataLoader([item] * 8192, 512)
for epoch in range(3):
    net.train()
    for (x,) in train:
        loss = net(x.to(dev)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval()
    kept = []
    with torch.no_grad():
        for (x,) in valid:
            kept.append(net(x.to(dev)))
    del kept
    torch.save(net.state_dict(), "last.pt")
"""
STEPS = """
import torch
net = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.Adam(net.parameters())
table, kept, losses = {}, [], []
for step in range(100):
    x = table.setdefault("x", torch.randn(4096, 512, device="cuda"))
    out = net(x)
    loss = out.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
"""


def test_evaluation_that_keeps_its_outputs_takes_what_all_of_its_batches_do(program) -> None:
    found = rehearse_beside_cpu(program(EPOCHS))
    assert [each.name for each in found.budget.phases][-2:] == ["evaluation", "saving"]
    assert found.budget.peak.phase == "evaluation"
    assert found.budget.not_counted is None
    (warning,) = found.warnings
    assert warning.startswith("1 MiB more stay allocated after each batch of evaluation (")
    assert warning.endswith("train.py:20), counted for all batches.")


OWN_LOOP = """
import sys, torch
dev = sys.argv[1]
net = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)).to(dev)
optimizer, kept = torch.optim.SGD(net.parameters(), 0.1), []
for epoch in range(4):
    net.train()
    for step in range(STEPS):
        optimizer.zero_grad()
        net(torch.randn(64, 256, device=dev)).square().mean().backward()
        optimizer.step()
    net.eval()
    kept.append(KEPT)
"""


@pytest.mark.slow
@pytest.mark.parametrize("steps", [4, 60])
def test_evaluation_without_a_data_loader_is_reached(program, steps: int) -> None:
    text = OWN_LOOP.replace("STEPS", str(steps)).replace("KEPT", "net(torch.randn(1024, 256, device=dev)).sum().item()")
    found = rehearse_beside_cpu(program(text))
    assert found.budget.not_counted == "This figure does not include saving."


REPLACED = """
import sys, torch
dev = sys.argv[1]
net = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(6)]).to(dev).requires_grad_(False)
for stage in (2, 4, 6):
    net[-stage:].requires_grad_(True)
    optimizer = torch.optim.AdamW([each for each in net.parameters() if each.requires_grad])
    for step in range(4):
        optimizer.zero_grad()
        net(torch.randn(64, 512, device=dev)).square().mean().backward()
        optimizer.step()
"""
COPIES = OWN_LOOP.replace("STEPS", "5").replace(
    "KEPT", "torch.cat([each.detach().flatten() for each in net.parameters()])"
)


@pytest.mark.parametrize("text", [REPLACED, COPIES])
def test_what_comes_after_some_steps_is_seen(program, text: str) -> None:
    """An optimizer that the program replaces is gone with its states; what it copies after each epoch stays."""
    rehearse_beside_cpu(program(text))


def test_memory_that_stays_after_each_backward_pass_without_an_optimizer_is_told(program) -> None:
    text = """
import torch
net = torch.nn.Linear(4096, 256).cuda()
kept = []
for _ in range(100):
    x = torch.ones(512, 4096, device="cuda", requires_grad=True)
    net(x).norm().backward()
    torch.ones(1, device="cuda", requires_grad=True).backward()
    kept.append(x.grad)
"""
    (warning,) = rehearse([sys.executable, program(text)], gpu=find_gpu("4090")).warnings
    assert warning.startswith("8 MiB more stay allocated after each step (")


@pytest.mark.slow
def test_the_history_of_lbfgs_is_filled_and_no_leak(program) -> None:
    text = """
import sys, torch
x = torch.zeros(1 << 20, device=sys.argv[1], requires_grad=True)
steps = torch.logspace(0, 3, 1 << 20, device=sys.argv[1])
optimizer = torch.optim.LBFGS([x], max_iter=2, history_size=10, tolerance_grad=0, tolerance_change=0)
def closure():
    optimizer.zero_grad()
    loss = (steps * (x - 1) ** 2).sum()
    loss.backward()
    return loss
for _ in range(20):
    optimizer.step(closure)
"""
    found = rehearse_beside_cpu(program(text), rel=0.05)
    assert not any("stay allocated" in each for each in found.warnings)


def test_memory_that_stays_after_each_step_is_told_with_its_line_and_fits_tightly(program) -> None:
    gpu = find_gpu("4090")
    settled = rehearse([sys.executable, program(STEPS)], gpu=gpu)
    growing = rehearse([sys.executable, program(f"{STEPS}    kept.append(out)\n")], gpu=gpu)
    assert not settled.warnings
    (warning,) = growing.warnings
    assert warning.startswith("8 MiB more stay allocated after each step (")
    assert "train.py:8): 24.0 GiB are full after about 2,9" in warning
    device = DeviceCapacity(index=0, uuid=None, name=None, total_bytes=gpu.total_bytes, free_bytes=gpu.total_bytes)
    assert [check_fit(each.budget, [device]).verdict for each in (settled, growing)] == ["fits", "tight"]


@pytest.mark.slow
def test_the_trainer_evaluates_and_saves_after_the_steps_as_its_settings_do_later(program) -> None:
    text = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=64, n_head=2, vocab_size=1000))
data = [{"input_ids": torch.arange(64), "labels": torch.arange(64)}] * 80
args = TrainingArguments("out", per_device_train_batch_size=2, per_device_eval_batch_size=1, report_to=[],
                         eval_steps=20, save_steps=20, SETTING)
calls = []
model.register_forward_hook(lambda *_: calls.append(1))
Trainer(model, args, train_dataset=data, eval_dataset=data).train()
assert len(calls) < 20, "all batches of the evaluation"
"""
    both = rehearse([sys.executable, program(text.replace("SETTING", "eval_strategy='steps'"))])
    neither = rehearse([sys.executable, program(text.replace("SETTING", "save_strategy='no'"))])
    assert both.budget.phase("evaluation")
    assert both.budget.not_counted is None
    assert neither.budget.phase("evaluation") is None
    short = rehearse([sys.executable, program(text.replace("SETTING", "eval_strategy='epoch', max_steps=1"))])
    assert [each.steps for each in short.answer.steps] == [1]


@pytest.mark.parametrize("method", first_quick(["formula", "traced"]))
def test_evaluation_on_larger_batches_leaves_as_much_reserved_as_its_rehearsed_program(program, method) -> None:
    """Nothing that training has left in the allocator's cache is as large as the logits of evaluation."""
    shape = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 4}
    model = {"config": {"model_type": "llama", "vocab_size": 32_000, "num_key_value_heads": 4, **shape}}
    training = {"micro_batch": 2, "sequence_length": 512, "precision": "bf16-mixed"}
    evaluated = {**training, "evaluation_batch": 12}
    without, job = (
        job_from_mapping({"model": model, "training": each}, where="test") for each in (training, evaluated)
    )
    peak = rehearse([sys.executable, program(training_script(job, resolve_model(job.model)))]).budget.peak
    found = estimate(job, method=method).peak
    assert found.reserved_bytes == pytest.approx(peak.reserved_bytes, rel=0.05)
    assert found.allocated_bytes == pytest.approx(peak.allocated_bytes, rel=0.03)
    assert estimate(without, method=method).peak.reserved_bytes < 0.7 * peak.reserved_bytes


def test_a_program_that_fails_after_its_steps_has_an_answer_and_a_warning(program) -> None:
    found = rehearse([sys.executable, program(f"{STEPS}    assert step < 3, 'too late'\n")])
    (warning,) = found.warnings
    assert warning.startswith("The program failed after 3 steps of Adam, at ")
    assert warning.endswith("train.py:14: AssertionError: too late.")


@pytest.mark.parametrize("stops", first_quick(["raise RuntimeError('no metric yet')", "sys.exit(1)"]))
def test_a_program_that_stops_where_its_epoch_was_ended_early_need_not_do_so_in_a_whole_one(program, stops) -> None:
    text = EPOCHS.replace("    net.eval()", f"    {stops}")
    (warning,) = rehearse([sys.executable, program(text), "cuda"]).warnings
    line = text.splitlines().index(f"    {stops}") + 1
    assert warning.startswith("After 3 steps of AdamW the rehearsal ended the epoch early, and the program stopped")
    assert f"train.py:{line}: " in warning


ENDLESS = """
import torch
from torch.utils.data import DataLoader

class Repeat:
    def __init__(self, sampler):
        self.sampler = sampler
    def __iter__(self):
        while True:
            yield from iter(self.sampler)

class Endless(DataLoader):
    def __init__(self, *args):
        super().__init__(*args)
        object.__setattr__(self, "batch_sampler", Repeat(self.batch_sampler))
        self.iterator = super().__iter__()
    def __len__(self):
        return len(self.batch_sampler.sampler)
    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)

net = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
train, valid = Endless([torch.ones(512)] * 64, 32), Endless([torch.ones(512)] * 1024, 512)
for epoch in range(9):
    net.train()
    for x in train:
        net(x.cuda()).square().mean().backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        taken = [net(x.cuda()) for x in valid]
    assert taken
"""


def test_data_loaders_that_go_on_reading_over_epochs_end_them(program) -> None:
    found = rehearse([sys.executable, program(ENDLESS)])
    assert found.budget.peak.phase == "evaluation"
    assert found.warnings == ()


def test_a_program_that_never_expects_the_end_of_its_data_did_not_fail(program) -> None:
    text = """
import torch
from torch.utils.data import DataLoader
net = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
def batches():
    for x in DataLoader([torch.ones(64)] * 4000, 4):
        yield x.cuda()
given = batches()
while True:
    net(next(given)).sum().backward()
    optimizer.step()
"""
    assert not rehearse([sys.executable, program(text)]).warnings


SHARDED = """
import os, torch, torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
net = FSDP(torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Linear(512, 8)).cuda(), use_orig_params=True)
optimizer = torch.optim.AdamW(net.parameters())
for step in range(3):
    net(torch.randn(4, 512).cuda()).sum().backward()
    optimizer.step()
    torch.save(FSDP.optim_state_dict(net, optimizer), "last.pt")
"""


def test_fsdp1_saves_a_state_of_which_other_ranks_hold_parts(program) -> None:
    found = torchrun(f"--nproc-per-node 4 {program(SHARDED)}")
    assert found.answer.steps[0].steps == 3
    assert any("gathers states of the optimizer that other ranks hold" in each for each in found.answer.doubts)


@pytest.mark.slow
def test_memory_that_stays_after_each_epoch_is_told(program) -> None:
    text = OWN_LOOP.replace("STEPS", "5").replace("KEPT", "net(torch.randn(1024, 256, device=dev)).square().mean()LOSS")
    growing = rehearse([sys.executable, program(text.replace("LOSS", "")), "cuda"], gpu=find_gpu("4090"))
    (warning,) = growing.warnings
    assert warning.startswith("6 MiB more stay allocated after each evaluation or checkpoint (")
    assert "24.0 GiB are full after about 3,9" in warning
    assert not rehearse([sys.executable, program(text.replace("LOSS", ".item()")), "cuda"]).warnings


@pytest.mark.slow
def test_evaluation_in_training_mode_and_with_gradients_counts_all_of_its_batches(program) -> None:
    text = """
import sys, torch
from torch.utils.data import DataLoader
dev = sys.argv[1]
net = torch.nn.Sequential(torch.nn.Linear(64, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512)).to(dev)
optimizer = torch.optim.Adam(net.parameters())
item = (torch.ones(64),)
for epoch in range(2):
    for (x,) in DataLoader([item] * 640, 64):
        optimizer.zero_grad()
        net(x.to(dev)).square().mean().backward()
        optimizer.step()
    total = 0
    for (x,) in DataLoader([item] * 12800, 640):
        total += net(x.to(dev)).square().mean()
    total = total.item()
"""
    found = rehearse_beside_cpu(program(text), rel=0.02)
    assert found.budget.peak.phase == "evaluation"
    (warning,) = found.warnings
    assert warning.endswith("counted for all batches.")


def test_a_data_loader_has_one_process(program) -> None:
    name = program("""
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info
class Items(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        assert get_worker_info().num_workers == 1
        return torch.ones(8)
net = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for batch in DataLoader(Items(), 8, num_workers=16, prefetch_factor=4):
    net(batch.cuda()).sum().backward()
    optimizer.step()
""")
    assert rehearse([sys.executable, name]).answer.parameters == 72
