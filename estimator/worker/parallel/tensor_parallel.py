"""Tensor parallelism by plan: the model's own or the user's, in styles of ``torch.distributed.tensor``."""

from __future__ import annotations

import contextlib
import inspect
import re
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, SequenceParallel

from ..model.build import has_tied_head, transformer_blocks, without_adapters
from ..request.protocol import RefusedError, UnsupportedError
from ..request.user_code import import_attribute, refusing_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ..request.request import Request


def load_user_plan(model: Any, request: Request) -> dict[str, Any] | None:
    """Return the user's plan for this model, styles by module; None: the job names no plan.

    Raises:
        RefusedError: the plan cannot be imported, or is no dict.
    """
    name, folder = request.parallel.tensor_plan, request.code.folder if request.code else ""
    if name is None or isinstance(name, dict):
        return name
    if ":" not in name:  # a.b.plan
        name = ":".join(name.rpartition(".")[::2])
    plan = import_attribute(name, folder)
    if callable(plan):
        with refusing_errors(name, folder):
            given = (without_adapters(model),)
            plan = plan(*given if _takes_arguments(plan) else ())
    if not isinstance(plan, dict):
        raise RefusedError(f"{name} gives a {type(plan).__name__}, not a dict of styles by module")
    return plan


def _takes_arguments(function: Any) -> bool:
    """Return True if a function takes the model; AutoModel calls plans without arguments."""
    keywords = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    return any(each.kind not in keywords for each in inspect.signature(function).parameters.values())


def apply_tensor_parallelism(
    model: Any, mesh: Any, *, plan: dict[str, Any] | None = None, sequence_parallel: bool = False
) -> None:
    """Split a model over a one-dimensional mesh, in place.

    Args:
        model: with or without adapters.
        mesh: of the tensor-parallel ranks.
        plan: the user's, styles by module; the model's own by default.
        sequence_parallel: split norms and residuals along the sequence as well.

    Raises:
        UnsupportedError: there is no plan, or it names an unknown style or a module that the model does not have.
    """
    from torch.distributed.tensor.parallel import parallelize_module

    base = without_adapters(model)
    _refuse_adapted_parameters(base)
    tied = has_tied_head(base)
    plan = _model_plan(base) if plan is None else _complete_user_plan(base, plan)
    parameters = {name for name, _ in base.named_parameters()}
    for name in [name for name in plan if name in parameters]:
        split_planned_parameter(base, name, plan.pop(name), mesh)
    styles = {name: module_style(style, getattr(base, "config", None)) for name, style in plan.items()}
    if sequence_parallel:
        styles = add_sequence_parallelism(base, styles, mesh)
    modules = dict(base.named_modules())
    for name, style in styles.items():
        if style is None:
            continue
        module = modules[name]
        for part in (getattr(module, "base_layer", module), *adapter_matrices(module, style)):
            parallelize_module(part, mesh, style)
    if tied:
        _tie_head_again(base)


def expand_plan(model: Any, patterns: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a plan with layer numbers in place of ``*``, and the patterns that match nothing in the model."""
    names = [name for name, _ in model.named_modules()] + [name for name, _ in model.named_parameters()]
    plan: dict[str, Any] = {}
    unused = []
    for pattern, style in patterns.items():
        expression = re.compile(re.escape(pattern).replace(r"\*", r"\d+"))
        matches = [name for name in names if expression.fullmatch(name)]
        plan.update(dict.fromkeys(matches, style))
        if not matches:
            unused.append(pattern)
    return plan, unused


def _model_plan(model: Any) -> dict[str, str]:
    """Return the model's own plan, expanded: ``{"model.layers.0.self_attn.q_proj": "colwise", ...}``."""
    patterns = getattr(model, "tp_plan", None) or getattr(model, "_tp_plan", None)
    if not patterns:
        raise UnsupportedError(f"{type(model).__name__} has no plan for tensor parallelism")
    return expand_plan(model, patterns)[0]


def _complete_user_plan(model: Any, patterns: dict[str, Any]) -> dict[str, Any]:
    """Return the user's plan, expanded; all of its patterns must match."""
    expanded, unused = expand_plan(model, patterns)
    if unused:
        raise UnsupportedError(f"parallel.tensor_plan names {unused[0]}, which {type(model).__name__} does not have")
    return expanded


def _refuse_adapted_parameters(model: Any) -> None:
    """Refuse adapters on fused experts: peft adds them to whole parameters, which no plan splits."""
    for name, module in model.named_modules():
        if type(module).__name__ == "ParamWrapper":
            raise UnsupportedError(f"adapters on fused experts ({name}) cannot be traced under tensor parallelism")


def _tie_head_again(model: Any) -> None:
    """Make the head's weight the embedding's again, where both were split the same way."""
    head, tokens = model.get_output_embeddings(), model.get_input_embeddings()
    if isinstance(tokens.weight, DTensor) and tokens.weight.placements == head.weight.placements:
        head.weight = tokens.weight


# Tensor-parallel styles of transformers' plans that torch does not have.
#
# A module runs on this rank's shard of its parameters as ordinary tensors, as transformers 5.23 runs it
# (``distributed/tensor_parallel.py``): its input is whole, its output a shard, or summed over the ranks.


SEQUENCE_DIMENSION = 1
"""The dimension of hidden states that sequence parallelism splits."""


class LocalStyle(ParallelStyle):  # type: ignore[misc] # torch is not type-checked
    """Runs the module's forward pass on this rank's shard of its parameters (``local_params``)."""

    def _apply(self, module: Any, mesh: Any) -> Any:
        self.split_parameters(module, mesh)
        forward = module.forward

        def run(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = self.transform_inputs(args, kwargs, mesh)
            with local_parameters(module):
                output = forward(*args, **kwargs)
            return None if output is None else self.transform_output(output, mesh)

        module.forward = run
        return module

    def split_parameters(self, module: Any, mesh: Any) -> None:
        """Split the module's own parameters; by default, the plan names each of them itself."""

    def transform_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any], _mesh: Any) -> tuple[Any, Any]:
        """Return the arguments of the forward pass."""
        return args, kwargs

    def transform_output(self, output: Any, _mesh: Any) -> Any:
        """Return the module's output."""
        return output


class PackedColumns(LocalStyle):
    """A linear layer whose output is two parts of equal size, each split by columns (``packed_colwise``)."""

    def split_parameters(self, module: Any, mesh: Any) -> None:
        """Split the module's own parameters."""
        for name, parameter in list(module.named_parameters(recurse=False)):
            split_parameter(module, name, max(parameter.ndim - 2, 0), mesh)

    def transform_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: Any) -> tuple[Any, Any]:
        """Return the arguments of the forward pass."""
        return (AllReduceGradients.apply(args[0], mesh.get_group()), *args[1:]), kwargs


class PackedRows(LocalStyle):
    """A linear layer whose input is two parts, each split (``packed_rowwise``)."""

    def split_parameters(self, module: Any, mesh: Any) -> None:
        """Split the module's own parameters."""
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.ndim > 1:
                split_parameter(module, name, parameter.ndim - 1, mesh)

    def transform_output(self, output: Any, mesh: Any) -> Any:
        """Return the module's output."""
        return AllReduceOutputs.apply(output, mesh.get_group())


class TensorParallelExperts(LocalStyle):
    """Every rank runs its shard of every expert; the outputs are summed over the ranks (``moe_tp_experts``)."""

    def transform_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: Any) -> tuple[Any, Any]:
        """Return the arguments of the forward pass."""
        given = [_without_dtensor(value) for value in args]
        # hidden states and routing weights: every rank computes a part of their gradients
        summed = [
            AllReduceGradients.apply(value, mesh.get_group()) if position != 1 and _is_float(value) else value
            for position, value in enumerate(given)
        ]
        return tuple(summed), kwargs

    def transform_output(self, output: Any, mesh: Any) -> Any:
        """Return the module's output."""
        return AllReduceOutputs.apply(output, mesh.get_group())


class IdentityExpert(LocalStyle):
    """An expert that returns its input, divided by the number of ranks because their outputs are summed."""

    def transform_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: Any) -> tuple[Any, Any]:
        """Return the arguments of the forward pass."""
        return (args[0] / mesh.size(), *args[1:]), kwargs


class AllReducedOutput(LocalStyle):
    """A module whose output is summed over the ranks (``all_reduce``, ``gather``)."""

    def transform_output(self, output: Any, mesh: Any) -> Any:
        """Return the module's output."""
        partial = output if isinstance(output, DTensor) else DTensor.from_local(output, mesh, [Partial()])
        return partial.redistribute(placements=[Replicate()]).to_local()


class LatentKeyValueProjection(LocalStyle):
    """DeepSeek's down-projection of keys and values: each rank's heads read the rotary part of its output directly.

    Args:
        rotary_size: elements of that part (``qk_rope_head_dim``).
    """

    def __init__(self, rotary_size: int) -> None:
        super().__init__()
        self.rotary_size = rotary_size

    def transform_output(self, output: Any, mesh: Any) -> Any:
        """Return the module's output."""
        latent, rotary = output.split([output.shape[-1] - self.rotary_size, self.rotary_size], dim=-1)
        return torch.cat([latent, AllReduceGradients.apply(rotary, mesh.get_group())], dim=-1)


class GatheredSequence(ParallelStyle):  # type: ignore[misc] # torch is not type-checked
    """Sequence parallelism around a module: all-gathers its input, and splits its output if that is whole.

    Args:
        split_output: the module returns the whole sequence (a mixture of experts), of which this rank keeps its shard.
        as_dtensor: pass the gathered input as a DTensor, so that its gradients are reduced once for all its uses.
    """

    def __init__(self, *, split_output: bool, as_dtensor: bool) -> None:
        super().__init__()
        self.split_output = split_output
        self.as_dtensor = as_dtensor

    def _apply(self, module: Any, mesh: Any) -> Any:
        _transform_hidden_states(module, lambda part: self.gather(part, mesh))
        if self.split_output:
            module.register_forward_hook(lambda _module, _args, output: _split_output_sequence(output, mesh))
        return module

    def gather(self, part: Any, mesh: Any) -> Any:
        """Return the whole sequence, gathered from the ranks' shards."""
        whole = DTensor.from_local(part, mesh, [Shard(SEQUENCE_DIMENSION)]).redistribute(placements=[Replicate()])
        return whole if self.as_dtensor else whole.to_local(grad_placements=[Partial()])


class SplitInputSequence(ParallelStyle):  # type: ignore[misc] # torch is not type-checked
    """A module whose input is split along the sequence: the first block, which reads the embedding's output."""

    def _apply(self, module: Any, mesh: Any) -> Any:
        _transform_hidden_states(module, lambda whole: split_sequence(whole, mesh))
        return module


class GatheredOutput(ParallelStyle):  # type: ignore[misc] # torch is not type-checked
    """A module whose output is gathered along the sequence: the last norm, before a head that is not split."""

    def _apply(self, module: Any, mesh: Any) -> Any:
        sequence = GatheredSequence(split_output=False, as_dtensor=False)
        module.register_forward_hook(lambda _module, _args, output: sequence.gather(output, mesh))
        return module


class AllReduceGradients(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    """The identity, whose gradients are summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, group: Any) -> Any:
        """Called by autograd."""
        ctx.group = group
        return tensor

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Called by autograd."""
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class AllReduceOutputs(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    """A sum over the ranks, in place; gradients are not changed."""

    @staticmethod
    def forward(_ctx: Any, tensor: Any, group: Any) -> Any:
        """Called by autograd."""
        dist.all_reduce(tensor, group=group)
        return tensor

    @staticmethod
    def backward(_ctx: Any, gradient: Any) -> Any:
        """Called by autograd."""
        return gradient, None


def split_parameter(module: Any, name: str, dimension: int, mesh: Any) -> None:
    """Replace one parameter by this rank's shard, split along one dimension."""
    parameter = module._parameters.get(name)
    if parameter is not None and not isinstance(parameter, DTensor):
        part = distribute_tensor(parameter.detach(), mesh, [Shard(dimension)], src_data_rank=None)
        module._parameters[name] = torch.nn.Parameter(part, requires_grad=parameter.requires_grad)


def split_sequence(tensor: Any, mesh: Any) -> Any:
    """Return this rank's shard of hidden states that every rank holds whole."""
    whole = tensor if isinstance(tensor, DTensor) else DTensor.from_local(tensor, mesh, [Replicate()])
    return whole.redistribute(placements=[Shard(SEQUENCE_DIMENSION)]).to_local()


@contextlib.contextmanager
def local_parameters(module: Any) -> Iterator[None]:
    """Replace the module's own DTensors by this rank's shards, as ordinary tensors."""
    split = {name: value for name, value in module._parameters.items() if isinstance(value, DTensor)}
    module._parameters.update({name: value.to_local() for name, value in split.items()})
    try:
        yield
    finally:
        module._parameters.update(split)


def _transform_hidden_states(module: Any, transform: Callable[[Any], Any]) -> None:
    """Apply a function to the hidden states that go into a module: its first argument, or ``hidden_states``."""

    def run(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return (transform(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": transform(kwargs["hidden_states"])}

    module.register_forward_pre_hook(run, with_kwargs=True)


def _split_output_sequence(output: Any, mesh: Any) -> Any:
    if isinstance(output, tuple):
        return (split_sequence(output[0], mesh), *output[1:])
    return split_sequence(output, mesh)


def _without_dtensor(value: Any) -> Any:
    return value.to_local() if isinstance(value, DTensor) else value


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


# Sequence parallelism with tensor parallelism: norms and residuals are split along the sequence.
#
# The layout of torchtitan's Llama plan (``models/llama3/infra/parallelize.py``) and of Megatron-LM
# (arXiv:2205.05198): norms work on a shard, attention and MLP all-gather it, and their last projection
# reduce-scatters the result. transformers takes the length of positions and masks from the embedding's output, which
# therefore stays whole until the first block.


def add_sequence_parallelism(model: Any, styles: dict[str, Any], mesh: Any) -> dict[str, Any]:
    """Return a plan with the styles that sequence parallelism adds and changes.

    Args:
        model: without its adapters' wrapper.
        styles: by module; None leaves a module as it is.
        mesh: of the tensor-parallel ranks.

    Raises:
        UnsupportedError: the model does not name its blocks, or has no final norm after them.
    """
    blocks = transformer_blocks(model)
    if not blocks:
        raise UnsupportedError(
            f"{type(model).__name__} does not name the blocks that sequence parallelism runs through"
        )
    plan = dict(styles)
    for name, block in blocks.items():
        for child_name, child in block.named_children():
            plan.update(_child_styles(child, f"{name}.{child_name}", styles))
    SplitInputSequence()._apply(next(iter(blocks.values())), mesh)
    _gather_after_blocks(model, blocks, plan, mesh)
    return plan


def _child_styles(child: Any, path: str, styles: dict[str, Any]) -> dict[str, Any]:
    """Return the styles for a child of a block: a norm, attention, an MLP or a mixture of experts."""
    if _is_norm(child):
        return {path: SequenceParallel(use_local_output=True)}
    inside = {key: style for key, style in styles.items() if key.startswith(f"{path}.") and style is not None}
    rowwise = [key for key, style in inside.items() if isinstance(style, RowwiseParallel)]
    mixture = any(isinstance(style, TensorParallelExperts) for style in inside.values())
    if rowwise and not mixture:
        as_dtensor = _are_linears_split(child, path, inside)
        plan: dict[str, Any] = {path: GatheredSequence(split_output=False, as_dtensor=as_dtensor)}
        for key in rowwise:
            plan[key] = RowwiseParallel(
                input_layouts=styles[key].input_layouts[0], output_layouts=Shard(SEQUENCE_DIMENSION)
            )
        return plan
    if any(True for _ in child.parameters()):
        return {path: GatheredSequence(split_output=True, as_dtensor=False)}
    return {}


def _gather_after_blocks(model: Any, blocks: dict[str, Any], plan: dict[str, Any], mesh: Any) -> None:
    """Let the final norm work on a shard, and gather its output for the head, or in the head if that is split."""
    parent = next(iter(blocks)).rpartition(".")[0].rpartition(".")[0]  # model.layers.0 -> model
    body = model.get_submodule(parent)
    norms = [name for name, child in body.named_children() if _is_norm(child)]
    if not norms:
        raise UnsupportedError(f"{type(model).__name__} has no norm after its blocks, where sequence parallelism ends")
    norm = ".".join(filter(None, (parent, norms[-1])))
    plan[norm] = SequenceParallel(use_local_output=True)
    head = model.get_output_embeddings()
    names = [name for name, module in model.named_modules() if head is not None and module is head]
    style = plan.get(names[0]) if names else None
    if isinstance(style, ColwiseParallel):
        plan[names[0]] = ColwiseParallel(
            input_layouts=Shard(SEQUENCE_DIMENSION), output_layouts=style.output_layouts[0]
        )
    else:
        GatheredOutput()._apply(model.get_submodule(norm), mesh)


def _are_linears_split(module: Any, path: str, styles: dict[str, Any]) -> bool:
    """Return True if every linear layer in the module is split, so that no whole weight meets a DTensor."""
    linear = [name for name, part in module.named_modules() if isinstance(part, torch.nn.Linear)]
    return all(f"{path}.{name}" in styles for name in linear)


def _is_norm(module: Any) -> bool:
    return "norm" in type(module).__name__.lower()


# Styles that tensor-parallel plans name: what each stands for, on modules and on single parameters.


WHOLE_STYLES = ("replicate", "replicated_with_grad_allreduce", "ep_router")
"""Styles that leave parameters whole on every rank; their gradients are summed in place, without temporary memory."""
MODULE_STYLES: dict[str, Callable[[], Any]] = {
    "colwise": ColwiseParallel,
    "colwise_rep": lambda: ColwiseParallel(output_layouts=Replicate()),
    "colwise_gather_output": lambda: ColwiseParallel(output_layouts=Replicate()),
    "embedding_colwise": lambda: ColwiseParallel(output_layouts=Replicate()),
    "rowwise": RowwiseParallel,
    "rowwise_rep": lambda: RowwiseParallel(input_layouts=Replicate()),
    "rowwise_split_input": lambda: RowwiseParallel(input_layouts=Replicate()),
    "embedding_rowwise": lambda: RowwiseParallel(input_layouts=Replicate()),
    "sequence_parallel": lambda: SequenceParallel(use_local_output=True),
    "packed_colwise": PackedColumns,
    "packed_rowwise": PackedRows,
    "moe_tp_experts": TensorParallelExperts,
    "moe_identity_expert": IdentityExpert,
    "all_reduce": AllReducedOutput,
    "gather": AllReducedOutput,
    "local": LocalStyle,
    "local_params": LocalStyle,
}
"""Styles of transformers' plans as styles that torch applies to a module."""
COLUMN, ROW = -2, -1
SPLIT_DIMENSIONS: dict[str, int] = {
    **dict.fromkeys(("colwise", "colwise_rep", "colwise_gather_output", "packed_colwise"), COLUMN),
    **dict.fromkeys(("rowwise", "rowwise_rep", "rowwise_split_input", "packed_rowwise"), ROW),
    **dict.fromkeys(("embedding_rowwise", "grouped_gemm"), 0),
    "embedding_colwise": 1,
}
"""The dimension that a style splits of a parameter named in the plan itself, such as a layer's fused experts."""


def module_style(style: Any, config: Any = None) -> Any:
    """Return a plan's style as one that torch applies to a module; None: the module is not changed.

    Args:
        style: its name in a plan of transformers, or a style of torch's, which is returned as it is.
        config: of the model, for styles that depend on it.

    Raises:
        UnsupportedError: there is no such style.
    """
    if isinstance(style, ParallelStyle):
        return style
    if style in WHOLE_STYLES:
        return None
    if style == "mla_kv_a_proj":
        return LatentKeyValueProjection(config.get_text_config().qk_rope_head_dim)
    name = str(style)
    make = MODULE_STYLES.get(name) or MODULE_STYLES.get(_without_local(name))
    if make is None:
        raise UnsupportedError(f"the tensor-parallel style {style!r} cannot be traced")
    return make()


def split_planned_parameter(model: Any, name: str, style: Any, mesh: Any) -> None:
    """Split one parameter that the plan names itself.

    Raises:
        UnsupportedError: there is no such style.
    """
    path, _, leaf = name.rpartition(".")
    owner = model.get_submodule(path)
    style_name = _without_local(str(style))
    dimension = SPLIT_DIMENSIONS.get(style_name)
    if dimension is None:
        if style_name not in WHOLE_STYLES:
            raise UnsupportedError(f"the tensor-parallel style {style!r} of {name} cannot be traced")
        return
    if dimension == ROW and leaf == "bias":  # added after the ranks' outputs are summed: whole on every rank
        return
    if dimension < 0:
        dimension = max(owner._parameters[leaf].ndim + dimension, 0)
    split_parameter(owner, leaf, dimension, mesh)


def adapter_matrices(module: Any, style: Any) -> list[Any]:
    """Return the LoRA matrices of an adapted module that have the dimension which the style splits."""
    if not hasattr(module, "base_layer"):
        return []
    if isinstance(style, (ColwiseParallel, PackedColumns)):
        return list(module.lora_B.values())
    if isinstance(style, (RowwiseParallel, PackedRows)):
        return list(module.lora_A.values())
    return []


def _without_local(name: str) -> str:
    return name.replace("local_", "", 1)
