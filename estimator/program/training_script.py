"""Training script of a described job, as a user of transformers or TRL would write it.

It has the real libraries' names: transformers' ``Trainer`` and ``TrainingArguments`` (5.23), TRL's trainers and their
configurations (1.16), peft, bitsandbytes. The model is built from its config, so its weights are random, and its
batches are random items on the host.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from ..common.errors import CannotTellError
from ..common.library_versions import older
from ..job.job import Job
from ..job.resolved_job import ResolvedJob, own_optimizer_code
from ..job.rules.optimizers.table import OPTIMIZERS
from ..job.settings import OtherModel
from ..model.families.registry import family_of
from ..model.find_config import ResolvedModel
from ..worker.request.tasks import NOT_IN_MODELS, auto_class_name

_WIDTH = 88
_STANDARD = ("itertools", "os", "re", "sys")
"""Modules of Python's own."""
_DTYPES = {"fp32": "torch.float32", "bf16": "torch.bfloat16", "fp16": "torch.float16"}
_TRAINER_OPTIMIZERS = frozenset(
    (
        *("adamw_torch", "adamw_torch_fused", "adamw_apex_fused", "adafactor", "sgd", "adagrad", "rmsprop"),
        *("adamw_bnb_8bit", "paged_adamw_8bit", "paged_adamw_32bit", "lion_32bit", "lion_8bit", "paged_lion_8bit"),
    )
)
"""Names of ``TrainingArguments(optim=...)`` that need no argument for the memory that the job's row counts."""
_GENERATIONS = 8
"""Largest number of completions of one prompt, which is GRPO's default."""
_LENGTHS = (2, 4, 3, 1)
"""Lengths of batches that follow each other, in quarters of the longest: the second one is in the figures."""
TEXT_TASKS = (
    *("causal-lm", "masked-lm", "seq2seq-lm", "sequence-classification", "token-classification"),
    *("question-answering", "multiple-choice", "image-classification", "audio-classification"),
)
"""Tasks whose batches the script can make."""
_FSDP1_SHARDING = {
    "grad_op": "SHARD_GRAD_OP",
    "hybrid": "HYBRID_SHARD",
    "hybrid_grad_op": "HYBRID_SHARD_ZERO2",
    "none": "NO_SHARD",
}
_PEFT_TASKS = {
    "causal-lm": "CAUSAL_LM",
    "seq2seq-lm": "SEQ_2_SEQ_LM",
    "sequence-classification": "SEQ_CLS",
    "token-classification": "TOKEN_CLS",
    "question-answering": "QUESTION_ANS",
}


class _Trainer(msgspec.Struct, frozen=True, kw_only=True):
    """A trainer's classes, and what it takes."""

    library: str
    name: str
    settings: str
    """Class of its arguments."""
    loss: tuple[str, ...] = ("chunked",)
    takes_optimizers: bool = True
    """It accepts an optimizer class (``optimizer_cls_and_kwargs``)."""

    @property
    def is_trl(self) -> bool:
        """True if it is TRL's."""
        return self.library == "trl"


_TRAINER = _Trainer(library="transformers", name="Trainer", settings="TrainingArguments", loss=("full", "fused-linear"))
_SFT = _Trainer(library="trl", name="SFTTrainer", settings="SFTConfig")
_DPO = _Trainer(library="trl", name="DPOTrainer", settings="DPOConfig", takes_optimizers=False)
_GRPO = _Trainer(library="trl", name="GRPOTrainer", settings="GRPOConfig", takes_optimizers=False)


def _trainer(job: ResolvedJob) -> _Trainer:
    """Return the trainer whose data and loss the job has.

    TRL's trainers make no logits since 1.15 (``add_fused_lm_head``): the job's loss is in chunks.
    """
    if job.rollout is not None:
        return _GRPO
    if job.training.sequences_per_example == 2 and job.model.task == "causal-lm":
        return _DPO
    return _SFT if job.training.loss == "chunked" else _TRAINER


class How(NamedTuple):
    """Choices of how a script is written and run."""

    stated: Collection[str] | None = None
    """Keys of the job that somebody gave; None: all that differ from their defaults. The others get a comment."""
    file: str = "train.py"
    """Name under which it is started."""
    steps: int = 10
    """Optimizer steps that it takes."""
    on_cpu: bool = False
    """It runs on the CPU, even where there is a GPU."""
    transformers: str | None = None
    """Version of transformers for which it is written; None: the one that the job states, else the latest."""


def start_command(job: Job, file: str) -> str:
    """Return the command that starts the script on the job's ranks."""
    ranks, parallel = job.parallel.world_size, job.parallel
    if ranks == 1 and not parallel.strategy.startswith("zero"):  # DeepSpeed looks for a launcher's variables
        return f"python {file}"
    if parallel.sharding in ("hybrid", "hybrid_grad_op"):  # FSDP1 shards within a node, and has a copy on each
        return f"torchrun --nnodes {parallel.data_replicate} --nproc-per-node {parallel.data_shard} {file}"
    return f"torchrun --nproc-per-node {ranks} {file}"


def require_expressible(job: ResolvedJob, tasks: Collection[str], *, splits_layers: bool = False) -> None:
    """Refuse a job with a setting that a script cannot express yet.

    Args:
        job: the job.
        tasks: those whose batches the script can make.
        splits_layers: it can split layers over GPUs.

    Raises:
        CannotTellError: the sentence names the setting.
    """
    refuse(_refused(job, tasks, splits_layers=splits_layers))


def refuse(reasons: Mapping[str, Any], where: str = "") -> None:
    """Refuse a job for which there is no script for one of these reasons, which is given with what is true then.

    Raises:
        CannotTellError: one applies.
    """
    for why, applies in reasons.items():
        if applies:
            raise not_written(f"{where}{why}")


def not_written(why: str, what: str = "this job") -> CannotTellError:
    """Return the error of a job for which there is no script."""
    return CannotTellError(f"no program can be written for {what} yet: {why}")


def _refused(job: ResolvedJob, tasks: Collection[str], *, splits_layers: bool) -> dict[str, Any]:
    """Return the reasons why no script can be written yet, each with a true value where it holds for the job."""
    training, parallel = job.training, job.parallel
    other_rules = (
        job.lora is not None and job.trainable is not None and not all(each for _, each in job.trainable.rules)
    )
    trainer = _trainer(job)
    takes_length = trainer in (_DPO, _GRPO) or job.model.task == "seq2seq-lm"
    unset = {
        "training.varying_lengths": training.varying_lengths and trainer is not _TRAINER,
        "training.loss_length": None if takes_length else training.loss_length,
        "training.keep_outputs": training.keep_outputs and job.job.unsure.logits == "no",  # else the range holds them
        "parallel.gradient_dtype": parallel.gradient_dtype,
        "parallel.gradient_as_bucket_view": parallel.gradient_as_bucket_view,
        "parallel.sync_every_micro_batch": parallel.sync_every_micro_batch,
        "parallel.load_on_rank_zero": parallel.load_on_rank_zero,
        "lora.quantize_experts": job.quantizes_experts,
        "saving": job.job.saving,
    }
    split = parallel.pipeline * parallel.context * parallel.expert > 1 or (parallel.tensor > 1 and not splits_layers)
    own_types = parallel.param_dtype or parallel.reduce_dtype or parallel.cpu_offload == "optimizer"
    return {
        f"it trains with {training.framework}, whose own command is its program": not job.framework.trainer,
        f"the task {job.model.task} needs batches of its own": job.model.task not in tasks,
        **_refused_by_trl(job, trainer),
        "its modules are placed by a device map": job.job.parallel.device_map is not None,
        "it splits stages, sequences or experts over GPUs": split,
        f"the loss {training.loss} is not {trainer.name}'s": training.loss not in trainer.loss,
        "an example is several sequences": training.sequences_per_example > 1 and trainer is not _DPO,
        "Megatron-FSDP has no setting in the Trainer": job.strategy.megatron_fsdp,
        "the Trainer steps after the backward pass": training.optimizer_in_backward,
        "the Trainer has no setting for activations on the host": training.activation_offload,
        "the Trainer has no setting for FSDP's own types, or an optimizer on the host": job.strategy.fsdp and own_types,
        "accelerate makes units of embedding and head too": parallel.fsdp_units == "blocks",
        "int4 weights come from a checkpoint": job.quantization == "int4",
        "the Trainer checkpoints whole blocks": training.activation_checkpointing == "selective",
        "Liger-Kernel's parts are patched together": training.fused_kernels not in (None, []),
        "only norms are cast to fp32, which TRL does": job.adapters.prepared == "norms",
        "peft has no setting for parameters that are frozen beside adapters": other_rules,
        **{f"it has no place for {key}": value not in (None, False) for key, value in unset.items()},
    }


def _refused_by_trl(job: ResolvedJob, trainer: _Trainer) -> dict[str, Any]:
    """Return what TRL's trainers do otherwise than the job, each with True if the job has it."""
    training, rollout, held = job.training, job.rollout, job.job.other_models
    sharded = job.strategy.fsdp or job.strategy.zero_stage == 3
    like_itself = all(each == OtherModel(role="reference", sharded=each.sharded) for each in held)
    narrow = job.lora is not None and job.quantization is None and job.adapters.dtype in ("bf16", "fp16")
    completion = training.loss_length or 0
    prompt = training.sequence_length - completion
    return {
        "TRL loads the reference model of GRPO and RLOO by its name: --beta 0 leaves it out": (
            held and like_itself and trainer is _GRPO
        ),
        "it holds other models than the reference model of DPO": held and not (trainer is _DPO and like_itself),
        "DPO has one reference model, and none with adapters": len(held) > (job.lora is None),
        "DPOTrainer shards its reference model as it does the trained one": any(
            each.sharded != sharded for each in held
        ),
        "vLLM generates its text": rollout is not None and rollout.engine != "transformers",
        "TRL's adapters are fp32 over weights that are not quantized": trainer.is_trl and narrow,
        "GRPO trains language models on prompts and completions: give training.loss_length": rollout is not None
        and not (job.model.task == "causal-lm" and completion and prompt > 0),
        "the prompt and the completion are not the whole sequence": rollout is not None
        and rollout.prompt_length not in (None, prompt),
        "GRPO compares two completions of a prompt or more: give training.micro_batch": trainer is _GRPO
        and _completions(job) < 2,
        "GRPO's evaluation generates text too": trainer is _GRPO and training.evaluation_batch is not None,
    }


def _completions(job: ResolvedJob) -> int:
    """Return the completions of one prompt: as many as the sequences that are generated at once allow."""
    assert job.rollout is not None  # noqa: S101 - asked for GRPO only
    sequences = job.training.micro_batch * job.rollout.micro_batches * job.job.parallel.data_ranks
    return max(number for number in range(1, _GENERATIONS + 1) if sequences % number == 0)


class TrainerScript:
    """A script, put together part by part."""

    def __init__(self, job: ResolvedJob, model: ResolvedModel, how: How) -> None:
        self._job = job
        self._model = model
        self._stated = how.stated
        self._how = how
        self._transformers = how.transformers or job.software.transformers
        self._trainer = trainer = _trainer(job)
        classes = (f"{trainer.library}.{trainer.name}", f"{trainer.library}.{trainer.settings}")
        self._imports = {"torch", "transformers.AutoConfig", *classes}

    def text(self) -> str:
        """Return the whole script."""
        body = "\n\n".join("\n".join(lines) for each in self._parts() if (lines := list(each)))
        return f"{self._head()}\n\n{self._import_lines()}\n\n{body}\n"

    def _parts(self) -> Iterable[Iterable[str]]:
        """Return the lines of its parts, between which there is an empty one."""
        made = [self._config(), self._built(), self._quantized(), self._adapters(), self._trainable(), self._data()]
        stage_3 = self._job.partitions_weights  # transformers builds a model in parts once it knows the arguments
        return [self._settings(), *made, self._training()] if stage_3 else [*made, self._settings(), self._training()]

    def _head(self) -> str:
        job = self._job.job
        lines = [
            f'"""The program that the job {job.label!r} stands for. Its weights and its batches are random.',
            "",
            f"    {start_command(job, self._how.file)}",
            *self._versions(),
            '"""',
        ]
        return "\n".join(lines)

    def _versions(self) -> Iterator[str]:
        """Yield the versions that the job states, with which the script has to be run."""
        names = ("torch", "transformers", "trl", "peft", "bitsandbytes")
        stated = {name: getattr(self._job.software, name) for name in names}
        if words := [f"{name}=={version}" for name, version in stated.items() if version]:
            yield ""
            yield f"    # needs {' '.join(words)}"

    def _import_lines(self) -> str:
        modules: dict[str, set[str]] = {}
        for each in self._imports:
            module, _, name = each.rpartition(".")
            modules.setdefault(module, set()).add(name)
        names = sorted(modules.pop("", ()))
        own = [f"import {name}" for name in names if name in _STANDARD]
        plain = [*own, *([""] if own else []), *(f"import {name}" for name in names if name not in _STANDARD)]
        return "\n".join(plain + [f"from {each} import {', '.join(sorted(modules[each]))}" for each in sorted(modules)])

    def _comment(self, key: str, why: str = "") -> str:
        """Return a comment for a setting that nobody gave."""
        if self._stated is None or key in self._stated:
            return ""
        return f"  # not set{f': {why}' if why else ''}"

    def _config(self) -> Iterator[str]:
        code = self._model.code
        if code is not None:
            yield from self._own_code(code)
            return
        fields = {key: value for key, value in self._model.config.items() if key not in NOT_IN_MODELS}
        yield "config = AutoConfig.for_model("
        yield f"    {literal(self._model.config['model_type'])},"
        for key, value in fields.items():
            yield f"    {key}={literal(value, 4)},"
        if self._job.model.task == "seq2seq-lm" and "decoder_start_token_id" not in fields:
            yield "    decoder_start_token_id=0,"  # labels are shifted behind it
        yield ")"

    def _own_code(self, code: Mapping[str, Any]) -> Iterator[str]:
        """Yield what makes the config, or the model, of code that the user allows to run."""
        if code.get("remote"):
            yield f"config = AutoConfig.from_pretrained({literal(code['folder'])}, trust_remote_code=True)"
            return
        module, _, attribute = code["model"].partition(":")
        self._imports |= {"sys"}
        self._imports.discard("transformers.AutoConfig")
        name = attribute.partition(".")[0]
        yield f"sys.path.insert(0, {literal(code['folder'])})"
        yield f"from {module} import {name}  # your own code"
        yield ""
        yield f"model = {attribute}"
        yield "if not isinstance(model, torch.nn.Module):"
        yield "    model = model()"
        if self._job.precision.half_weights:
            yield f"model.to({_DTYPES[self._job.precision.name]})"

    def _built(self) -> Iterator[str]:
        if self._model.code is not None and not self._model.code.get("remote"):
            return
        name = auto_class_name(self._job.model.task)
        self._imports.add(f"transformers.{name}")
        dtype = _DTYPES[self._job.precision.name if self._job.precision.half_weights else "fp32"]
        held = ["reference"] if self._job.job.other_models else []
        for each in ["model", *held]:
            yield f"{each} = {name}.from_config("
            yield "    config,"
            name_of_dtype = "torch_dtype" if older(self._transformers, 4, 56) else "dtype"
            yield f"    {name_of_dtype}={dtype},{self._comment('training.precision', 'the type of the checkpoint')}"
            if self._job.model.attention != "sdpa":  # which transformers takes where a model has it
                yield f"    attn_implementation={literal(self._job.model.attention)},"
            if self._model.code is not None:
                yield "    trust_remote_code=True,"
            yield ")"
            has_own_head = self._model.config.get("tie_word_embeddings") is False
            if self._job.model.task == "seq2seq-lm" and has_own_head and not self._job.partitions_weights:
                # transformers 5 ties T5's head whatever the config says, but unties what a checkpoint holds apart
                yield f"{each}.lm_head.weight = torch.nn.Parameter({each}.lm_head.weight.clone())  # a head of its own"
        if self._job.model.task in ("sequence-classification", "multiple-choice"):
            yield "model.config.pad_token_id = model.config.pad_token_id or 0"
        if self._job.strategy.fsdp and self._names_other_blocks and not self._job.parallel.fsdp_wrap_classes:
            yield "# blocks that accelerate can wrap: those that the model holds, without its input embeddings"
            yield "embeddings = model.get_input_embeddings()"
            yield "held = {type(part).__name__ for part in model.modules() if embeddings not in set(part.modules())}"
            yield "model._no_split_modules = sorted(held.intersection(model._no_split_modules or ()))"

    @property
    def _names_other_blocks(self) -> bool:
        """The model names blocks that FSDP cannot wrap as they are."""
        return family_of(self._model.config.get("model_type")).stack == "encoder"

    def _quantized(self) -> Iterator[str]:
        job = self._job
        if job.quantization is None:
            return
        self._imports |= {"bitsandbytes"}
        four = job.quantization != "int8"
        sizes = "weight.shape[1], weight.shape[0], bias=layer.bias is not None"
        if four:
            layer, weight = "Linear4bit", "Params4bit"
            options = {"compress_statistics": job.quantization == "nf4-double", "quant_type": "nf4"}
            storage = {"quant_storage": "torch.bfloat16"} if job.strategy.fsdp else {}
            made = [f"compute_dtype={self._compute()}", *_keywords({**options, **storage})]
            given = _keywords({**options, **storage, "module": "made"})
        else:
            layer, weight = "Linear8bitLt", "Int8Params"
            made = given = ["has_fp16_weights=False"]
        yield "# the frozen linear layers as from_pretrained(quantization_config=...) makes them"
        yield from self._layers_to_quantize()
        yield f"        made = bitsandbytes.nn.{layer}("
        yield f"            {sizes},"
        yield f"            {', '.join(made)},"
        yield "        )"
        yield f"        made.weight = bitsandbytes.nn.{weight}("
        yield "            weight, requires_grad=False,"
        yield f"            {', '.join(given)},"
        yield "        )"
        yield "        made.bias = layer.bias"
        yield "        model.set_submodule(name, made)"
        yield f"model.is_loaded_in_{'4' if four else '8'}bit = True"
        if job.strategy.fsdp and not job.loads_whole:
            yield 'model = model.to("cpu")  # quantizes there'
        else:
            comment = "  # as from_pretrained does, under FSDP too" if job.strategy.fsdp else ""
            yield f"model = model.to({self._device()}){comment}"
        if job.adapters.prepared == "all":
            self._imports.add("peft.prepare_model_for_kbit_training")
            comment = self._comment("lora.kbit_preparation", "peft's documentation does so")
            yield f"model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False){comment}"

    def _layers_to_quantize(self) -> Iterator[str]:
        """Yield the beginning of a loop over the model's linear layers, with the ``weight`` of each."""
        home = "integrations.bitsandbytes" if older(self._transformers, 5, 0) else "quantizers.base"
        self._imports |= {"transformers.pytorch_utils.Conv1D", f"transformers.{home}.get_keys_to_not_convert"}
        yield "kept = {*get_keys_to_not_convert(model), *(model._keep_in_fp32_modules or ())}"
        yield "for name, layer in list(model.named_modules()):"
        yield "    is_linear, is_transposed = isinstance(layer, torch.nn.Linear), isinstance(layer, Conv1D)"
        yield "    if (is_linear or is_transposed) and not {name, name.rpartition('.')[2]} & kept:"
        yield "        weight = layer.weight.data.T.contiguous() if is_transposed else layer.weight.data"

    def _device_lines(self) -> Iterator[str]:
        """Yield the lines with which a loop of its own finds its device, and its peers."""
        on_cpu = self._how.on_cpu
        if self._job.parallel.world_size > 1:
            yield f'torch.distributed.init_process_group("{"gloo" if on_cpu else "nccl"}")'
        if on_cpu:
            yield 'device = torch.device("cpu")'
        elif self._job.parallel.world_size > 1:
            self._imports.add("os")
            yield 'device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))'
            yield "torch.cuda.set_device(device)"
        else:
            yield 'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")'

    def _device(self) -> str:
        if self._job.parallel.world_size == 1:
            return '"cuda"'
        self._imports.add("os")
        return "f\"cuda:{os.environ['LOCAL_RANK']}\""

    def _compute(self) -> str:
        return _DTYPES[self._job.precision.name.partition("-")[0]]

    def _adapters(self) -> Iterator[str]:
        job, lora = self._job, self._job.lora
        if lora is None:
            return
        self._imports.add("peft.LoraConfig")
        targets = "all-linear" if lora.targets == "all-linear" else list(lora.targets)
        yield "adapters = LoraConfig("
        yield f"    r={lora.rank},{self._comment('lora.rank')}"
        yield f"    target_modules={literal(targets, 4)},{self._comment('lora.targets')}"
        if job.adapters.dropout:
            yield f"    lora_dropout={job.adapters.dropout},{self._comment('lora.dropout')}"
        task = _PEFT_TASKS.get(job.model.task)
        if task is not None:
            yield f"    task_type={literal(task)},"
        if job.trainable is not None and (task is None or job.training.trainable is not None):
            yield f"    modules_to_save={self._trained_modules()},"
        yield ")"
        if self._trainer.is_trl:
            return
        self._imports.add("peft.get_peft_model")
        sixteen = job.adapters.dtype in ("bf16", "fp16")
        yield f"model = get_peft_model(model, adapters{', autocast_adapter_dtype=False' if sixteen else ''})"

    def _trained_modules(self) -> str:
        rules = self._job.trainable
        assert rules is not None  # noqa: S101 - asked by the caller
        self._imports.add("re")
        pattern = "|".join(f"(?:{rule})" for rule, _ in rules.rules)
        return f"sorted({{n.rpartition('.')[0] for n, _ in model.named_parameters() if re.search({pattern!r}, n)}})"

    def _trainable(self) -> Iterator[str]:
        rules = self._job.trainable
        if rules is None or self._job.lora is not None:
            return
        self._imports.add("re")
        yield f"model.requires_grad_({rules.otherwise})"
        yield "for name, parameter in model.named_parameters(remove_duplicate=False):"
        for rule, trains in rules.rules:
            yield f"    if re.search({rule!r}, name):"
            yield f"        parameter.requires_grad_({trains})"

    def _data(self) -> Iterator[str]:
        yield from self._tokenized() if self._trainer.is_trl else self._items()

    def _tokenized(self) -> Iterator[str]:
        """Yield a tokenizer whose words are the numbers of tokens, and a dataset of such text."""
        training = self._job.training
        self._imports |= {
            *("datasets.Dataset", "tokenizers.Tokenizer", "tokenizers.models.WordLevel"),
            *("tokenizers.pre_tokenizers.WhitespaceSplit", "transformers.PreTrainedTokenizerFast"),
        }
        comment = self._comment("training.sequence_length")
        yield "vocabulary_size = config.get_text_config().vocab_size"
        yield 'vocabulary = {"<pad>": 0, "<end>": 1, **{str(n): n for n in range(2, vocabulary_size)}}'
        yield 'words = Tokenizer(WordLevel(vocabulary, unk_token="<pad>"))'
        yield "words.pre_tokenizer = WhitespaceSplit()"
        yield 'tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<end>")'
        yield f"tokens = torch.randint(2, vocabulary_size, ({training.sequence_length},)).tolist(){comment}"
        if self._trainer is _SFT:
            yield 'item = {"input_ids": tokens}'
        elif self._trainer is _DPO:
            at = training.sequence_length - (training.loss_length or training.sequence_length - 1)
            yield f'prompt, answer = " ".join(map(str, tokens[:{at}])), " ".join(map(str, tokens[{at}:-1]))'
            yield 'item = {"prompt": prompt + " ", "chosen": answer, "rejected": answer}  # TRL adds "<end>" to both'
        else:
            length = training.sequence_length - (training.loss_length or 0)
            yield f'item = {{"prompt": " ".join(map(str, tokens[:{length}]))}}'

    def _items(self) -> Iterator[str]:
        job, training = self._job, self._job.training
        length, task = training.sequence_length, job.model.task
        comment = self._comment("training.sequence_length")
        config = self._model.config
        if task == "image-classification":
            yield f'item = {{"pixel_values": torch.rand{image_shape(config)}, "labels": 0}}'
        elif task == "audio-classification":
            yield f'item = {{"input_values": torch.randn({length}), "labels": 0}}{comment}'
        elif task in ("causal-lm", "masked-lm", "seq2seq-lm"):
            largest = "config.get_text_config().vocab_size" if self._model.code is None else "3"
            yield f"tokens = torch.randint(2, {largest}, ({length},)){comment}"
            targets = training.loss_length
            read = f"torch.randint(2, {largest}, ({targets},))" if targets else "tokens"
            yield f'item = {{"input_ids": tokens, "labels": {read}}}'
        elif task == "multiple-choice":
            yield f'item = {{"input_ids": torch.ones(4, {length}, dtype=torch.long), "labels": 0}}{comment}'
        else:
            yield f"tokens = torch.ones({length}, dtype=torch.long){comment}"
            one_label = '"labels": 0'
            labels = {
                "token-classification": '"labels": torch.zeros_like(tokens)',
                "question-answering": '"start_positions": 0, "end_positions": 0',
            }
            yield f'item = {{"input_ids": tokens, {labels.get(task, one_label)}}}'

    def _settings(self) -> Iterator[str]:
        """Yield the trainer's arguments."""
        sharding = self._job.parallel.sharding
        if self._job.strategy.flat_parameters and sharding != "full":
            self._imports.add("os")
            value = literal(_FSDP1_SHARDING[sharding])
            yield f'os.environ["FSDP_SHARDING_STRATEGY"] = {value}  # fsdp_config has no key that accelerate reads'
        yield f"arguments = {self._trainer.settings}("
        for line in self._arguments():
            yield f"    {line}"
        yield ")"

    def _training(self) -> Iterator[str]:
        trainer = self._trainer
        if trainer is _GRPO:
            yield ""
            yield "def reward(completions, **_):"
            yield "    return [0.0] * len(completions)"
            yield ""
            yield ""
        if self._job.training.varying_lengths:
            yield from self._collator()
        optimizer = self._optimizer_class()
        if optimizer is not None:
            yield from self._import_optimizer(optimizer[0])
            yield f"optimizer = {optimizer[0]}, {literal(dict(optimizer[1]))}"
        yield f"trainer = {trainer.name}("
        for line in self._given(optimizer is not None):
            yield f"    {line},"
        yield ")"
        yield "trainer.train()"

    def _collator(self) -> Iterator[str]:
        """Yield a collator that cuts each batch to another length."""
        self._imports |= {"itertools", "transformers.default_data_collator"}
        lengths = [max(1, self._job.training.sequence_length * quarters // 4) for quarters in _LENGTHS]
        yield f"lengths = itertools.cycle({lengths})  # of batches that follow each other"
        yield ""
        yield ""
        yield "def cut(items):"
        yield "    length, batch = next(lengths), default_data_collator(items)"
        yield "    shorter = {key: each[..., :length].contiguous() for key, each in batch.items() if each.dim() > 1}"
        yield "    return batch | shorter"
        yield ""
        yield ""

    def _import_optimizer(self, path: str) -> Iterator[str]:
        """Import the module of an optimizer's class; yield where it is, if it is the user's own."""
        code = own_optimizer_code(self._job.job)
        if code is None:
            self._imports.add(path.rpartition(".")[0])
            return
        self._imports.add("sys")
        yield f"sys.path.insert(0, {literal(code['folder'])})"
        yield f"import {path.rpartition('.')[0]}  # your own code"
        yield ""

    def _given(self, has_optimizer: bool) -> Iterator[str]:
        """Yield what the trainer is given."""
        job, trainer = self._job, self._trainer
        yield "model"
        if job.job.other_models:
            yield "reference"
        if trainer is _GRPO:
            yield "reward"
        yield "args=arguments"
        yield f"train_dataset={self._dataset(job.job.global_batch * self._how.steps)}"
        if job.training.evaluation_batch is not None:
            yield f"eval_dataset={self._dataset(job.training.evaluation_batch * job.job.parallel.data_ranks)}"
        if trainer.is_trl:
            yield "processing_class=tokenizer"
            if job.lora is not None:
                yield "peft_config=adapters"
        if has_optimizer:
            yield "optimizer_cls_and_kwargs=optimizer"
        if job.training.varying_lengths:
            yield "data_collator=cut"

    def _dataset(self, items: int) -> str:
        return f"Dataset.from_list([item] * {items})" if self._trainer.is_trl else f"[item] * {items}"

    def _arguments(self) -> Iterator[str]:
        job, training = self._job, self._job.training
        yield '"output",'
        yield f"max_steps={self._how.steps},"
        if self._how.on_cpu:
            yield "use_cpu=True,"
        yield f"per_device_train_batch_size={training.micro_batch},{self._comment('training.micro_batch')}"
        if training.gradient_accumulation > 1:
            yield f"gradient_accumulation_steps={training.gradient_accumulation},"
        yield from self._of_trl()
        by_deepspeed = job.strategy.deepspeed and job.precision.half_weights
        if job.precision.name.endswith("-mixed") or job.adapters.autocasts or by_deepspeed:
            yield f"{job.precision.name.partition('-')[0]}=True,"
        elif self._trainer.is_trl:
            yield "bf16=False,"
        if self._optimizer_class() is None:
            yield f"optim={literal(self._optimizer())},{self._comment('training.optimizer', 'the default')}"
        if training.activation_checkpointing == "full":
            comment = self._comment("training.activation_checkpointing")
            yield f"gradient_checkpointing=True,{comment}"
            # DeepSpeed shrinks frozen weights that are recomputed, which only the other way checks (pull request 8148)
            reentrant = self._job.lora is not None and self._job.zero_stage == 3
            yield f'gradient_checkpointing_kwargs={{"use_reentrant": {reentrant}}},'
        elif self._trainer.is_trl:
            yield "gradient_checkpointing=False,"
        if training.compile:
            yield "torch_compile=True,"
        if job.fused_kernels:
            yield "use_liger_kernel=True,"
        yield from self._parallel()
        if training.evaluation_batch is not None:
            yield f"per_device_eval_batch_size={training.evaluation_batch},"
            yield 'eval_strategy="epoch",'
        yield 'save_strategy="no",'
        yield "report_to=[],"

    def _of_trl(self) -> Iterator[str]:
        """Yield what only a configuration of TRL's has."""
        job, training, rollout = self._job, self._job.training, self._job.rollout
        if self._trainer in (_SFT, _DPO):
            yield f"max_length={training.sequence_length},"
        if self._trainer is _DPO and not (training.reference_pass or job.job.other_models):
            yield "precompute_ref_log_probs=True,"
        if self._trainer is _GRPO and rollout is not None:
            yield f"max_completion_length={training.loss_length},{self._comment('training.loss_length')}"
            yield f"num_generations={_completions(job)},"
            yield f"steps_per_generation={rollout.micro_batches},"
            if not rollout.gather_weights:
                yield "ds3_gather_for_generation=False,"

    def _parallel(self) -> Iterator[str]:
        if self._job.strategy.deepspeed:
            yield from self._deepspeed()
        elif self._job.strategy.fsdp:
            yield from self._fsdp()

    def _fsdp(self) -> Iterator[str]:
        job, parallel = self._job, self._job.parallel
        settings: dict[str, Any] = {"version": 2 if job.strategy.fsdp2 else 1}
        if job.strategy.fsdp2:
            settings["reshard_after_forward"] = parallel.reshard_after_forward
        else:
            prefetch = parallel.fsdp_backward_prefetch or "pre"
            settings["backward_prefetch"] = "no_prefetch" if prefetch == "none" else f"backward_{prefetch}"
        if parallel.fsdp_min_unit_parameters:
            settings |= {"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": parallel.fsdp_min_unit_parameters}
        elif parallel.fsdp_units == "model":
            settings["auto_wrap_policy"] = "NO_WRAP"
        elif parallel.fsdp_wrap_classes:
            settings["transformer_layer_cls_to_wrap"] = list(parallel.fsdp_wrap_classes)
        if parallel.original_parameters is not None:
            settings["use_orig_params"] = parallel.original_parameters
        if parallel.limit_all_gathers is not None:
            settings["limit_all_gathers"] = parallel.limit_all_gathers
        if parallel.cpu_offload == "all":
            settings["cpu_offload"] = True
        yield "fsdp=True,"
        yield f"fsdp_config={literal(settings, 4)},"
        if job.strategy.fsdp2 and parallel.data_replicate > 1:
            self._imports.add("accelerate.ParallelismConfig")
            sizes = f"dp_replicate_size={parallel.data_replicate}, dp_shard_size={parallel.data_shard}"
            yield f"parallelism_config=ParallelismConfig({sizes}),"

    def _deepspeed(self) -> Iterator[str]:
        job = self._job
        stage: dict[str, Any] = {"stage": job.strategy.zero_stage}
        if job.offloads_optimizer:
            stage["offload_optimizer"] = {"device": "cpu"}
        if job.offloads_weights:
            stage["offload_param"] = {"device": "cpu"}
        names = {
            "reduce_bucket": "reduce_bucket_size",
            "allgather_bucket": "allgather_bucket_size",
            "overlap_comm": "overlap_comm",
            "prefetch_bucket": "stage3_prefetch_bucket_size",
            "max_live_parameters": "stage3_max_live_parameters",
            "max_reuse_distance": "stage3_max_reuse_distance",
            "persistence_threshold": "stage3_param_persistence_threshold",
            "sub_group": "sub_group_size",
        }
        stage |= {names[key]: value for key in names if (value := getattr(job.zero, key)) is not None}
        settings: dict[str, Any] = {"zero_optimization": stage}
        settings |= dict.fromkeys(("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto")
        settings |= {key: {"enabled": "auto"} for key in ("bf16", "fp16")}
        yield f"deepspeed={literal(settings, 4)},"

    def _optimizer(self) -> str | None:
        row = OPTIMIZERS[self._job.training.optimizer]
        return next((name for name in row.trainer_names if name in _TRAINER_OPTIMIZERS), None)

    def _optimizer_class(self) -> tuple[str, Mapping[str, Any]] | None:
        """Return the class and its arguments where no name of the Trainer's says them."""
        rules, training = self._job.optimizer, self._job.training
        own = training.optimizer_class
        if own is None and self._optimizer() is not None and not training.optimizer_options:
            return None
        path = own or rules.torch_class
        if path is None:
            raise not_written(f"the Trainer has no setting for {rules.name}")
        if not self._trainer.takes_optimizers:
            name = self._trainer.name
            raise not_written(f"{name} takes no class of an optimizer, and optim has no name for {rules.name}")
        options = rules.torch_arguments if own is None else training.optimizer_options or {}
        return path.replace(":", "."), options


def image_shape(config: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return channels, height and width of a model's images."""
    size = config.get("image_size", 224)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return config.get("num_channels", 3), height, width


def _keywords(options: Mapping[str, Any]) -> list[str]:
    """Return keyword arguments; names of torch's and of the script's are written as they are."""
    names = ("torch.", "made")
    written = ((key, value, isinstance(value, str) and value.startswith(names)) for key, value in options.items())
    return [f"{key}={value if is_name else literal(value)}" for key, value, is_name in written]


def literal(value: Any, indent: int = 0) -> str:
    """Return a value as it is written in Python; what is too long for a line has one line for each item."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if not isinstance(value, (list, tuple, Mapping)) or not value:
        return repr(value)
    pad = " " * (indent + 4)
    if isinstance(value, Mapping):
        items = [f"{literal(key)}: {literal(each, indent + 4)}" for key, each in value.items()]
        opened, closed = "{", "}"
    else:
        items = [literal(each, indent + 4) for each in value]
        opened, closed = "[", "]"
    line = f"{opened}{', '.join(items)}{closed}"
    if len(line) + indent < _WIDTH - 24 and "\n" not in line:
        return line
    if not isinstance(value, Mapping) and all(isinstance(each, (int, float, str)) for each in value):
        return opened + "\n" + "\n".join(_filled(items, pad)) + "\n" + " " * indent + closed
    return opened + "\n" + "".join(f"{pad}{each},\n" for each in items) + " " * indent + closed


def _filled(items: list[str], pad: str) -> Iterator[str]:
    """Yield lines that are filled with items."""
    line = pad
    for each in items:
        if len(line) + len(each) > _WIDTH and line != pad:
            yield line.rstrip()
            line = pad
        line += f"{each}, "
    yield line.rstrip()
