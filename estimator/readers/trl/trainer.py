"""Reads what TRL's trainer of a method computes and holds: sequences, loss, models beside the trained one, generation.

Read from TRL's sources of versions 0.9 to 1.16 (``trl/trainer/*_trainer.py``, ``trl/experimental``).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from ...common.library_versions import older
from ...job.rules.strategies import DTYPE_NAMES
from ..arguments.table import doubt_arguments, record_arguments
from ..source.data_files import layer_of_setting
from ..source.evidence import MODEL_STATES, FindingCollector
from ..source.filesystem_view import FilesystemView
from ..source.settings import LayeredSettings, Setting, as_float, as_int, as_word, parse_digits, words_of
from ..source.versions import framework_with_version, is_at_least
from ..source.written_places import origin_of_bound
from .liger import read_liger
from .methods import TABLE, Method, Since

_NAMES = TABLE.aliases
_PREPARED = ("reference", "teacher")
"""Frozen models that all trainers give to DeepSpeed's engine (``prepare_deepspeed``)."""
LENGTH, _LOSS = "training.sequence_length", "training.loss"
_LOSS_OF_SCORES = {"log-probs": "log-probs", "divergence": "divergence"}
_CHUNKED_LIGER = (1, 14)
"""Since then ``use_liger_kernel`` of the preference and policy trainers is TRL's own chunked loss."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What decides which models there are, and how they lie in memory."""

    adapters: bool
    """Adapters are trained: the model with its adapters off is its own reference."""
    sharding: Literal["zero3", "fsdp"] | None
    """What shards the trained weights."""
    engine_dtype: str | None = None
    """The half type to which DeepSpeed's engine casts a frozen model that it is given; None: no such engine."""
    filesystem: FilesystemView
    """The files as the program sees them."""
    held: Sequence[tuple[Mapping[str, Any], str]] = ()
    """Models that the script itself loads and keeps, and where."""

    def holds(self, role: str) -> bool:
        """Return True if the script itself loads a model of a role."""
        return any(model["role"] == role for model, _ in self.held)

    def frozen(self, role: str, *, sharded: bool = False, **fields: str | None) -> dict[str, Any]:
        """Return an entry of ``other_models``; ZeRO 3 shards any. An id that is a folder's path becomes its full path.

        Args:
            role: the model's.
            sharded: FSDP shards it.
            fields: of the entry; those that are None are left out.
        """
        name = fields.get("id")
        if name is not None and name.startswith(("/", "./", "../", "~")) and role != "reference":
            fields["id"] = str(self.filesystem.resolve(name))
        if role in _PREPARED:
            fields["dtype"] = self.engine_dtype or fields.get("dtype")
        known = {key: value for key, value in fields.items() if value is not None}
        return {"role": role, **known, **({"sharded": True} if sharded or self.sharding == "zero3" else {})}


class TrlTrainer(msgspec.Struct, frozen=True, kw_only=True):
    """The trainer of a method, with all that is known about it."""

    method: Method
    settings: LayeredSettings
    """Settings by transformers' and TRL's names."""
    versions: Mapping[str, str]
    """Installed versions by distribution, where known."""
    findings: FindingCollector
    """Collects what is read."""

    @property
    def trl(self) -> str:
        """TRL with its version, as the beginning of a sentence."""
        return framework_with_version("trl", self.versions)

    def is_since(self, version: Since) -> bool:
        """Return True if TRL is not older; never for None."""
        return version is not None and is_at_least("trl", version, self.versions)

    def read_length(self, whole: Setting | None) -> None:
        """Record the sequences per example, the sequence length, and the tokens whose logits are computed.

        A prompt that no setting cuts leaves the length to the dataset: it is asked for.

        Args:
            whole: the longest that a sequence may be; None: nothing says so.
        """
        method, settings, findings = self.method, self.settings, self.findings
        key, generations = "training.sequences_per_example", as_int(settings.find("num_generations"))
        if method.sequences > 1:
            origin = f"TRL's {method.name}: each example is a chosen and a rejected sequence"
            findings.infer(key, method.sequences, origin)
        if method.name == "grpo" and generations and not self.is_since((0, 15)):
            origin = f"{self.trl}: the batch counts prompts, with num_generations each"
            findings.infer(key, generations, origin)
        prompt = None if settings.is_unset("max_prompt_length") else settings.find("max_prompt_length")
        completion = None if settings.is_unset(*_NAMES["completion"]) else settings.find(*_NAMES["completion"])
        prepared = settings.find("dataset_kwargs")
        if prepared is not None and whole is not None and not whole.written and "skip_prepare" in str(prepared.value):
            whole = None  # the script's own collator makes the sequences, and TRL cuts none
        if method.trains_value_model and prompt is None:
            prompt, whole = whole, None  # its configuration has no length: what is cut are the queries
        whole = settings.find("vllm_max_model_length", "vllm_max_model_len") or whole
        tokens = as_int(completion)
        if method.generation == "group":
            findings.record_from(completion, "training.loss_length", tokens)
        for bound in (whole, prompt, completion):
            if bound is not None and bound.written and as_int(bound) is None:
                findings.refuse(LENGTH, bound)
        given = (whole, sum_of_lengths(prompt, completion))
        bounds = [(number, bound) for bound in given if bound is not None and (number := as_int(bound))]
        if bounds:
            number, bound = min(bounds, key=lambda pair: pair[0])
            origin = bound.origin if settings.is_true("packing") else origin_of_bound(bound.origin)
            findings.record(LENGTH, number, origin, written=bound.written)
        elif tokens is None:
            findings.warn(f"{self.trl} does not truncate sequences here: set {LENGTH} to the longest in the dataset.")
        else:
            findings.warn(
                f"{self.trl} does not truncate {method.name} prompts here: set {LENGTH} to the dataset's longest "
                f"prompt plus {tokens} completion tokens."
            )

    def read_loss(self, *, own_loss: bool = True) -> None:
        """Record ``training.loss`` and whether a reference's forward pass follows the trained model's.

        Args:
            own_loss: TRL's trainer makes the loss; False: a tool's own, derived from it.
        """
        method, settings, findings = self.method, self.settings, self.findings
        loss, kernel = settings.find("loss_type"), read_liger(settings, findings)
        asks = method.scores == "likelihood" or self.is_since((0, 25))  # before, it was for SFT only
        liger = settings.find_true("use_liger_loss") or (kernel if asks else None)
        if method.reference_beside and not settings.is_true("precompute_ref_log_probs"):
            # even if it is the same model with its adapters off
            origin = f"TRL's {method.name}: its frozen model runs while the trained model's activations are kept"
            findings.infer("training.reference_pass", True, origin)
        doubt_arguments(TABLE, "likelihood", settings, findings)
        replaced = liger is not None and not liger.written  # by unsloth's, which asks for it unasked
        tiles = own_loss and not replaced and self.is_since(method.tiles_since)
        if tiles:
            origin = f"{self.trl} computes the loss of {method.name} without the logits"
            findings.infer(_LOSS, "chunked", origin)
        elif method.scores == "likelihood" and liger is not None:
            findings.record_from(liger, _LOSS, "unsloth" if replaced else "fused-linear")
        elif method.scores == "likelihood" and loss is not None and as_word(loss) == "chunked_nll":
            findings.record_from(loss, _LOSS, "chunked")
        elif method.scores == "likelihood" and loss is not None and as_word(loss) == "dft":
            findings.record(_LOSS, "log-probs", f"{loss.origin}: log-probabilities in {self.trl}", written=loss.written)
        elif method.scores in _LOSS_OF_SCORES and liger is not None and self.is_since(method.liger_since):
            findings.record_from(liger, _LOSS, "chunked" if self.is_since(_CHUNKED_LIGER) else "fused-log-probs")
        elif method.scores in _LOSS_OF_SCORES:
            if method.generation == "pair":
                sentence = f"{self.trl} takes log-probabilities of the completions only, which may need less memory."
                findings.doubt(sentence, "less", "logits", unless=_LOSS)
            origin = f"{self.trl} takes log-probabilities of {method.name} from all logits"
            findings.infer(_LOSS, _LOSS_OF_SCORES[method.scores], origin)

    def read_other_models(self, setup: Setup) -> None:
        """Record ``other_models``, all of them together, and what may be held besides."""
        method, findings = self.method, self.findings
        self.settings.find(*_NAMES["without_memory"])
        found = [*self._reference(setup), *self._teacher(setup), *self._scorers(setup)]
        self._quantize(model for model, _ in found)
        by_role = {model["role"]: model for model, _ in found}
        held = [
            ({**({"sharded": True} if by_role.get(model["role"], {}).get("sharded") else {}), **model}, origin)
            for model, origin in setup.held
        ]
        every = held + [(model, origin) for model, origin in found if not setup.holds(model["role"])]
        if every:
            origins = "; ".join(dict.fromkeys(origin for _, origin in every))
            findings.infer("other_models", [model for model, _ in every], origins)
        self._note_casts(setup)
        if method.partly_known:
            findings.warn(f"TRL's {method.name} is only partly supported: its other models and passes are not counted.")
            findings.add_uncertainty("more", "weights", "activations", "logits")
        if method.trains_value_model:
            findings.warn(f"TRL's {method.name} also trains a value model; its states and activations are not counted.")
            findings.add_uncertainty("more", *MODEL_STATES, "activations")

    @property
    def checkpoints_quantized(self) -> bool:
        """True where it checkpoints a quantized model whatever its arguments say (``sft_trainer.py`` until 0.7.1)."""
        quantized = self.settings.is_true("load_in_4bit") or self.settings.is_true("load_in_8bit")
        return quantized and self.method.name == "sft" and older(self.versions.get("trl"), 0, 7, 2)

    def _note_casts(self, setup: Setup) -> None:
        """Note weights that the trainer casts to fp32, which are counted as they are loaded."""
        method, settings, findings = self.method, self.settings, self.findings
        until = method.upcasts_quantized_until
        quantized = settings.is_true("load_in_4bit") or settings.is_true("load_in_8bit")
        if setup.adapters and quantized and setup.sharding is None and self.is_since(until):
            origin = f"{self.trl} uses 16-bit adapters over quantized weights and casts nothing to fp32"
            findings.infer("lora.kbit_preparation", False, origin)
            findings.infer("lora.adapter_dtype", "bf16", origin)
        elif setup.adapters and quantized and setup.sharding is None and until is not None:
            origin = f"{self.trl} prepares a quantized model for {method.name} (prepare_model_for_kbit_training)"
            findings.infer("lora.kbit_preparation", True, origin)
            self._doubt_casts()
        doubt_arguments(TABLE, "casts", settings, findings)

    def _quantize(self, models: Iterator[dict[str, Any]]) -> None:
        """Give the models that the script loads quantized the format of the trained one."""
        names, kind = words_of(self.settings.find("script_quantizes")), self.findings.get("lora.quantization")
        trained = self.findings.get("model.id")
        for model in models:
            if kind is not None and model.get("id", trained.value if trained is not None else None) in names:
                model["quantization"] = kind.value

    def _doubt_casts(self) -> None:
        """Doubt the embedding and the head over 4 bits, which the trainer casts back from fp32 under ``bf16`` alone."""
        settings, precision = self.settings, self.findings.get("training.precision")
        counted = precision is not None and precision.value == "bf16" and settings.is_true("load_in_4bit")
        by_default = settings.find("bf16_unless_fp16") is not None and settings.find("bf16") is None
        if counted and not settings.is_true("bf16") and (not by_default or settings.is_true("fp16")):
            sentence = f"{self.trl} leaves the embedding and the head in fp32 where bf16 is off; 16 bits are counted."
            self.findings.doubt(sentence, "more", "weights")

    def _reference(self, setup: Setup) -> Iterator[tuple[dict[str, Any], str]]:
        """Yield the frozen copy of the model, where the trainer makes or is given one."""
        method, settings = self.method, self.settings
        given, beta = settings.find("ref_model", "ref_model_name_or_path"), settings.find("beta")
        precomputed, forced = settings.is_true("precompute_ref_log_probs"), settings.is_true("force_use_ref_model")
        if method.reference == "none" or precomputed or (setup.adapters and given is None and not forced):
            return
        origin = f"{self.trl} holds a reference model for {method.name}"
        if method.reference == "if-beta" and beta is not None:
            if as_float(beta) == 0:
                return
            origin = f"{origin} with beta {beta.value} ({beta.origin})"
        origin = f"{origin} ({given.origin})" if given is not None else origin
        name, trained = next(iter(words_of(given)), None), self.findings.get("model.id")
        name = None if trained is not None and trained.value == name else name
        sharded = setup.sharding == "fsdp" and self.is_since(method.reference_sharded_since)
        dtype = DTYPE_NAMES.get(as_word(settings.find("frozen_dtype")) or "")  # of LLaMA-Factory
        yield setup.frozen("reference", sharded=sharded, id=name, dtype=dtype), origin

    def _teacher(self, setup: Setup) -> Iterator[tuple[dict[str, Any], str]]:
        named = self.settings.find("teacher_model_name_or_path", "teacher_model")
        options = self.settings.find("teacher_model_init_kwargs")
        is_elsewhere = self.settings.find("teacher_model_server_url") is not None
        if not self.method.teacher or is_elsewhere or setup.holds("teacher"):
            return
        if named is not None and (names := words_of(named)):
            yield setup.frozen("teacher", id=names[0], dtype=self._dtype(options, setup)), named.origin
            return
        self.findings.warn(f"The teacher of TRL's {self.method.name} is not named, so it is not counted.")
        self.findings.add_uncertainty("more", "weights")

    def _scorers(self, setup: Setup) -> Iterator[tuple[dict[str, Any], str]]:
        """Yield reward models; functions of the user's own may hold some, which nobody can see from here."""
        for name in _NAMES["scorer"] if self.method.scored else ():
            given = self.settings.find(name)
            for value in words_of(given):
                origin = given.origin if given is not None else ""
                if name == "reward_funcs" and "/" not in value and value not in _NAMES["function"]:
                    self.findings.warn(f"{origin}: GPU memory of the reward function {value} is not counted.")
                    self.findings.add_uncertainty("more", "weights")
                elif name != "reward_funcs" or "/" in value:
                    yield setup.frozen("reward", id=value, task="sequence-classification"), origin

    def _dtype(self, options: Setting | None, setup: Setup) -> str | None:
        layer = layer_of_setting(options, setup.filesystem, self.findings, key="other_models")
        return DTYPE_NAMES.get(as_word(layer.get("dtype") or layer.get("torch_dtype")) or "")

    def read_rollout(self, ranks: int | None) -> None:
        """Record ``rollout.*`` where the training process generates text, or holds a vLLM that does.

        Args:
            ranks: ranks of the whole job; None: unknown.
        """
        findings = self.findings
        vllm, mode = self.settings.find_true("use_vllm"), as_word(self.settings.find("vllm_mode"))
        device = self.settings.find("vllm_device")  # of TRL 0.14 to 0.16: that of its main process's vLLM
        index = parse_digits(str(device.value).removeprefix("cuda:")) if device is not None else None
        if self.method.generation == "none":
            return
        if vllm is None:
            self._read_own_generation(ranks)
        elif mode == "colocate":
            self._read_colocated(self.settings.find("vllm_mode"))
        elif mode is None and index is not None and ranks is not None and index < ranks:
            self._read_colocated(device)
        elif mode is not None:
            findings.warn(f"{vllm.origin}: vLLM serves from its own GPUs, which are not part of this job.")
        else:
            sentence = "vLLM is assumed to run on a GPU that training does not use; otherwise give [rollout]."
            findings.doubt(f"{vllm.origin}: {sentence}", "more", "weights", "activations", unless="rollout.engine")

    def _read_own_generation(self, ranks: int | None) -> None:
        """Record generation by transformers: the micro-batches whose sequences are generated at once."""
        settings, findings = self.settings, self.findings
        origin = f"{self.trl} generates text of {self.method.name} in the training process"
        findings.infer("rollout.engine", "transformers", origin)
        steps, prompt = self._steps_per_generation(ranks), settings.find("max_prompt_length")
        if steps is not None and (number := as_int(steps)) is not None and number > 1:
            findings.record_from(steps, "rollout.micro_batches", number)
        findings.record_from(prompt, "rollout.prompt_length", as_int(prompt))
        record_arguments(TABLE, "generation", settings, findings)
        doubt_arguments(TABLE, "generation", settings, findings)

    def _steps_per_generation(self, ranks: int | None) -> Setting | None:
        """Return the micro-batches of one generation: by default those of an optimizer step, since 0.18 or for PPO."""
        settings, accumulation = self.settings, self.findings.get("training.gradient_accumulation")
        if self.method.trains_value_model and accumulation is not None:
            parts = as_int(settings.find("num_mini_batches")) or 1
            why = f"{self.method.name} generates for a whole update: accumulation"
            return Setting.default(accumulation.value * parts, f"{why} ({accumulation.origin}) x num_mini_batches")
        if self.method.generation != "group" or not self.is_since((0, 18)):
            return None
        steps, whole = settings.find("steps_per_generation"), settings.find("generation_batch_size")
        if steps is not None and as_int(steps) is not None:
            return steps
        micro, total = self.findings.get("training.micro_batch"), as_int(whole)
        if whole is not None and total is not None and micro is not None:
            return whole.with_value(max(1, total // (micro.value * (ranks or 1))))
        if accumulation is None:
            return None
        return Setting.default(accumulation.value, f"steps_per_generation, by default the {accumulation.origin}")

    def _read_colocated(self, mode: Setting | None) -> None:
        """Record a vLLM in the training process, with a share of each GPU of its own, as ``mode`` says."""
        find, findings = self.settings.find, self.findings
        share = find("vllm_gpu_memory_utilization", "gpu_memory_utilization")
        findings.record_from(mode, "rollout.engine", "vllm")
        if share is not None and 0 < (fraction := as_float(share) or 0) <= 1:
            findings.record_from(share, "rollout.gpu_memory_utilization", fraction)
        elif share is not None:
            sentence = f"{share.origin}: {share.value!r} is not a share of a GPU; 0.3 is assumed for vLLM."
            findings.mark_uncertain("rollout.gpu_memory_utilization", sentence)
        record_arguments(TABLE, "vllm", self.settings, findings)


def sum_of_lengths(prompt: Setting | None, completion: Setting | None) -> Setting | None:
    """Return the length of the longest prompt with the longest completion; None if either has no bound."""
    first, second = as_int(prompt), as_int(completion)
    if prompt is None or completion is None or first is None or second is None:
        return None
    origin = f"longest prompt and completion ({'; '.join(dict.fromkeys((prompt.origin, completion.origin)))})"
    return Setting(value=first + second, origin=origin, written=prompt.written or completion.written)
