"""FSDP, DeepSpeed and plugins of accelerate in scripts: what is gathered at once, what is sharded, and the dtypes."""

from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.budget import Budget
from vramtop.estimator.estimation import estimate
from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import JobReading

HEAD = """import functools, torch
from accelerate import *
from transformers import AutoModelForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer
from torch.distributed.fsdp import *
from torch.distributed.fsdp.wrap import *
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", dtype=torch.DTYPE)
"""
LOOP = "opt = torch.optim.AdamW(model.parameters())\nfor b in loader:\n    model(b).loss.backward()\n    opt.step()\n"
BY_LAYER = "functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Qwen2DecoderLayer})"
BLOCKS = "for layer in model.model.layers:\n    fully_shard(layer, **kw)\nfully_shard(model, **kw)\n"
RANKS = {"RANK": "0", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}


def read(folder: Path, lines: str, *, dtype: str = "bfloat16") -> JobReading:
    (folder / "train.py").write_text(f"{HEAD.replace('DTYPE', dtype)}{lines}\n{LOOP}")
    versions = {"transformers": "5.23.0", "torch": "2.13.0"}
    return read_launch(["python", "train.py"], environ=RANKS, cwd=folder, versions=versions)


def values(reading: JobReading, *keys: str) -> tuple[Any, ...]:
    return tuple(reading.value(f"parallel.{key}") for key in keys)


def unsure(reading: JobReading) -> set[tuple[str, str]]:
    return {(each.component, each.direction) for each in reading.uncertainties}


@pytest.mark.parametrize(
    ("lines", "units"),
    [
        ("model = FSDP(model)", "model"),
        (f"model = FSDP(model, auto_wrap_policy={BY_LAYER})", "blocks"),
        ("model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Qwen2DecoderLayer}))", "blocks"),
        ("fully_shard(model)", "model"),
        (f"kw = {{}}\n{BLOCKS}", "blocks"),
        ("acc = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())", "model"),
        (
            "acc = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(auto_wrap_policy='transformer_based_wrap'))",
            None,
        ),
    ],
)
def test_what_is_gathered_at_once(tmp_path: Path, lines: str, units: str | None) -> None:
    reading = read(tmp_path, lines)
    assert values(reading, "fsdp_units", "data_shard") == (units, 8)
    assert (reading.warnings, reading.uncertainties) == ((), ())


def test_units_by_size_and_by_class(tmp_path: Path) -> None:
    by_size = "model = FSDP(model, auto_wrap_policy=functools.partial(size_based_auto_wrap_policy, min_num_params=1e6))"
    reading = read(tmp_path, by_size)
    assert values(reading, "fsdp_units", "fsdp_min_unit_parameters") == (None, 1_000_000)
    assert reading.warnings == ()
    reading = read(tmp_path, "model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear}))")
    assert values(reading, "fsdp_units", "fsdp_wrap_classes") == (None, ["Linear"])
    assert reading.warnings == ()


@pytest.mark.parametrize(
    "lines",
    [
        "model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({LlamaDecoderLayer}))",
        "for layer in model.model.layers[choose():]:\n    fully_shard(layer)\nfully_shard(model)",
        "for layer in model.model.layers[:4]:\n    fully_shard(layer)\nfully_shard(model)",
    ],
)
def test_units_that_are_not_known_are_counted_as_the_whole_model(tmp_path: Path, lines: str) -> None:
    reading = read(tmp_path, lines)
    assert values(reading, "fsdp_units", "data_shard") == ("model", 8)
    assert unsure(reading) == {("communication", "less")}
    assert reading.warnings


@pytest.mark.parametrize(
    ("argument", "found"),
    [
        ("sharding_strategy=ShardingStrategy.SHARD_GRAD_OP", ("fsdp1", "grad_op", 8)),
        ("sharding_strategy=ShardingStrategy.HYBRID_SHARD", ("fsdp1", "hybrid", 8)),
        ("sharding_strategy=ShardingStrategy.NO_SHARD", ("fsdp1", "none", None)),
    ],
)
def test_sharding_strategies(tmp_path: Path, argument: str, found: tuple[Any, ...]) -> None:
    reading = read(tmp_path, f"model = FSDP(model, {argument})")
    assert values(reading, "strategy", "sharding", "data_shard") == found
    assert reading.warnings == ()


@pytest.mark.parametrize(
    "lines",
    [
        "model = FSDP(model, sharding_strategy=choose())",
        "model = FSDP(model, ignored_modules=[model.model.embed_tokens])",
        "for layer in model.model.layers:\n    fully_shard(layer)",
        "fully_shard(model, mesh=make())",
    ],
)
def test_where_it_is_not_known_what_is_sharded_nothing_is_counted_so(tmp_path: Path, lines: str) -> None:
    reading = read(tmp_path, lines)
    assert values(reading, "strategy", "sharding", "data_replicate") == ("fsdp1", "none", 8)
    assert unsure(reading) == {("weights", "less"), ("gradients", "less"), ("optimizer", "less")}
    assert reading.warnings


@pytest.mark.parametrize(
    ("argument", "dtype", "found"),
    [
        ("", "bfloat16", ("bf16", "bf16")),
        ("", "float32", ("fp32", "fp32")),
        ("mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32)", "bfloat16", ("bf16", "fp32")),
        ("mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)", "float32", ("bf16-mixed", "bf16")),
    ],
)
def test_sharded_weights_keep_their_dtype(tmp_path: Path, argument: str, dtype: str, found: tuple[str, str]) -> None:
    reading = read(tmp_path, f"fully_shard(model, {argument})", dtype=dtype)
    assert (reading.value("training.precision"), reading.value("parallel.reduce_dtype")) == found
    assert reading.warnings == ()


@pytest.mark.parametrize(
    ("lines", "offload"),
    [
        ("FSDP(model, cpu_offload=CPUOffload(offload_params=True))", "all"),
        ("FSDP(model, cpu_offload=CPUOffload(offload_params=False))", None),
        ("fully_shard(model, offload_policy=CPUOffloadPolicy())", "all"),
        ("fully_shard(model, offload_policy=OffloadPolicy())", None),
    ],
)
def test_offloading(tmp_path: Path, lines: str, offload: str | None) -> None:
    assert values(read(tmp_path, lines), "cpu_offload") == (offload,)


def test_a_mesh_of_two_dimensions_and_parallelism_config(tmp_path: Path) -> None:
    mesh = "mesh = init_device_mesh('cuda', (2, 4), mesh_dim_names=('replicate', 'shard'))\nkw = dict(mesh=mesh)\n"
    config = "acc = Accelerator(parallelism_config=ParallelismConfig(dp_replicate_size=2, dp_shard_size=4))"
    for lines in (mesh + BLOCKS, config):
        reading = read(tmp_path, lines)
        assert values(reading, "strategy", "data_replicate", "data_shard") == ("fsdp2", 2, 4)


def test_a_sharded_teacher_shards_no_student(tmp_path: Path) -> None:
    lines = 'teacher = AutoModelForCausalLM.from_pretrained("gpt2")\nteacher = FSDP(teacher)\nmodel = DDP(model)'
    assert values(read(tmp_path, lines), "strategy", "data_replicate") == ("ddp", 8)


def test_plugins_of_accelerate(tmp_path: Path) -> None:
    plugin = "DeepSpeedPlugin(zero_stage=3, offload_optimizer_device='cpu', gradient_accumulation_steps=4)"
    reading = read(tmp_path, f"acc = Accelerator(deepspeed_plugin={plugin})")
    assert values(reading, "strategy", "cpu_offload") == ("zero3", "optimizer")
    assert reading.value("training.gradient_accumulation") == 4
    plugin = "FullyShardedDataParallelPlugin(fsdp_version=2, cpu_offload=True, auto_wrap_policy=choose())"
    reading = read(tmp_path, f"acc = Accelerator(fsdp_plugin={plugin})")
    assert values(reading, "strategy", "cpu_offload", "fsdp_units") == ("fsdp2", "all", "model")
    assert unsure(reading) == {("communication", "less")}
    assert read(tmp_path, f"acc = Accelerator(fsdp_plugin={plugin.replace('=True', '=choose()')})").warnings


def test_deepspeed_in_an_own_loop(tmp_path: Path) -> None:
    config = "{'zero_optimization': {'stage': 2, 'offload_optimizer': {'device': 'cpu'}}, 'bf16': {'enabled': True}}"
    made = "deepspeed.initialize(model=model, model_parameters=model.parameters(), config=C)"
    lines = f"import deepspeed\nmodel, _, _, _ = {made}"
    reading = read(tmp_path, lines.replace("C)", f"{config})"))
    assert values(reading, "strategy", "cpu_offload") == ("zero2", "optimizer")
    assert reading.value("training.precision") == "bf16-mixed"
    assert ("weights", "either") in unsure(read(tmp_path, lines.replace("C)", "choose())")))


def test_the_range_of_other_units_covers_blocks_and_the_whole_model(tmp_path: Path) -> None:
    rest = {"training.micro_batch": 1, "training.sequence_length": 1024}

    def budget(lines: str) -> Budget:
        return estimate(read(tmp_path, lines).job(rest))

    other = budget("model = FSDP(model, auto_wrap_policy=choose())").peak
    for lines in ("model = FSDP(model)", f"model = FSDP(model, auto_wrap_policy={BY_LAYER})"):
        assert other.low_bytes <= budget(lines).peak.device_bytes <= other.high_bytes


def test_accumulation_in_an_own_loop_may_reduce_at_every_step(tmp_path: Path) -> None:
    loop = (
        "for i, b in enumerate(loader):\n    model(b).loss.backward()\n    if (i + 1) % 8 == 0:\n        opt.step()\n"
    )
    (tmp_path / "train.py").write_text(
        f"{HEAD.replace('DTYPE', 'bfloat16')}fully_shard(model)\nopt = torch.optim.AdamW(model.parameters())\n{loop}"
    )
    reading = read_launch(["python", "train.py"], environ=RANKS, cwd=tmp_path)
    assert reading.value("training.gradient_accumulation") == 8
    assert unsure(reading) == {("gradients", "less")}
    assert reading.warnings


def test_megatron_fsdp_in_a_script_is_not_torchs(tmp_path: Path) -> None:
    call = (
        "from megatron_fsdp import fully_shard_model, MixedPrecisionPolicy\n"
        "model = fully_shard_model(model, zero_dp_strategy='optim_grads', outer_dp_sharding_strategy='no_shard',\n"
        "    fsdp_unit_modules=[Qwen2DecoderLayer], nccl_ub=True, keep_fp8_transpose_cache=True,\n"
        "    mixed_precision_policy=MixedPrecisionPolicy(main_params_dtype=None))"
    )
    reading = read(tmp_path, call)
    keys = ("strategy", "sharding", "data_shard", "double_buffer", "main_weights")
    assert values(reading, *keys) == ("megatron-fsdp", "optim_grads", 8, True, False)
    assert ("weights", "more") in unsure(reading)


def test_megatron_fsdp_without_unit_modules_gathers_the_whole_model(tmp_path: Path) -> None:
    reading = read(tmp_path, "model = fully_shard(model, zero_dp_strategy=3, init_model_with_meta_device=True)")
    keys = ("strategy", "sharding", "fsdp_units", "main_weights")
    assert values(reading, *keys) == ("megatron-fsdp", "optim_grads_params", "model", True)


def test_ddps_gradients_as_views_of_its_buckets_are_read(tmp_path: Path) -> None:
    reading = read(tmp_path, "model = DDP(model, gradient_as_bucket_view=True)")
    assert values(reading, "strategy", "gradient_as_bucket_view") == ("ddp", True)


REPLICAS = """import torch
from accelerate import *
from torch.nn.parallel import DistributedDataParallel as DDP
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", dtype=torch.bfloat16)
LINES
optimizer = torch.optim.AdamW(model.parameters())
optimizer.step()
"""


@pytest.mark.parametrize(
    ("lines", "views", "doubts"),
    [
        ("model = DDP(model, gradient_as_bucket_view=True, bucket_cap_mb=100, static_graph=True)", True, set()),
        ("model = DDP(model, gradient_as_bucket_view=find())", None, {("communication", "less")}),
        ("model = DDP(model, **find())", None, {("communication", "less")}),
        ("model = DDP(model)\nmodel.register_comm_hook(None, hook)", None, {("communication", "more")}),
        (
            "a = Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)])",
            True,
            set(),
        ),
        (
            "k = DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.NO, find_unused_parameters=True)\n"
            "a = Accelerator(kwargs_handlers=[k])",
            None,
            set(),
        ),
        (
            "a = Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(comm_hook='fp16')])",
            None,
            {("communication", "more")},
        ),
        ("a = Accelerator(kwargs_handlers=find())", None, {("communication", "less")}),
        ("a = Accelerator(kwargs_handlers=[AutocastKwargs(enabled=False)])", None, {("activations", "either")}),
    ],
)
def test_arguments_of_ddp(tmp_path: Path, lines: str, views: bool | None, doubts: set[tuple[str, str]]) -> None:
    (tmp_path / "train.py").write_text(REPLICAS.replace("LINES", lines))
    reading = read_launch(["python", "train.py"], environ=RANKS, cwd=tmp_path, versions={"transformers": "5.23.0"})
    assert values(reading, "strategy", "gradient_as_bucket_view") == ("ddp", views)
    assert doubts <= unsure(reading)
    assert bool(doubts) == any(component in ("communication", "activations") for component, _ in unsure(reading))
