"""FSDP, DeepSpeed and plugins of accelerate in scripts: what is gathered at once, what is sharded, and the dtypes."""

from pathlib import Path
from typing import Any

import pytest
from reading import read_script

from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import JobReading

HEAD = """import functools, torch
from accelerate import *
from transformers import AutoModelForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer
from torch.distributed.fsdp import *
from torch.distributed.fsdp.wrap import *
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", dtype=torch.bfloat16)
"""
LOOP = "opt = torch.optim.AdamW(model.parameters())\nfor b in loader:\n    model(b).loss.backward()\n    opt.step()\n"
BY_LAYER = "functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Qwen2DecoderLayer})"
BLOCKS = "for layer in model.model.layers:\n    fully_shard(layer, **kw)\nfully_shard(model, **kw)\n"
VERSIONS = {"transformers": "5.23.0", "torch": "2.13.0"}
RANKS = {"RANK": "0", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}


def read(folder: Path, lines: str) -> JobReading:
    text = f"{HEAD}{lines}\n{LOOP}"
    return read_script(folder, text, environ=RANKS, versions=VERSIONS, given={"training.keep_outputs": True})


def values(reading: JobReading, *keys: str) -> tuple[Any, ...]:
    return tuple(reading.value(f"parallel.{key}") for key in keys)


def unsure(reading: JobReading) -> set[tuple[str, str]]:
    return {(each.component, each.direction) for each in reading.uncertainties}


@pytest.mark.parametrize(
    "lines",
    [
        "model = FSDP(model)",
        f"model = FSDP(model, auto_wrap_policy={BY_LAYER}, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)",
        f"kw = {{}}\n{BLOCKS}",
        "for layer in model.model.layers:\n    fully_shard(layer)",
        "fully_shard(model, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))",
        "fully_shard(model, mesh=make())",
        "model = fully_shard(model, zero_dp_strategy=3, init_model_with_meta_device=True)",
        "model = parallelize_module(model, mesh, plan)",
    ],
)
def test_sharding_by_a_script_itself_is_not_known(tmp_path: Path, lines: str) -> None:
    reading = read(tmp_path, lines)
    assert reading.missing == ("training.micro_batch", "training.sequence_length", "parallel.strategy")
    assert any("how the model is sharded is not known" in each for each in reading.left_open)
    assert ("weights", "either") in unsure(reading)
    assert {each.unless for each in reading.uncertainties} == {None}  # the strategy alone leaves units and dtypes open
    assert values(reading, "data_shard") == (8,)


@pytest.mark.parametrize(
    "plugin",
    [
        "fsdp_plugin=FullyShardedDataParallelPlugin()",
        "deepspeed_plugin=DeepSpeedPlugin(zero_stage=3)",
        "parallelism_config=ParallelismConfig(dp_shard_size=8)",
    ],
)
def test_what_plugins_of_accelerate_shard_is_not_read(tmp_path: Path, plugin: str) -> None:
    reading = read(tmp_path, f"acc = Accelerator({plugin})")
    assert any("is not read." in each for each in reading.warnings)
    assert ("weights", "either") in unsure(reading)


def test_deepspeed_in_an_own_loop(tmp_path: Path) -> None:
    config = "{'zero_optimization': {'stage': 2, 'offload_optimizer': {'device': 'cpu'}}, 'bf16': {'enabled': True}}"
    made = "deepspeed.initialize(model=model, model_parameters=model.parameters(), config=C)"
    lines = f"import deepspeed\nmodel, _, _, _ = {made}"
    reading = read(tmp_path, lines.replace("C)", f"{config})"))
    assert values(reading, "strategy", "cpu_offload") == ("zero2", "optimizer")
    assert reading.value("training.precision") == "bf16-mixed"
    assert ("weights", "either") in unsure(read(tmp_path, lines.replace("C)", "choose())")))
    unknown = read(tmp_path, lines.replace("C)", f"{config})").replace("model=model", "model=choose()"))
    assert any("the model that deepspeed.initialize(...) trains is not known" in each for each in unknown.warnings)


@pytest.mark.parametrize(
    ("batches", "steps"),
    [
        ("'gradient_accumulation_steps': 2", 2),
        ("'train_batch_size': 64, 'train_micro_batch_size_per_gpu': 2", 4),
        ("'train_micro_batch_size_per_gpu': 1", 1),
        ("'gradient_accumulation_steps': options.gradient_accumulation_steps", 16),
    ],
)
def test_an_engine_accumulates_what_its_own_configuration_says(tmp_path: Path, batches: str, steps: int) -> None:
    lines = f"""import argparse, deepspeed
parser = argparse.ArgumentParser()
parser.add_argument("--gradient_accumulation_steps", type=int, default=16)
options = parser.parse_args()
config = {{{batches}, "zero_optimization": {{"stage": 2}}}}
model, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)"""
    assert read(tmp_path, lines).value("training.gradient_accumulation") == steps


REPLICAS = """import torch
from accelerate import *
from torch.nn.parallel import DistributedDataParallel as DDP
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", dtype=torch.bfloat16)
LINES
optimizer = torch.optim.AdamW(model.parameters())
model(x).loss.backward()
optimizer.step()
"""


@pytest.mark.parametrize(
    ("lines", "views", "is_open"),
    [
        ("model = DDP(model, gradient_as_bucket_view=True, bucket_cap_mb=100, static_graph=True)", True, False),
        ("model = DDP(model, gradient_as_bucket_view=find())", None, True),
        ("model = DDP(model, **find())", None, True),
        ("model = DDP(model)\nmodel.register_comm_hook(None, hook)", None, True),
        ("a = Accelerator(kwargs_handlers=[AutocastKwargs(enabled=False)])", None, True),
        ("a = Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(static_graph=True)])", None, False),
        ("a = Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(**find())])", None, True),
    ],
)
def test_arguments_of_ddp(tmp_path: Path, lines: str, views: bool | None, is_open: bool) -> None:
    (tmp_path / "train.py").write_text(REPLICAS.replace("LINES", lines))
    reading = read_launch(["python", "train.py"], environ=RANKS, cwd=tmp_path, versions={"transformers": "5.23.0"})
    assert values(reading, "strategy", "gradient_as_bucket_view") == ("ddp", views)
    assert any(component == "communication" for component, _ in unsure(reading)) is is_open
