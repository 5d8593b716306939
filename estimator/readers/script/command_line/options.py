"""The options that a script declares, and their values on the command line: argparse, dataclasses, click, functions."""

import ast
import itertools
import pickletools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....common.untrusted_files import TooLargeError, read_file
from ...source.evidence import MODEL_STATES, Setting, as_bool
from ..python.imports import MAX_BYTES, parse
from ..python.values import (
    PLAIN,
    UNKNOWN,
    Attribute,
    Call,
    External,
    Function,
    Scope,
    ScriptClass,
    ScriptModule,
    Thing,
    as_number,
    plain,
)

# Names of the options that parsers make of library classes, by which argparse tells what an abbreviation stands for.
#
# They are those of all versions together: what is unique among them is unique in each version that has it. Source:
# transformers 4.30 to 5.23 (``TrainingArguments``, ``Seq2SeqTrainingArguments``), TRL 1.16 (its configurations).


# ruff: noqa: SIM905 - a list of two hundred strings is no easier to read

_TRAINER = frozenset(
    """
    accelerator_config activation_checkpointing activation_checkpointing_kwargs adafactor adam_beta1 adam_beta2
    adam_epsilon auto_find_batch_size average_tokens_across_devices batch_eval_metrics bf16 bf16_full_eval data_seed
    dataloader_drop_last dataloader_in_order dataloader_multiprocessing_context dataloader_num_workers
    dataloader_persistent_workers dataloader_pin_memory dataloader_prefetch_factor ddp_backend ddp_broadcast_buffers
    ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph ddp_timeout debug deepspeed disable_tqdm
    dispatch_batches do_eval do_predict do_train enable_jit_checkpoint eval_accumulation_steps eval_delay
    eval_do_concat_batches eval_on_start eval_steps eval_strategy eval_use_gather_object evaluation_strategy fp16
    fp16_backend fp16_full_eval fp16_opt_level fsdp fsdp_config fsdp_min_num_params
    fsdp_transformer_layer_cls_to_wrap full_determinism generation_config generation_max_length generation_num_beams
    gradient_accumulation_steps gradient_checkpointing gradient_checkpointing_kwargs greater_is_better
    group_by_length half_precision_backend hub_always_push hub_model_id hub_private_repo hub_revision hub_strategy
    hub_token ignore_data_skip include_for_metrics include_inputs_for_metrics include_num_input_tokens_seen
    include_tokens_per_second jit_mode_eval label_names label_smoothing_factor learning_rate length_column_name
    liger_kernel_config load_best_model_at_end local_rank log_level log_level_replica log_on_each_node logging_dir
    logging_first_step logging_nan_inf_filter logging_steps logging_strategy lr_scheduler_kwargs lr_scheduler_type
    max_grad_norm max_steps metric_for_best_model mp_parameters neftune_noise_alpha no_cuda num_train_epochs optim
    optim_args optim_target_modules output_dir overwrite_output_dir parallelism_config past_index
    per_device_eval_batch_size per_device_train_batch_size per_gpu_eval_batch_size per_gpu_train_batch_size
    predict_with_generate prediction_loss_only project push_to_hub push_to_hub_model_id push_to_hub_organization
    push_to_hub_token ray_scope remove_unused_columns report_to restore_callback_states_from_checkpoint
    resume_from_checkpoint run_name save_on_each_node save_only_model save_safetensors save_steps save_strategy
    save_total_limit seed sharded_ddp skip_memory_metrics sortish_sampler split_batches tf32 torch_compile
    torch_compile_backend torch_compile_mode torch_dtype torch_empty_cache_steps torchdynamo tpu_metrics_debug
    tpu_num_cores trackio_bucket_id trackio_space_id trackio_static_space_id train_sampling_strategy use_cache
    use_cpu use_ipex use_legacy_prediction_loop use_liger_kernel use_mps_device warmup_ratio warmup_steps
    weight_decay xpu_backend
    """.split()
)
_TRL = frozenset(
    """
    activation_offloading add_tail_bucket alpha assistant_only_loss attn_implementation beta beta1 beta2
    bnb_4bit_quant_storage bnb_4bit_quant_type cache_implementation callbacks cast_lm_head_to_fp32
    center_rewards_coefficient chat_template_kwargs chat_template_path columns completion_only_loss cpo_alpha
    data_dir data_files dataset_config dataset_kwargs dataset_name dataset_num_proc dataset_streaming
    dataset_test_split dataset_text_field dataset_train_split datasets delta desirable_weight
    diagnostics_flat_tolerance diagnostics_warning_interval disable_dropout discopop_tau distillation_add_tail
    distillation_alpha distillation_is_clip distillation_mode distillation_objective distillation_topk
    distillation_weight dont_reprompt_on_self_success ds3_gather_for_generation dtype entropy_coef
    entropy_coef_delta entropy_coef_max entropy_coef_min entropy_target environment_feedback_only_without_solution
    eos_token epsilon epsilon_high eval_packing f_alpha_divergence_coef f_divergence_type feedback_template
    filter_all_incorrect fork_threshold_tokens fraction generate_during_eval generate_from_teacher
    generation_batch_size generation_kwargs heartbeat_stale_after_s ignore_bias_buffers importance_sampling_level
    include_environment_feedback is_encoder_decoder iw_opd_epsilon iw_opd_gamma label_smoothing ld_alpha lmbda
    load_in_4bit load_in_8bit log_completions log_completions_hub_repo log_completions_steps log_multimodal
    log_unique_prompts lora_alpha lora_dropout lora_modules_to_save lora_r lora_target_modules
    lora_target_parameters lora_task_type loss_add_tail loss_top_k loss_type loss_weights mask_truncated_completions
    max_completion_length max_inflight_tasks max_length max_new_tokens max_prompt_length max_reprompt_len
    max_seq_length max_staleness max_tool_calling_iterations min_p missing_eos_penalty model_init_kwargs
    model_name_or_path model_revision multi_objective_aggregation name normalize_advantages num_completions_to_print
    num_generations num_generations_eval num_iterations num_loss_tokens_to_skip num_value_samples
    off_policy_mask_threshold packing packing_strategy pad_to_multiple_of pad_token padding_free padding_value path
    precompute_ref_batch_size precompute_ref_log_probs queue_maxsize ref_model_mixup_alpha ref_model_sync_steps
    remove_thinking_from_demonstration repetition_penalty reprompt_template request_timeout reverse_kl_top_1_mode
    reward_clip_range reward_model_path reward_weights router_aux_loss_coef sapo_temperature_neg
    sapo_temperature_pos scale_rewards seq_kd shuffle_dataset simpo_gamma solution_template split
    steps_per_generation streaming success_reward_threshold sync_ref_model teacher_model_init_kwargs
    teacher_model_kind teacher_model_name_or_path teacher_model_revision teacher_model_server_url
    teacher_prompt_template teacher_server_urls teacher_sync_steps teacher_temperature
    teacher_tokenizer_name_or_path teacher_top_k teacher_update_rate temperature test_split_size token_budget
    top_entropy_quantile top_k top_p tpo_alpha tpo_l_gamma transformers_continuous_batching_config truncation_mode
    trust_remote_code uld_crossentropy_weight uld_distillation_weight uld_hybrid_matched_weight
    uld_hybrid_unmatched_weight uld_skip_student_eos uld_skip_teacher_eos uld_student_temperature
    uld_teacher_temperature uld_token_merge_strategy uld_use_hybrid_loss undesirable_weight use_adaptive_entropy
    use_bias_correction_kl use_bnb_nested_quant use_dora use_extended_uld use_peft use_rslora
    use_successful_as_teacher use_teacher_server use_transformers_continuous_batching use_transformers_paged
    use_uld_loss use_vllm use_weighting vespo_k_neg vespo_k_pos vespo_lambda_neg vespo_lambda_pos
    vllm_enable_sleep_mode vllm_gpu_memory_utilization vllm_group_port vllm_importance_sampling_cap
    vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min vllm_importance_sampling_correction
    vllm_importance_sampling_mode vllm_max_model_length vllm_mode vllm_model_impl vllm_server_base_url
    vllm_server_host vllm_server_port vllm_server_timeout vllm_structured_outputs_regex vllm_sync_frequency
    vllm_tensor_parallel_size wandb_log_unique_prompts weight_sync_steps weight_sync_timeout
    """.split()
)
MEMORY_ARGUMENTS = frozenset(
    """
    per_device_train_batch_size gradient_accumulation_steps gradient_checkpointing activation_checkpointing
    max_length max_seq_length max_completion_length model_name_or_path attn_implementation dtype torch_dtype
    fp16 bf16 optim deepspeed fsdp fsdp_config use_liger_kernel use_peft lora_r lora_target_modules
    lora_modules_to_save load_in_4bit load_in_8bit num_generations use_vllm vllm_gpu_memory_utilization vllm_mode
    precompute_ref_log_probs use_dora teacher_model_name_or_path reward_model_path auto_find_batch_size
    """.split()
)
"""Options that decide the memory."""


def options_of_class(name: str) -> frozenset[str]:
    """Return the options of a library's class: ``TrainingArguments``, ``SFTConfig``, ``ModelConfig``."""
    if name.endswith("TrainingArguments"):
        return _TRAINER
    return _TRAINER | _TRL if name.endswith("Config") or name == "ScriptArguments" else frozenset()


_COUNTED_ACTIONS = ("store_true", "store_false", "BooleanOptionalAction")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """One option as the script declares it."""

    default: Any
    origin: str
    kind: str | None = None
    """The type that its text becomes: ``int``, ``float``, ``bool``, ``str``; None: that of the default."""
    is_list: bool = False


class Options:
    """The options of a script.

    Args:
        given: the flags on the command line by name.
        arguments: the words of the command line.
    """

    def __init__(self, given: Mapping[str, Setting], arguments: Sequence[str]) -> None:
        self.given, self.arguments = given, arguments
        self._words = list(itertools.takewhile(lambda word: not word.startswith("-"), arguments))
        self.declared: dict[str, Declared] = {}
        self.names: set[str] = set()
        """Names that the command line may have, and may abbreviate as argparse allows; empty: none are abbreviated."""
        self.has_unknown_names = False
        """It has options besides, or argparse is told to allow no abbreviations."""
        self.is_open = False
        """It has options besides that are not known by name."""
        self.sought: set[str] = set()
        """Options of the command line that the script asked for."""
        self.looked_up: list[str] = []
        """Options that the script looked at in the condition that is being followed."""
        self.assigned: dict[str, Setting] = {}
        """Options that the script assigns after it has parsed its command line, and not from an unknown value."""
        self.decisive: set[str] = set()
        """Options that decided a condition."""

    def defaults(self) -> Iterator[tuple[str, Setting]]:
        """Yield options as the script leaves them, with a known default, or as the command line has them.

        Their values may be None.
        """
        yield from self.assigned.items()
        for name, declared in self.declared.items():
            if name in self.assigned:
                continue
            if name in self.given and (given := self.find(name)) is not None:
                yield name, given
                continue
            value = plain(declared.default)
            if value is not UNKNOWN:
                yield name, Setting(value=value, origin=declared.origin)

    def find(self, name: str) -> Setting | None:
        """Return an option of the command line or its default, as the script gets it; None: unknown."""
        declared, given = self.declared.get(name), self.given.get(name)
        self.looked_up.append(name)
        self.sought.add(name)
        if given is None:
            value = declared.default if declared is not None else UNKNOWN
            return None if declared is None or value is UNKNOWN else Setting(value=value, origin=declared.origin)
        if declared is None:
            return given
        return given.with_value(convert(given.value, declared))

    def add_argument(self, call: Call) -> None:
        """Declare ``parser.add_argument("--batch", type=int, default=4)``."""
        flags = [word for word in call.args if isinstance(word, str)]
        self.is_open |= not flags or len(flags) < len(call.args)
        name = next((flag for flag in flags if flag.startswith("--")), flags[0] if flags else "")
        dest = call.value(None, "dest")
        key = dest if isinstance(dest, str) else name.lstrip("-").replace("-", "_")
        if not key:
            return
        action = call.value(None, "action")
        action = action.name if isinstance(action, External) else action
        if "default" in call.kwargs:
            default = call.kwargs["default"]
        elif action in ("store_true", "store_false"):
            default = action == "store_false"
        else:
            default = UNKNOWN if call.value(None, "required") else None
        kind = call.value(None, "type")
        word = kind.name if isinstance(kind, External) else None
        if action in _COUNTED_ACTIONS or isinstance(kind, Function) or (word and "bool" in word and word != "bool"):
            word = "flag"
        if not name.startswith("-"):
            if "default" not in call.kwargs and call.value(None, "nargs") not in ("?", "*"):
                default = UNKNOWN
            if self._words:
                default = convert(self._words.pop(0), Declared(default=None, origin="", kind=word))
        origin = f"{call.where}: default of {name}"
        is_list = call.value(None, "nargs") in ("+", "*") or isinstance(call.value(None, "nargs"), int)
        self.declared[key] = Declared(default=default, origin=origin, kind=word, is_list=is_list)
        self.names.update(flag.lstrip("-").replace("-", "_") for flag in flags if flag.startswith("--"))
        for flag in flags:  # a short name on the command line
            short = flag.lstrip("-").replace("-", "_")
            if short != key and short in self.given and key not in self.given:
                self.given = {**self.given, key: self.given[short]}

    def take_class(self, name: str) -> None:
        """Take the names of the options that a parser makes of a library's class."""
        names = options_of_class(name)
        self.names |= names
        self.has_unknown_names |= not names
        self.is_open |= not names

    def declare_class(self, kind: ScriptClass, run: Any) -> list[str]:
        """Declare the fields of a dataclass; return their names."""
        for name, node in kind.fields.items():
            value = kind.find(name)
            before, run.module = run.module, kind.module
            origin = f"{run.location(node)}: default of {name}"
            run.module = before
            annotation = ast.unparse(node.annotation)
            word = next((each for each in ("bool", "int", "float", "str") if each in annotation), None)
            is_list = "list" in annotation.lower()
            if node.value is None:
                value = UNKNOWN
            word = "flag" if word == "bool" else word
            self.names.add(name)
            self.declared[name] = Declared(
                default=value, origin=origin, kind=None if is_list else word, is_list=is_list
            )
        return list(kind.fields)

    def of_function(self, function: Function, run: Any) -> dict[str, Setting]:
        """Return the options of the command line that a function's parameters stand for (fire, typer, tyro)."""
        found: dict[str, Setting] = {}
        self.is_open = True
        arguments = function.node.args
        for parameter in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            default = function.defaults.get(parameter.arg, UNKNOWN)
            annotation = ast.unparse(parameter.annotation) if parameter.annotation is not None else ""
            word = next((each for each in ("bool", "int", "float", "str") if each in annotation), None)
            declared = Declared(
                default=default,
                origin=f"{run.location(parameter)}: default of {parameter.arg}",
                kind="flag" if word == "bool" else word,
                is_list="list" in annotation.lower(),
            )
            if parameter.arg in self.given:
                self.decisive.add(parameter.arg)
                given = self.given[parameter.arg]
                found[parameter.arg] = given.with_value(convert(given.value, declared))
            elif default is not UNKNOWN:
                found[parameter.arg] = Setting(value=default, origin=declared.origin)
        return found

    def click_option(self, call: Call) -> None:
        """Declare ``@click.option("--batch", default=4)`` for the function below it."""
        function = call.args[0]
        self.is_open = True
        parser = Call(call.run, call.node, "add_argument", None, call.args[1:], dict(call.kwargs))
        if call.value(None, "is_flag") and "default" not in call.kwargs:
            parser.kwargs["default"] = False
        flags = [str(word).partition("/")[0] for word in parser.args if isinstance(word, str)]
        parser.args = [flag for flag in flags if flag.startswith("-")] or flags
        named = next((flag for flag in flags if not flag.startswith("-")), None)
        if named is not None:
            parser.kwargs["dest"] = named
        self.add_argument(parser)
        key = next(reversed(self.declared), "")
        found = self.find(key)
        self.decisive.add(key)
        if isinstance(function, Function) and key:
            setting = found or Setting(value=UNKNOWN, origin="")
            function.options = {**(function.options or {}), key: setting}


def convert(value: Any, declared: Declared) -> Any:
    """Return the text of an option as the type that the script gives it."""
    if isinstance(value, list):
        return [convert(item, Declared(default=None, origin="", kind=declared.kind)) for item in value]
    if declared.is_list and isinstance(value, str) and value.startswith("[") and value.endswith("]"):
        return [word.strip().strip("'\"") for word in value[1:-1].split(",") if word.strip()]  # as fire reads it
    kind = declared.kind
    if kind is None and isinstance(declared.default, bool | int | float):
        kind = {bool: "flag", int: "int", float: "float"}[type(declared.default)]
    if kind == "flag":
        known = as_bool(Setting(value=value, origin=""))
        return value if known is None else known
    if kind == "bool":
        return value if isinstance(value, bool) else bool(value)
    converted: Any = value
    if isinstance(value, str) and kind == "int":
        converted = as_number(value)
    elif isinstance(value, str) and kind == "float":
        try:
            converted = float(value)
        except ValueError:
            converted = UNKNOWN
    return [converted] if declared.is_list else converted


# Files that a script opens and executes over its own names, as nanoGPT's configurator does, and its names as a table.
#
# A file is parsed like the script itself; nothing is executed and nothing is unpickled.


_MAX_DEPTH = 6
"""Files that execute files."""
_MAX_TABLE_BYTES = 4 << 20
_TABLE_SUFFIXES = (".pkl", ".pickle")
_PREPARED = ("train.bin", "train.npy", "train.pt")
"""Data that lies beside such a table once it is prepared."""


class OpenedFile(Thing):
    """``open("configurator.py")``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def attribute(self, name: str) -> Any:
        """Return a method."""
        return Attribute(self, name)

    def method(self, call: Call) -> Any:
        """Return the contents, which can only be executed."""
        return FileContents(self.path) if call.name == "read" and not call.args else UNKNOWN


class FileContents(Thing):
    """The contents of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def attribute(self, name: str) -> Any:
        """Return a method."""
        return Attribute(self, name)


class PickledTable(Thing):
    """``pickle.load(file)``: numbers of a table are found in the file's instructions, which are not followed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def attribute(self, name: str) -> Any:
        """Return a method."""
        return Attribute(self, name)

    def method(self, call: Call) -> Any:
        """Return the result of ``get``."""
        return self.item(call.value(0)) if call.name == "get" else UNKNOWN

    def item(self, key: Any) -> Any:
        """Return the number that follows a key."""
        return _number_after(self._path, key) if isinstance(key, str) else UNKNOWN


class OwnNames(Thing):
    """``globals()``: the names of a module.

    Args:
        scope: the module's.
        options: the script's, for the flags that names are set by.
    """

    def __init__(self, scope: Scope, options: Options) -> None:
        self.scope, self._options = scope, options

    def attribute(self, name: str) -> Any:
        """Return a method."""
        return Attribute(self, name)

    def elements(self) -> list[Any]:
        """Return the names."""
        return list(self.scope.names)

    def has(self, name: Any) -> bool:
        """Return whether there is a name."""
        return isinstance(name, str) and name in self.scope.names

    def item(self, key: Any) -> Any:
        """Return the value of a name."""
        return self.scope.names.get(key, UNKNOWN) if isinstance(key, str) else UNKNOWN

    def set_item(self, key: Any, value: Any, call: Call) -> None:
        """Assign a name; the flag of that name on the command line is where its value comes from."""
        if isinstance(key, str):
            self.scope.assign(key, value)
            given = self._options.given.get(key)
            if given is not None and isinstance(value, PLAIN):
                self.scope.origins[key] = given.with_value(value)
            else:
                self.scope.places[key] = call.where

    def method(self, call: Call) -> Any:
        """Return the result of a table's method."""
        if call.name in ("items", "keys", "values"):
            pairs = list(self.scope.names.items())
            return pairs if call.name == "items" else [pair[call.name == "values"] for pair in pairs]
        if call.name == "get":
            found = self.item(call.value(0))
            return call.value(1, default=None) if found is UNKNOWN and not self.has(call.value(0)) else found
        if call.name == "update" and isinstance(call.value(0), dict):
            for key, value in call.args[0].items():
                self.set_item(key, value, call)
        return UNKNOWN


class Signature(Thing):
    """``inspect.signature(torch.optim.AdamW)``, whose parameters scripts look for: those of torch since version 2."""

    _PARAMETERS = ("params", "lr", "betas", "eps", "weight_decay", "fused", "foreach", "capturable", "maximize")

    def attribute(self, name: str) -> Any:
        """Return the parameters."""
        return self if name == "parameters" else Attribute(self, name)

    def has(self, name: Any) -> bool | None:
        """Return whether there is a parameter; None: unknown."""
        return True if name in self._PARAMETERS else None


def _open(options: Options, call: Call) -> Any:
    name, mode = call.value(0, "file"), call.value(1, "mode", default="r")
    path = call.run.find_file(name) if isinstance(name, str) and isinstance(mode, str) and "r" in mode else None
    return UNKNOWN if path is None else OpenedFile(path)


def _load_pickle(options: Options, call: Call) -> Any:
    file = call.value(0, "file")
    return PickledTable(file.path) if isinstance(file, OpenedFile) else UNKNOWN


def _exists(options: Options, call: Call) -> Any:
    """Look for a table that is prepared with the data; whether other files exist may have changed since."""
    name = call.value(0)
    if not isinstance(name, str) or not name.endswith(_TABLE_SUFFIXES):
        return UNKNOWN
    if call.run.find_file(name) is not None:
        return True
    beside = name.rpartition("/")[0]
    prepared = any(call.run.find_file(f"{beside}/{data}") is not None for data in _PREPARED)
    if not prepared:
        sentence = f"{call.where}: {name} does not exist yet; the model is counted without it."
        components = (*MODEL_STATES, "logits")
        call.run.library.notes.doubt(sentence, *components, direction="less")
    return False


def _own_names(options: Options, call: Call) -> Any:
    return OwnNames(call.scope.outermost(), options) if call.scope is not None else UNKNOWN


def _signature(options: Options, call: Call) -> Any:
    path = getattr(call.value(0), "path", "")
    return Signature() if isinstance(path, str) and path.startswith("torch.optim.") else UNKNOWN


def _execute(options: Options, call: Call) -> Any:
    """Follow ``exec(open("config.py").read())``; what else is executed is unknown."""
    contents, run = call.value(0), call.run
    if not isinstance(contents, FileContents) or call.scope is None or run.executing >= _MAX_DEPTH:
        return run.library.execute_unknown(call)
    try:
        tree = parse(read_file(contents.path, MAX_BYTES), contents.path)
    except (OSError, TooLargeError, SyntaxError, ValueError, RecursionError, MemoryError):
        return run.library.execute_unknown(call)
    names = call.value(1, "globals")
    scope = names.scope if isinstance(names, OwnNames) else call.scope
    before = run.module
    run.module = ScriptModule(contents.path.name, before.path, scope)
    run.executing += 1
    try:
        run.block(tree.body, scope)
    finally:
        run.executing -= 1
        run.module = before
    return None


def setting_of_name(scope: Scope, name: str, script: str) -> Setting | None:
    """Return the value that a name of a module has at the end, and where it comes from; None: unknown, or no number."""
    value = scope.names.get(name, UNKNOWN)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    given = scope.origins.get(name)
    if given is not None and given.value == value:
        return given
    return Setting(value=value, origin=f"{scope.places.get(name, script)}: {name} = {value}")


def _number_after(path: Path, key: str) -> Any:
    """Return the number that a pickled table has for a key, from its instructions as they stand in the file."""
    found: Any = UNKNOWN
    at_key = False
    try:
        for instruction, argument, _ in pickletools.genops(read_file(path, _MAX_TABLE_BYTES)):
            if at_key and isinstance(argument, int) and "INT" in instruction.name:
                if found is not UNKNOWN and found != argument:
                    return UNKNOWN
                found, at_key = argument, False
            elif isinstance(argument, str) and argument == key:
                at_key = True
            elif instruction.name not in ("MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT"):
                at_key = False
    except Exception:  # noqa: BLE001 - a file of any bytes
        return UNKNOWN
    return found


_Handler = Callable[[Options, Call], Any]
FILE_FUNCTIONS: Mapping[str, _Handler] = {
    "open": _open,
    "exec": _execute,
    "globals": _own_names,
    **dict.fromkeys(("pickle.load", "cPickle.load"), _load_pickle),
    **dict.fromkeys(("os.path.exists", "os.path.isfile"), _exists),
    "inspect.signature": _signature,
}
"""By a function's dotted name."""
