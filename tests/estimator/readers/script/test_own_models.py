"""Scripts that build a decoder of torch's layers and execute configuration files over their own names."""

import pickle
import shlex
from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job
from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import JobReading

MODEL = """
import inspect
from dataclasses import dataclass
import torch
import torch.nn as nn
from torch.nn import functional as F

class Norm(nn.Module):
    def __init__(self, size, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size)) if bias else None

class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c_attn = nn.Linear(c.n_embd, 3 * c.n_embd, bias=c.bias)
        self.c_proj = nn.Linear(c.n_embd, c.n_embd, bias=c.bias)
        self.flash = hasattr(torch.nn.functional, "scaled_dot_product_attention")
        if not self.flash:
            self.register_buffer("mask", torch.tril(torch.ones(c.block_size, c.block_size)))

class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c_fc = nn.Linear(c.n_embd, 4 * c.n_embd, bias=c.bias)
        self.c_proj = nn.Linear(4 * c.n_embd, c.n_embd, bias=c.bias)

class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln_1 = Norm(c.n_embd, c.bias)
        self.attn = Attention(c)
        self.ln_2 = Norm(c.n_embd, c.bias)
        self.mlp = MLP(c)
        # EXTRA

    def forward(self, x):
        return x + self.mlp(self.ln_2(x + self.attn(self.ln_1(x))))

@dataclass
class Sizes:
    block_size: int = 64
    vocab_size: int = 512
    n_layer: int = 3
    n_head: int = 2
    n_embd: int = 32
    dropout: float = 0.0
    bias: bool = True

class Decoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.config = c
        self.body = nn.ModuleDict(dict(
            wte=nn.Embedding(c.vocab_size, c.n_embd),
            wpe=nn.Embedding(c.block_size, c.n_embd),
            h=nn.ModuleList([Block(c) for _ in range(c.n_layer)]),
            ln_f=Norm(c.n_embd, bias=c.bias),
        ))
        self.lm_head = nn.Linear(c.n_embd, c.vocab_size, bias=False)
        self.body.wte.weight = self.lm_head.weight

    def forward(self, ids, targets=None):
        x = self.body.wte(ids)
        for block in self.body.h:
            x = block(x)
        return F.cross_entropy(self.lm_head(x), targets)

    @classmethod
    def from_pretrained(cls, name):
        sizes = {"small": dict(n_layer=2, n_head=2, n_embd=64), "large": dict(n_layer=4, n_head=4, n_embd=128)}[name]
        return Decoder(Sizes(**sizes))

    def make_optimizer(self, device):
        named = {name: p for name, p in self.named_parameters() if p.requires_grad}
        groups = [
            {"params": [p for p in named.values() if p.dim() >= 2], "weight_decay": 0.1},
            {"params": [p for p in named.values() if p.dim() < 2], "weight_decay": 0.0},
        ]
        has_fused = "fused" in inspect.signature(torch.optim.AdamW).parameters
        more = dict(fused=True) if has_fused and device == "cuda" else {}
        return torch.optim.AdamW(groups, lr=1e-3, **more)
"""
TRAIN = """
import os, pickle
from contextlib import nullcontext
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from model import Decoder, Sizes

init_from = 'scratch'
dataset = 'letters'
gradient_accumulation_steps = 8
batch_size = 6
block_size = 48
n_layer = 3
n_embd = 32
bias = False
device = 'cuda'
dtype = 'bfloat16' if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else 'float16'
compile = True
names = [k for k, v in globals().items() if not k.startswith('_') and isinstance(v, (int, float, bool, str))]
exec(open('settings.py').read())
config = {k: globals()[k] for k in names}
ddp = int(os.environ.get('RANK', -1)) != -1
if ddp:
    local = int(os.environ['LOCAL_RANK'])
    device = f'cuda:{local}'
    gradient_accumulation_steps //= int(os.environ['WORLD_SIZE'])
kind = 'cuda' if 'cuda' in device else 'cpu'
ctx = torch.amp.autocast(device_type=kind, dtype={'bfloat16': torch.bfloat16, 'float16': torch.float16}[dtype])
found = None
path = os.path.join('data', dataset, 'meta.pkl')
if os.path.exists(path):
    with open(path, 'rb') as f:
        found = pickle.load(f)['vocab_size']
arguments = dict(n_layer=n_layer, n_embd=n_embd, block_size=block_size, bias=bias, vocab_size=None)
if init_from == 'scratch':
    arguments['vocab_size'] = found if found is not None else 512
    model = Decoder(Sizes(**arguments))
elif init_from == 'resume':
    checkpoint = torch.load('out/ckpt.pt')
    for k in ['n_layer', 'n_embd']:
        arguments[k] = checkpoint['arguments'][k]
    arguments['vocab_size'] = checkpoint['arguments']['vocab_size']
    model = Decoder(Sizes(**arguments))
else:
    model = Decoder.from_pretrained(init_from)
model.to(device)
optimizer = model.make_optimizer(kind)
if compile:
    model = torch.compile(model)
if ddp:
    model = DDP(model, device_ids=[local])
while True:
    for micro_step in range(gradient_accumulation_steps):
        with ctx:
            loss = model(x, y)
        loss.backward()
    optimizer.step()
"""
SETTINGS = """
import sys
from ast import literal_eval
for arg in sys.argv[1:]:
    if '=' not in arg:
        with open(arg) as f:
            print(f.read())
        exec(open(arg).read())
    else:
        key, val = arg.split('=')
        key = key[2:]
        if key in globals():
            try:
                attempt = literal_eval(val)
            except (SyntaxError, ValueError):
                attempt = val
            globals()[key] = attempt
        else:
            raise ValueError(key)
"""


def count(*, layers: int = 3, hidden: int = 32, vocabulary: int = 512, positions: int = 48, bias: bool = False) -> int:
    block = 12 * hidden * hidden + 2 * hidden + (11 * hidden if bias else 0)
    return vocabulary * hidden + positions * hidden + layers * block + hidden + (hidden if bias else 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "settings.py").write_text(SETTINGS)
    (tmp_path / "config").mkdir()
    (tmp_path / "data" / "letters").mkdir(parents=True)
    (tmp_path / "data" / "letters" / "train.bin").write_bytes(b"data")
    return tmp_path


def read(folder: Path, line: str = "python train.py") -> JobReading:
    return read_launch(shlex.split(line), environ={}, cwd=folder)


def parameters(job: Job) -> tuple[int, int]:
    model = estimate(job, method="formula").model
    return model.parameters, model.trainable_parameters


def values(reading: JobReading, *keys: str) -> tuple[Any, ...]:
    return tuple(reading.value(f"training.{key}") for key in keys)


def test_the_model_and_the_loop_are_read(folder: Path) -> None:
    reading = read(folder)
    assert values(reading, "micro_batch", "sequence_length", "gradient_accumulation") == (6, 48, 8)
    assert values(reading, "precision", "optimizer", "compile") == ("bf16-mixed", "adamw-fused", True)
    assert (reading.missing, reading.warnings) == ((), ())
    assert parameters(reading.job()) == (count(), count())
    assert reading.value("model.config")["num_attention_heads"] == 2


def test_a_file_and_the_command_line_override_names(folder: Path) -> None:
    (folder / "config" / "tiny.py").write_text("n_layer = 5\nbatch_size = 9  # more\nbias = True\nblock_size = 64\n")
    reading = read(folder, "python train.py config/tiny.py --batch_size=4 --dtype=float16 --compile=False")
    assert values(reading, "micro_batch", "sequence_length", "precision", "compile") == (4, 64, "fp16-mixed", None)
    assert parameters(reading.job())[0] == count(layers=5, positions=64, bias=True)
    assert reading.evidence()["training.micro_batch"] == "--batch_size on the command line"
    from_file = read(folder, "python train.py config/tiny.py").evidence()
    assert from_file["training.micro_batch"] == "tiny.py line 2: batch_size = 9"
    assert from_file["training.sequence_length"] == "tiny.py line 4: block_size = 64"


def test_ranks_divide_the_accumulation(folder: Path) -> None:
    reading = read(folder, "torchrun --standalone --nproc_per_node=4 train.py --gradient_accumulation_steps=12")
    assert reading.value("training.gradient_accumulation") == 3
    assert (reading.value("parallel.strategy"), reading.value("parallel.data_replicate")) == ("ddp", 4)
    assert parameters(reading.job())[0] == count()


def test_a_size_in_a_pickled_table_is_found_without_unpickling(folder: Path) -> None:
    table = {"vocab_size": 65, "itos": {1: "a"}, "stoi": {"a": 1}}
    for protocol in range(6):
        (folder / "data" / "letters" / "meta.pkl").write_bytes(pickle.dumps(table, protocol))
        assert parameters(read(folder).job())[0] == count(vocabulary=65)


def test_nothing_in_a_pickle_runs(folder: Path) -> None:
    class Hostile:
        def __reduce__(self) -> Any:
            return (Path.touch, (folder / "ran",))

    for data in (pickle.dumps(Hostile()), b"\x80\x04cos\nsystem\n", b"I" + b"9" * 10**6 + b"\n.", b"\xff" * 100):
        (folder / "data" / "letters" / "meta.pkl").write_bytes(data)
        assert read(folder).job().unsure.weights == "either"
    assert not (folder / "ran").exists()


def test_data_that_is_not_prepared_yet_leaves_the_vocabulary_in_doubt(folder: Path) -> None:
    (folder / "data" / "letters" / "train.bin").unlink()
    reading = read(folder)
    assert parameters(reading.job())[0] == count()
    assert any("meta.pkl does not exist yet" in warning for warning in reading.warnings)
    assert reading.job().unsure.logits == "less"


def test_pretrained_sizes_and_checkpoints(folder: Path) -> None:
    large = read(folder, "python train.py --init_from=large").job()
    assert parameters(large)[0] == count(layers=4, hidden=128, positions=64, bias=True)
    resumed = read(folder, "python train.py --init_from=resume")
    assert "model.id" in resumed.missing
    assert any("give model.config" in warning for warning in resumed.warnings)


def test_a_child_with_other_parts_is_doubted(folder: Path) -> None:
    more = MODEL.replace("# EXTRA", "self.adapter = nn.Linear(c.n_embd, 5 * c.n_embd)")
    (folder / "model.py").write_text(more)
    reading = read(folder)
    assert any("is counted as a decoder of" in warning for warning in reading.warnings)
    assert reading.job().unsure.weights == "either"
    (folder / "model.py").write_text(MODEL.replace("nn.Linear(c.n_embd, 4 * c.n_embd, bias=c.bias)", "make(c)"))
    unknown = read(folder)
    assert "model.id" in unknown.missing
    assert unknown.job().unsure.weights == "either"


def test_an_untied_head_and_rotary_positions(folder: Path) -> None:
    changed = MODEL.replace("        self.body.wte.weight = self.lm_head.weight\n", "")
    changed = changed.replace("            wpe=nn.Embedding(c.block_size, c.n_embd),\n", "")
    (folder / "model.py").write_text(changed)
    assert parameters(read(folder).job())[0] == count(vocabulary=2 * 512, positions=0)


def test_a_gated_mlp_with_fewer_key_value_heads(folder: Path) -> None:
    changed = MODEL.replace("3 * c.n_embd", "2 * c.n_embd")
    changed = changed.replace("# EXTRA", "self.mlp.gate = nn.Linear(c.n_embd, 4 * c.n_embd, bias=c.bias)")
    (folder / "model.py").write_text(changed.replace("wpe=nn.Embedding(c.block_size, c.n_embd),", ""))
    config = read(folder).value("model.config")
    assert (config["model_type"], config["num_key_value_heads"], config["intermediate_size"]) == ("llama", 1, 128)


def test_files_elsewhere_are_not_followed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "c.py"
    elsewhere.write_text("batch_size = 3\n")
    reading = read(folder, f"python train.py {elsewhere}")
    assert reading.value("training.micro_batch") == 6
    assert any("may change any setting" in warning for warning in reading.warnings)


def test_part_in_16_bits(folder: Path) -> None:
    (folder / "train.py").write_text(TRAIN.replace("model.to(device)", "model.to(device).bfloat16()"))
    assert read(folder).value("training.precision") == "bf16"
    (folder / "train.py").write_text(TRAIN.replace("model.to(device)", "model.lm_head.bfloat16()"))
    part = read(folder)
    assert part.value("training.precision") == "bf16-mixed"
    assert part.job().unsure.weights == "less"


def test_frozen_parts_are_not_trained(folder: Path) -> None:
    frozen = "for p in model.body.wpe.parameters():\n    p.requires_grad = False\noptimizer ="
    (folder / "train.py").write_text(TRAIN.replace("optimizer =", frozen, 1))
    assert parameters(read(folder).job()) == (count(), count() - 48 * 32)


def test_a_module_of_the_folder_is_read_by_its_name(folder: Path) -> None:
    reading = read(folder, "python -m train --n_layer=2")
    assert parameters(reading.job())[0] == count(layers=2)
