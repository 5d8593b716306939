"""Scripts of text models: the Trainer's, a loop of torch's own where layers are split over GPUs, and inference.

Transformers splits only what it loads from a checkpoint, so that a model with random weights is split by torch's
``parallelize_module``, with the plan of transformers' ``base_model_tp_plan`` for these models.
"""

from collections.abc import Collection, Iterator
from typing import Any

from ..job.job import Job
from ..job.resolved_job import ResolvedJob, resolve_job
from ..job.rules.dtype_widths import BITSANDBYTES
from ..model.find_config import ResolvedModel
from ..model.read_architecture import read_architecture
from .training_script import TEXT_TASKS, How, TrainerScript, image_shape, refuse, require_expressible

_SPLIT = frozenset(
    ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "granite", "smollm3", "seed_oss")
)
"""Families of models whose layers have the names of this plan, and nothing that it leaves whole and a rank cannot."""
_COLUMNS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
_ROWS = ("self_attn.o_proj", "mlp.down_proj")
_TENSOR = "torch.distributed.tensor"


def training_script(
    job: Job,
    model: ResolvedModel,
    *,
    how: How = How(),  # noqa: B008 - frozen
) -> str:
    """Return the script.

    Args:
        job: the job, with what it leaves to its framework.
        model: its config.
        how: choices of how it is written and run.

    Raises:
        CannotTellError: no such script stands for the job; the sentence names the setting.
    """
    resolved = resolve_job(job)
    if not resolved.trains:
        return _InferenceScript(resolved, model, how).text()
    splits = resolved.parallel.tensor > 1
    require_expressible(resolved, ("causal-lm",) if splits else _tasks(model), splits_layers=splits)
    return (_SplitScript if splits else TrainerScript)(resolved, model, how).text()


def _tasks(model: ResolvedModel) -> list[str]:
    """Return the tasks whose batches a script can make for a model."""
    return [each for each in TEXT_TASKS if each != "audio-classification" or "num_mel_bins" not in model.config]


class _InferenceScript(TrainerScript):
    """A script that generates text, or runs a model of another task on a batch; nothing is trained."""

    def __init__(self, job: ResolvedJob, model: ResolvedModel, how: How) -> None:
        refuse(_not_run(job, _tasks(model)))
        super().__init__(job, model, how)
        self._imports = {"torch", "transformers.AutoConfig"}

    def _data(self) -> Iterator[str]:
        model, training = self._job.model, self._job.training
        size, length = training.micro_batch, training.sequence_length
        comment = self._comment("training.micro_batch")
        dtype = f", dtype={self._compute()}" if self._job.precision.half_weights else ""
        yield f'device = torch.device("{"cpu" if self._how.on_cpu else "cuda"}")'
        if model.task == "image-classification":
            shape = ", ".join(map(str, (size, *image_shape(self._model.config))))
            yield f"batch = torch.rand({shape}, device=device{dtype}){comment}"
        elif model.task == "audio-classification":
            yield f"batch = torch.randn({size}, {length}, device=device{dtype}){comment}"
        else:
            choices = "4, " if model.task == "multiple-choice" else ""
            largest = "config.get_text_config().vocab_size" if self._model.code is None else "3"
            yield f"batch = torch.randint(2, {largest}, ({size}, {choices}{length}), device=device){comment}"

    def _settings(self) -> Iterator[str]:
        yield from ()

    def _training(self) -> Iterator[str]:
        """Yield the inference: the longest prompts, of which most is held."""
        yield "model.to(device).eval()"
        yield f"for _ in range({self._how.steps}):"
        if self._job.model.task == "causal-lm":
            yield "    mask = torch.ones_like(batch)  # prompts of the longest sequences, without padding"
            yield "    model.generate(batch, attention_mask=mask, max_new_tokens=2, do_sample=False)"
            return
        targets = f"batch[:, :{self._job.training.loss_length or ''}]"
        given = f"input_ids=batch, decoder_input_ids={targets}" if self._job.model.task == "seq2seq-lm" else "batch"
        yield "    with torch.no_grad():"
        yield f"        model({given})"


def _not_run(job: ResolvedJob, tasks: Collection[str]) -> dict[str, Any]:
    """Return sentences, each with True if a script of transformers cannot run the inference of the job for it."""
    return {
        f"{job.job.engine_name} serves the model, and its command is the program": job.job.is_served,
        f"the task {job.model.task} needs batches of its own": job.model.task not in tasks,
        "its modules are placed by a device map": job.job.parallel.device_map is not None,
        "it spreads the model over GPUs": job.parallel.world_size > 1,
        f"weights in {job.quantization} come from a checkpoint": job.quantization not in (None, *BITSANDBYTES),
        "it computes under autocast": job.precision.name.endswith("-mixed"),
        "a compiled model generates with a cache of its own": bool(job.training.compile),
        "adapters are merged, or not, when it loads": job.lora is not None,
    }


class _SplitScript(TrainerScript):
    """A script whose loop is written out, and whose layers are split over GPUs."""

    def __init__(self, job: ResolvedJob, model: ResolvedModel, how: How) -> None:
        refuse(_refused(job, model), "with tensor parallelism, ")
        super().__init__(job, model, how)
        self._imports = {
            *("torch", "transformers.AutoConfig", "torch.distributed.device_mesh.init_device_mesh"),
            *(f"{_TENSOR}.parallel.{name}" for name in ("ColwiseParallel", "RowwiseParallel", "parallelize_module")),
            f"{_TENSOR}.Replicate",
        }

    @property
    def _is_tied(self) -> bool:
        return read_architecture(self._model.config).tied

    def _data(self) -> Iterator[str]:
        yield next(self._items())

    def _settings(self) -> Iterator[str]:
        yield from ()

    def _training(self) -> Iterator[str]:
        parallel, training = self._job.parallel, self._job.training
        kind = "cpu" if self._how.on_cpu else "cuda"
        yield from self._device_lines()
        sizes = f"({parallel.data_shard}, {parallel.tensor})"
        yield f'mesh = init_device_mesh("{kind}", {sizes}, mesh_dim_names=("data", "tensor"))'
        yield "plan = {"
        yield '    "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),'
        yield from (f'    "model.layers.*.{name}": ColwiseParallel(),' for name in _COLUMNS)
        yield from (f'    "model.layers.*.{name}": RowwiseParallel(),' for name in _ROWS)
        yield '    "lm_head": ColwiseParallel(output_layouts=Replicate()),'
        yield "}"
        yield 'parallelize_module(model, mesh["tensor"], plan)'
        if self._is_tied:
            yield "model.tie_weights()"
        yield from self._sharded()
        yield "model.to(device)"
        if training.activation_checkpointing == "full":
            yield 'model.gradient_checkpointing_enable({"use_reentrant": False})'
        yield ""
        yield from self._optimizer_lines()
        yield "model.train()"
        yield f"for _ in range({self._how.steps}):"
        yield f"    batch = tokens.repeat({training.micro_batch}, 1).to(device){self._comment('training.micro_batch')}"
        call = "model(input_ids=batch, labels=batch, use_cache=False).loss"
        if self._job.precision.name.endswith("-mixed"):
            yield f'    with torch.autocast("{kind}", {self._compute()}):'
            yield f"        loss = {call}"
        else:
            yield f"    loss = {call}"
        yield "    loss.backward()"
        yield "    optimizer.step()"
        yield "    optimizer.zero_grad()"

    def _sharded(self) -> Iterator[str]:
        """Yield the lines that wrap each unit in FSDP2, over the GPUs that hold the same slice of its layers."""
        if not self._job.strategy.fsdp2:
            return
        self._imports.add("torch.distributed.fsdp.fully_shard")
        reshards = self._job.parallel.reshard_after_forward
        options = 'mesh=mesh["data"]' + ("" if reshards else ", reshard_after_forward=False")
        whole = "(model.model.embed_tokens, *model.model.layers, model.lm_head)"
        yield f"for unit in {'model.model.layers' if self._is_tied else whole}:"
        yield f"    fully_shard(unit, {options})"
        yield f"fully_shard(model, {options})"

    def _optimizer_lines(self) -> Iterator[str]:
        rules = self._job.optimizer
        module, _, name = (rules.torch_class or "").partition(":")
        self._imports.add(f"{module}.{name}")
        given = "".join(f", {key}={value!r}" for key, value in rules.torch_arguments.items())
        comment = self._comment("training.optimizer", "the default")
        if self._job.strategy.fsdp2:
            yield f"optimizer = {name}(model.parameters(){given}){comment}"
            return
        self._imports.add(f"{_TENSOR}.DTensor")
        yield "split = [each for each in model.parameters() if isinstance(each, DTensor)]"
        yield "whole = [each for each in model.parameters() if not isinstance(each, DTensor)]"
        yield 'groups = [{"params": split}, {"params": whole}]  # which no kernel steps together'
        yield f"optimizer = {name}(groups{given}){comment}"


def _refused(job: ResolvedJob, model: ResolvedModel) -> dict[str, bool]:
    """Return sentences, each with True if the loop cannot express the job for it."""
    training, parallel = job.training, job.parallel
    family, ranks = model.config.get("model_type"), parallel.tensor
    heads = model.config.get("num_key_value_heads") or model.config.get("num_attention_heads", ranks)
    return {
        f"only {', '.join(sorted(_SPLIT))} have a plan, not {family}": model.code is not None or family not in _SPLIT,
        f"{ranks} GPUs cannot share {heads} key-value heads": heads % ranks != 0,
        "adapters have no plan": job.lora is not None,
        "its loop shards with FSDP2 or not at all": job.strategy.name not in ("none", "fsdp2"),
        "its loop has one group of data-parallel ranks": parallel.data_replicate > 1,
        "FSDP2 takes types of its own for mixed precision": job.strategy.fsdp2
        and job.precision.name.endswith("-mixed"),
        "its loop keeps nothing in host memory": parallel.cpu_offload not in (None, "none"),
        "norms are split too, which is another plan": parallel.sequence_parallel,
        "the job has a plan of its own": parallel.tensor_plan is not None,
        "its loop steps after each batch": training.gradient_accumulation > 1,
        "its loop does not evaluate": training.evaluation_batch is not None,
        "its loop does not compile": bool(training.compile),
        "its loop has batches of one length": bool(training.varying_lengths),
        "parameters that are frozen have no plan": job.trainable is not None,
        f"torch has no {job.optimizer.name}": job.optimizer.torch_class is None,
    }
