"""The table of optimizers, by the job file's names. A new optimizer is one row."""

from collections.abc import Iterator, Mapping
from typing import Any

from .optimizer import Factored, Full, LowRank, Optimizer, PerRow, Quantized, QuantizedLowRank, Squares, Variant

# torch's own optimizers, and AdamW of apex and TransformerEngine.
#
# Sources: torch.optim (2.13), apex (``optimizers/``), DeepSpeed (``ops/``), TransformerEngine (``optimizers/``);
# states and copies as counted in real steps (``tests/accuracy/optimizer_states.py``). Copies of one tensor and of all
# with ``foreach``, which is what torch takes on a GPU unless told otherwise.


_FOREACH = {"foreach": True, "fused": False}
_SLOW = {"foreach": True}
"""Options of optimizers that have no fused kernel."""

_TORCH_ROWS = (
    Optimizer(
        name="adamw",
        description="AdamW with foreach, which makes temporary copies",
        options={"foreach": True, "amsgrad": False},
        states=(Full(count=2), Full(when="amsgrad")),
        step_copies=(Full(),),
        step_parameters=3,
        class_names=("torch.optim.AdamW", "torch.optim.Adam", "mup.MuAdamW", "mup.MuAdam"),
        trainer_names=("adamw_torch", "adamw_torch_xla", "adamw", "adam"),
        variants=(Variant(option="fused", row="adamw-fused"),),
        torch_class="torch.optim:AdamW",
        torch_options={"lr": 1e-5},
        same_result="adamw-fused",
        smaller_states="adamw-8bit",
    ),
    Optimizer(
        name="adamw-fused",
        description="fused AdamW, without temporary copies",
        options={"amsgrad": False},
        states=(Full(count=2), Full(when="amsgrad")),
        class_names=(
            *("deepspeed.ops.adam.FusedAdam", "deepspeed.ops.adam.DeepSpeedCPUAdam"),
            "megatron.core.optimizer.Adam",  # of its fp32 main weights
        ),
        trainer_names=("adamw_torch_fused", "adamw_torch_npu_fused"),
        torch_class="torch.optim:AdamW",
        torch_options={"lr": 1e-5, "fused": True},
        smaller_states="adamw-8bit",
    ),
    Optimizer(  # transformers 4.49, optimization.py; adamw_hf and the class are gone since
        name="adamw-hf",
        description="transformers' former AdamW, which steps one parameter after another",
        states=(Full(count=2),),
        step_parameters=1,
        class_names=("transformers.AdamW",),
        trainer_names=("adamw_hf",),
        torch_class="torch.optim:AdamW",
        torch_options={"lr": 1e-5, "foreach": False},
        same_result="adamw-fused",
        smaller_states="adamw-8bit",
    ),
    Optimizer(
        name="adamw-apex",
        description="a fused AdamW with fp32 states",
        options={"master_weights": False},
        states=(Full(count=2, width=4), Full(width=4, when="master_weights", under=4)),
        class_names=("apex.optimizers.FusedAdam", "transformer_engine.pytorch.optimizers.FusedAdam"),
        trainer_names=("adamw_apex_fused",),
        smaller_states="adamw-8bit",
    ),
    Optimizer(
        name="sgd",
        description="SGD without momentum",
        options={**_FOREACH, "weight_decay": False},
        step_copies=(Full(when="weight_decay"),),
        step_parameters=1,
        class_names=("torch.optim.SGD", "mup.MuSGD", "pytorch_optimizer.SGD", "pytorch_optimizer.SGDW"),
        trainer_names=("sgd",),
        variants=(Variant(option="momentum", row="sgd-momentum"),),
        torch_class="torch.optim:SGD",
        torch_options={"lr": 1e-5, "momentum": 0},
    ),
    Optimizer(
        name="sgd-momentum",
        description="SGD with momentum",
        options={**_FOREACH, "weight_decay": False},
        states=(Full(),),
        step_copies=(Full(when="weight_decay"),),
        step_parameters=1,
        class_names=("apex.optimizers.FusedSGD", "transformer_engine.pytorch.optimizers.FusedSGD"),
        torch_class="torch.optim:SGD",
        torch_options={"lr": 1e-5, "momentum": 0.9},
    ),
    Optimizer(
        name="rmsprop",
        description="RMSprop",
        options={**_SLOW, "momentum": False, "centered": False},
        states=(Full(), Full(when="momentum"), Full(when="centered")),
        step_copies=(Full(),),
        step_parameters=2,
        class_names=("torch.optim.RMSprop",),
        trainer_names=("rmsprop",),
        torch_class="torch.optim:RMSprop",
        torch_options={"lr": 1e-5},
    ),
    Optimizer(
        name="adagrad",
        description="Adagrad",
        options=_FOREACH,
        states=(Full(),),
        step_copies=(Full(count=2),),
        step_parameters=2,
        class_names=("torch.optim.Adagrad", "deepspeed.ops.adagrad.DeepSpeedCPUAdagrad"),
        trainer_names=("adagrad",),
        torch_class="torch.optim:Adagrad",
        torch_options={"lr": 1e-5},
    ),
    Optimizer(
        name="adadelta",
        description="Adadelta",
        options=_SLOW,
        states=(Full(count=2),),
        step_copies=(Full(count=2),),
        step_parameters=3,
        class_names=("torch.optim.Adadelta",),
        torch_class="torch.optim:Adadelta",
    ),
    Optimizer(
        name="adamax",
        description="Adamax",
        options=_SLOW,
        states=(Full(count=2),),
        step_copies=(Full(),),
        step_parameters=1,
        class_names=("torch.optim.Adamax",),
        torch_class="torch.optim:Adamax",
    ),
    Optimizer(
        name="nadam",
        description="NAdam",
        options={**_SLOW, "weight_decay": False},
        states=(Full(count=2),),
        step_copies=(Full(), Full(when="weight_decay")),
        step_parameters=4,
        class_names=("torch.optim.NAdam",),
        torch_class="torch.optim:NAdam",
    ),
    Optimizer(
        name="radam",
        description="RAdam",
        options=_SLOW,
        states=(Full(count=2),),
        step_copies=(Full(),),
        step_parameters=5,
        class_names=("torch.optim.RAdam",),
        torch_class="torch.optim:RAdam",
    ),
    Optimizer(
        name="asgd",
        description="ASGD, which keeps averaged weights",
        options=_SLOW,
        states=(Full(),),
        step_copies=(Full(),),
        class_names=("torch.optim.ASGD",),
    ),
    Optimizer(
        name="rprop",
        description="Rprop",
        options=_SLOW,
        states=(Full(count=2),),
        step_copies=(Full(),),
        step_parameters=3,
        class_names=("torch.optim.Rprop",),
        torch_class="torch.optim:Rprop",
    ),
    Optimizer(
        name="lbfgs",
        description="L-BFGS with its full history",
        options={"history_size": 100, "line_search_fn": False},
        states=(Full(count=2), Full(count=2, per="history_size")),
        step_copies=(Full(count=5), Full(count=4, when="line_search_fn")),
        class_names=("torch.optim.LBFGS",),
    ),
    Optimizer(
        name="sparse-adam",
        description="Adam for sparse gradients",
        states=(Full(count=2),),
        class_names=("torch.optim.SparseAdam",),
    ),
    Optimizer(name="none", description="no optimizer", steps=False),
    Optimizer(
        name="unknown",
        description="not known",
        states=(Full(count=2, width=4),),
        low=(),
        high=(Full(count=4, width=4),),
        step_tensors=2,
    ),
)


# Optimizers of bitsandbytes and torchao: states in few bits, in fp32, paged, or on the host.
#
# Sources: bitsandbytes 0.50 (``optim/optimizer.py``: 32-bit states are fp32 whatever the parameter; 8-bit ones from
# 4096 elements), torchao 0.18 (``optim/``), transformers (``trainer_optimizer.py``); states as counted in real steps
# (``tests/accuracy/optimizer_states.py``). torchao's compiled step holds both states of a parameter in fp32 for a
# while, and codes of 4 bits as int64 before they are packed (buffers of the code that inductor writes).


_BITSANDBYTES = ("bitsandbytes",)


def _both_widths(
    name: str,
    label: str,
    states: int,
    *classes: str,
    whole: str | None = None,
    whole_names: tuple[str, ...] = (),
    eight_names: tuple[str, ...] = (),
    paged: bool = False,
    unpaged: str | None = None,
    has_paged: str | None = None,
) -> Iterator[Optimizer]:
    """Yield bitsandbytes' classes with 32-bit and with 8-bit states.

    Args:
        name: the job file's, without the width.
        label: for people.
        states: number of states.
        classes: their names, without the width.
        whole: the job file's name for 32 bits, where it is not ``NAME-32bit``.
        whole_names: the Trainer's names for 32 bits.
        eight_names: the Trainer's names for 8 bits.
        paged: the states are paged.
        unpaged: row with the same states on the GPU, for 32 bits.
        has_paged: row for 32 bits that ``is_paged=True`` selects; the one for 8 bits is ``paged-NAME-8bit``.
    """
    whole = whole or f"{name}-32bit"
    paged_eight = f"paged-{name}-8bit"
    yield Optimizer(
        name=whole,
        description=f"a paged {label}" if paged else f"{label} with states in 32 bits",
        states=(Full(count=states, width=4),),
        paged=paged,
        libraries=_BITSANDBYTES,
        class_names=tuple(f"bitsandbytes.optim.{each}{end}" for each in classes for end in ("", "32bit")),
        trainer_names=whole_names,
        variants=(
            Variant(option="optim_bits", value=8, row=f"{name}-8bit"),
            *((Variant(option="is_paged", row=has_paged),) if has_paged else ()),
        ),
        unpaged=unpaged,
    )
    yield Optimizer(
        name=f"{name}-8bit",
        description=f"a paged {label}" if paged else f"{label} with states in 8 bits",
        states=(Quantized(count=states),),
        paged=paged,
        libraries=_BITSANDBYTES,
        class_names=tuple(f"bitsandbytes.optim.{each}8bit" for each in classes),
        trainer_names=eight_names,
        variants=(Variant(option="is_paged", row=paged_eight),) if has_paged else (),
        unpaged=name.removeprefix("paged-") + "-8bit" if paged else None,
    )


def _torchao(name: str, bits: int, block: int, end: str, *trainer_names: str) -> Optimizer:
    return Optimizer(
        name=name,
        description=f"torchao's AdamW with states in {bits} bits",
        states=(Quantized(count=2, bits=bits, block=block, small_width=None, whole_blocks=True),),
        step_tensors=6.5 if bits == 4 else 2.5,
        libraries=("torchao",),
        class_names=tuple(f"torchao.optim.{kind}{end}" for kind in ("AdamW", "Adam")),
        trainer_names=trainer_names,
    )


_QUANTIZED_ROWS = (
    *_both_widths(
        *("adamw", "AdamW", 2, "AdamW", "Adam"),
        eight_names=("adamw_8bit", "adamw_bnb_8bit", "adamw_bnb"),
        has_paged="paged-adamw",
    ),
    *_both_widths(
        *("paged-adamw", "AdamW", 2, "PagedAdamW", "PagedAdam"),
        whole="paged-adamw",
        whole_names=("paged_adamw_32bit", "paged_adamw"),
        eight_names=("paged_adamw_8bit",),
        paged=True,
        unpaged="adamw-fused",
    ),
    *_both_widths(
        *("lion", "Lion", 1, "Lion"),
        whole_names=("lion_32bit", "lion"),
        eight_names=("lion_8bit",),
        has_paged="paged-lion-32bit",
    ),
    *_both_widths(
        *("paged-lion", "Lion", 1, "PagedLion"),
        whole_names=("paged_lion_32bit", "paged_lion"),
        eight_names=("paged_lion_8bit",),
        paged=True,
        unpaged="lion-32bit",
    ),
    *_both_widths(
        *("ademamix", "AdEMAMix", 3, "AdEMAMix"),
        whole_names=("ademamix",),
        eight_names=("ademamix_8bit",),
        has_paged="paged-ademamix-32bit",
    ),
    *_both_widths(
        *("paged-ademamix", "AdEMAMix", 3, "PagedAdEMAMix"),
        whole_names=("paged_ademamix_32bit", "paged_ademamix"),
        eight_names=("paged_ademamix_8bit",),
        paged=True,
        unpaged="ademamix-32bit",
    ),
    *_both_widths(
        *("rmsprop", "RMSprop", 1, "RMSprop"),
        whole_names=("rmsprop_bnb", "rmsprop_bnb_32bit"),
        eight_names=("rmsprop_bnb_8bit",),
    ),
    *_both_widths("adagrad", "Adagrad", 1, "Adagrad"),
    *_both_widths("sgd", "SGD with momentum", 1, "SGD"),
    *_both_widths("lamb", "LAMB", 2, "LAMB"),
    *_both_widths("lars", "LARS", 1, "LARS"),
    _torchao("adamw-8bit-torchao", 8, 256, "8bit", "adamw_torch_8bit", "ao_adamw_8bit"),
    _torchao("adamw-4bit", 4, 128, "4bit", "adamw_torch_4bit", "ao_adamw_4bit"),
    _torchao("adamw-fp8", 8, 256, "Fp8", "ao_adamw_fp8"),
    Optimizer(
        name="adamw-cpu-offload",
        description="torchao's AdamW on the CPU",
        states=(Full(count=2),),
        on_host=True,
        host_copies=2,
        libraries=("torchao",),
        class_names=("torchao.optim.CPUOffloadOptimizer",),
    ),
)


# Optimizers whose states are a few values per row and column of a matrix, and those that keep none.
#
# Sources: transformers (``optimization.py``), torch.optim (``_adafactor.py``), came-pytorch 0.1, lomo-optim 0.1,
# adam-mini 1.1, pytorch-optimizer 4.1; states as counted in real steps (``tests/accuracy/optimizer_states.py``).


_FACTORED_ROWS = (
    Optimizer(
        name="adafactor",
        description="Adafactor",
        options={"beta1": False},
        states=(Factored(width=4), Full(width=4, when="beta1")),
        step_tensors=2,  # the update, and its root mean squares
        step_casts=2,  # of weights and gradients
        class_names=("transformers.Adafactor", "transformers.optimization.Adafactor"),
        trainer_names=("adafactor",),
        torch_class="transformers.optimization:Adafactor",
        torch_options={"lr": 1e-3, "scale_parameter": False, "relative_step": False},
    ),
    Optimizer(
        name="adafactor-torch",
        description="torch's Adafactor",
        options={"foreach": False},
        states=(Factored(),),
        step_copies=(Full(),),
        step_parameters=2,
        class_names=("torch.optim.Adafactor",),
    ),
    Optimizer(
        name="came",
        description="CAME",
        states=(Full(width=4), Factored(width=4), Factored(width=4, vectors=False)),
        step_tensors=3,
        step_casts=1,
        libraries=("came-pytorch",),
        class_names=("came_pytorch.CAME",),
        trainer_names=("came_pytorch", "came"),
    ),
    Optimizer(
        name="came-in-weights-dtype",
        description="CAME with states in the weights' dtype",
        states=(Full(), Factored(), Factored(vectors=False)),
        step_parameters=2,
        libraries=("pytorch-optimizer",),
        class_names=("pytorch_optimizer.CAME",),
    ),
    Optimizer(
        name="adam-mini",
        description="Adam-mini",
        states=(Full(), PerRow()),
        step_parameters=3,
        libraries=("adam-mini",),
        other_libraries=("pytorch-optimizer",),
        class_names=("adam_mini.Adam_mini", "pytorch_optimizer.AdamMini"),
        trainer_names=("adam_mini",),
    ),
    Optimizer(
        name="lomo",
        description="LOMO, which applies gradients during backward",
        in_backward=True,
        step_tensors=2,
        libraries=("lomo-optim",),
        other_libraries=("pytorch-optimizer",),
        class_names=("lomo_optim.Lomo", "pytorch_optimizer.LOMO"),
        trainer_names=("lomo",),
    ),
    Optimizer(
        name="adalomo",
        description="AdaLomo, which applies gradients during backward",
        states=(Factored(width=4),),
        in_backward=True,
        step_tensors=4,
        libraries=("lomo-optim",),
        other_libraries=("pytorch-optimizer",),
        class_names=("lomo_optim.AdaLomo", "pytorch_optimizer.AdaLOMO"),
        trainer_names=("adalomo",),
    ),
)


# Optimizers that treat matrices apart: low-rank states, preconditioners, orthogonalized momentum.
#
# Sources: galore-torch 1.0, apollo-torch 1.0, torch.optim (``_muon.py``), muon-optimizer 0.1, pytorch-optimizer 4.1
# (``soap.py``, ``shampoo.py``); states as counted in real steps (``tests/accuracy/optimizer_states.py``).
#
# GaLore's projection is a part of a singular value decomposition: a copy where the gradient has 16 bits, a view that
# keeps the whole factor, a square of the shorter side, where it is fp32.


_LOW_RANK = {"rank": 128, "targets": ["attn", "mlp"]}
_PROJECTION = (LowRank(side="shorter", under=4), Squares(shorter=True, least=4))
_GALORE = ("galore-torch",)

_MATRIX_ROWS = (
    Optimizer(
        name="galore-adamw",
        description="GaLore with AdamW",
        options=_LOW_RANK,
        part="targets",
        states=(LowRank(count=2), *_PROJECTION),
        rest=(Full(count=2),),
        step_tensors=3,  # the gradient and its decomposition
        step_casts=1,
        libraries=_GALORE,
        class_names=("galore_torch.GaLoreAdamW", "galore_torch.adamw.AdamW"),
        trainer_names=("galore_adamw",),
    ),
    Optimizer(
        name="galore-adamw-8bit",
        description="GaLore with AdamW in 8 bits",
        options=_LOW_RANK,
        part="targets",
        states=(QuantizedLowRank(count=2), *_PROJECTION),
        rest=(Quantized(count=2),),
        step_tensors=3,
        step_casts=1,
        libraries=(*_GALORE, "bitsandbytes"),
        class_names=("galore_torch.GaLoreAdamW8bit", "galore_torch.adamw8bit.AdamW8bit"),
        trainer_names=("galore_adamw_8bit",),
    ),
    Optimizer(
        name="galore-adafactor",
        description="GaLore with Adafactor",
        options=_LOW_RANK,
        part="targets",
        states=(Squares(shorter=True, width=4), Factored(width=4, low_rank=True)),  # of the gradient in fp32
        rest=(Factored(width=4),),
        step_tensors=3,
        step_casts=2,
        libraries=_GALORE,
        class_names=("galore_torch.GaLoreAdafactor", "galore_torch.adafactor.Adafactor"),
        trainer_names=("galore_adafactor",),
    ),
    Optimizer(
        name="apollo-adamw",
        description="APOLLO",
        options=_LOW_RANK,
        part="targets",
        states=(LowRank(count=2), LowRank(side="shorter")),
        rest=(Full(count=2),),
        step_parameters=3,
        libraries=("apollo-torch",),
        class_names=("apollo_torch.APOLLOAdamW", "apollo_torch.apollo.AdamW"),
        trainer_names=("apollo_adamw",),
    ),
    Optimizer(
        name="muon",
        description="Muon",
        part="block-matrices",
        states=(Full(),),
        rest=(Full(count=2),),  # AdamW's
        step_tensors=2,
        steps_whole_matrices=True,
        class_names=(
            *("torch.optim.Muon", "muon.Muon", "muon.MuonWithAuxAdam", "muon.SingleDeviceMuonWithAuxAdam"),
            *("muon.SingleDeviceMuon", "pytorch_optimizer.Muon", "deepspeed.runtime.zero.muon.MuonWithAuxAdam"),
        ),
        trainer_names=("muon",),
    ),
    Optimizer(
        name="soap",
        description="SOAP",
        options={"max_precond_dim": 10000},
        states=(Full(count=2), Squares(count=2, limit="max_precond_dim")),
        step_parameters=4,
        class_names=("pytorch_optimizer.SOAP", "soap.SOAP", "heavyball.ForeachSOAP"),
        trainer_names=("soap",),
    ),
    Optimizer(
        name="shampoo",
        description="Shampoo with whole preconditioners",
        states=(Squares(count=2, of_vectors=True), Full()),
        step_parameters=3,
        class_names=("pytorch_optimizer.Shampoo", "torch_optimizer.Shampoo"),
    ),
    Optimizer(
        name="distributed-shampoo",
        description="Shampoo in blocks with grafting",
        states=(Full(count=6, width=4),),  # statistics and inverse roots of square blocks, grafting, momentum
        low=(Full(count=2),),
        high=(Full(count=8, width=4),),
        step_tensors=3,
        class_names=("distributed_shampoo.DistributedShampoo", "pytorch_optimizer.ScalableShampoo"),
    ),
)


# Optimizers of other libraries whose states are as large as the parameters.
#
# Sources: lion-pytorch 0.2, schedulefree 1.4, grokadamw 0.1, torch-optimi 0.3, prodigyopt 1.1, dadaptation 3.2,
# pytorch-optimizer 4.1, torchdistx; states as counted in real steps (``tests/accuracy/optimizer_states.py``).


def _of_pytorch_optimizer(*names: str) -> tuple[str, ...]:
    return tuple(f"pytorch_optimizer.{name}" for name in names)


_FURTHER_ROWS = (
    Optimizer(
        name="lion",
        description="Lion",
        states=(Full(),),
        step_parameters=2,
        trainer_libraries=("bitsandbytes",),
        class_names=("lion_pytorch.Lion", "deepspeed.ops.lion.FusedLion", *_of_pytorch_optimizer("Lion", "Tiger")),
        trainer_names=("lion_pytorch",),
    ),
    Optimizer(
        name="lamb",
        description="LAMB",
        states=(Full(count=2),),
        step_parameters=2,
        class_names=(
            *("apex.optimizers.FusedLAMB", "deepspeed.ops.lamb.FusedLamb", "torch_optimizer.Lamb", "timm.optim.Lamb"),
            "pytorch_optimizer.Lamb",
            "deepspeed.runtime.fp16.onebit.lamb.OnebitLamb",
        ),
    ),
    Optimizer(
        name="onebit-adam",
        description="1-bit Adam with its compression errors",
        states=(Full(count=3),),
        step_parameters=2,
        class_names=("deepspeed.runtime.fp16.onebit.adam.OnebitAdam",),
    ),
    Optimizer(
        name="lars",
        description="LARS",
        states=(Full(),),
        step_parameters=2,
        class_names=("timm.optim.Lars", "pytorch_optimizer.LARS", "bitsandbytes.optim.PytorchLARS"),
    ),
    Optimizer(
        name="schedule-free-adamw",
        description="Schedule-Free AdamW",
        states=(Full(count=2),),
        step_parameters=1,
        libraries=("schedulefree",),
        other_libraries=("pytorch-optimizer",),
        class_names=(
            *("schedulefree.AdamWScheduleFree", "schedulefree.AdamWScheduleFreeReference"),
            *_of_pytorch_optimizer("ScheduleFreeAdamW"),
        ),
        trainer_names=("schedule_free_adamw",),
    ),
    Optimizer(
        name="schedule-free-radam",
        description="Schedule-Free RAdam",
        states=(Full(count=2),),
        step_parameters=1,
        libraries=("schedulefree",),
        other_libraries=("pytorch-optimizer",),
        class_names=("schedulefree.RAdamScheduleFree", *_of_pytorch_optimizer("ScheduleFreeRAdam")),
        trainer_names=("schedule_free_radam",),
    ),
    Optimizer(
        name="schedule-free-sgd",
        description="Schedule-Free SGD",
        states=(Full(),),
        step_parameters=1,
        libraries=("schedulefree",),
        other_libraries=("pytorch-optimizer",),
        class_names=("schedulefree.SGDScheduleFree", *_of_pytorch_optimizer("ScheduleFreeSGD")),
        trainer_names=("schedule_free_sgd",),
    ),
    Optimizer(
        name="stable-adamw",
        description="StableAdamW",
        options={"kahan_sum": True},
        states=(Full(count=2), Full(when="kahan_sum", under=4)),
        step_parameters=2,
        class_names=("optimi.StableAdamW", "pytorch_optimizer.StableAdamW"),
        trainer_names=("stable_adamw", "optimi_stableadamw"),
        libraries=("torch-optimi",),
        other_libraries=("pytorch-optimizer",),
    ),
    Optimizer(
        name="optimi-adamw",
        description="torch-optimi's AdamW with Kahan summation in 16 bits",
        options={"kahan_sum": True},
        states=(Full(count=2), Full(when="kahan_sum", under=4)),
        step_parameters=2,
        class_names=("optimi.AdamW", "optimi.Adam", "optimi.RAdam", "optimi.Ranger", "optimi.Adan"),
        trainer_names=("optimi_adamw",),
        libraries=("torch-optimi",),
    ),
    Optimizer(
        name="grokadamw",
        description="GrokAdamW, whose states are in host memory between steps",
        states=(Full(count=3),),
        on_host=True,
        step_parameters=5,  # the states of one parameter, and what they are updated with
        libraries=("grokadamw",),
        class_names=("grokadamw.GrokAdamW",),
        trainer_names=("grokadamw",),
    ),
    Optimizer(
        name="prodigy",
        description="Prodigy",
        states=(Full(count=4),),
        step_parameters=2,
        libraries=("prodigyopt",),
        other_libraries=("pytorch-optimizer",),
        class_names=("prodigyopt.Prodigy", "pytorch_optimizer.Prodigy"),
    ),
    Optimizer(
        name="dadapt-adam",
        description="D-Adaptation with Adam",
        states=(Full(count=3),),
        step_parameters=2,
        libraries=("dadaptation",),
        other_libraries=("pytorch-optimizer",),
        class_names=("dadaptation.DAdaptAdam", "pytorch_optimizer.DAdaptAdam"),
    ),
    Optimizer(
        name="adamw-anyprecision",
        description="torchdistx's AnyPrecisionAdamW",
        options={"use_kahan_summation": False},
        states=(Full(count=2, width=4), Full(width=2, when="use_kahan_summation")),
        low=(Full(count=2, width=2),),
        high=(Full(count=2, width=4), Full(width=2)),
        step_parameters=2,
        class_names=("torchdistx.optimizers.AnyPrecisionAdamW",),
        trainer_names=("adamw_anyprecision",),
    ),
    Optimizer(
        name="sophia",
        description="Sophia",
        states=(Full(count=2),),
        step_parameters=2,
        class_names=("sophia.SophiaG", "pytorch_optimizer.SophiaH"),
        trainer_names=("sophia", "sophiag"),
    ),
    Optimizer(
        name="one-state",
        description="an optimizer with one state as large as the parameters",
        states=(Full(),),
        step_parameters=2,
        class_names=_of_pytorch_optimizer(
            *("AccSGD", "BCOS", "EmoLynx", "Gravity", "NovoGrad", "QHM", "RMSprop", "SCION", "SGDP", "SGDSaI"),
            "SignSGD",
        ),
    ),
    Optimizer(
        name="two-states",
        description="an optimizer with two states as large as the parameters",
        states=(Full(count=2),),
        step_parameters=3,
        class_names=(
            *("adopt.ADOPT", "timm.optim.Adopt", "adabelief_pytorch.AdaBelief", "torch_optimizer.AdaBelief"),
            *_of_pytorch_optimizer(
                "A2Grad", "ADOPT", "AdaBelief", "AdaBound", "AdaDelta", "AdaGC", "AdaMax", "AdaNorm"
            ),
            *_of_pytorch_optimizer("Adam", "AdamC", "AdamP", "AdamS", "AdamW", "AdamWSN", "Aida", "Ano", "AvaGrad"),
            *_of_pytorch_optimizer("DAdaptLion", "DualAdam", "EXAdam", "EmoNavi", "FOCUS", "FTRL", "Grams", "Kate"),
            *_of_pytorch_optimizer("LaProp", "MSVAG", "Magma", "NAdam", "PAdam", "PNM", "QHAdam", "RAdam", "SRMM"),
            *_of_pytorch_optimizer("SimplifiedAdEMAMix", "StableSPAM", "TAM", "Yogi"),
        ),
        trainer_names=("adopt_adamw",),
    ),
    Optimizer(
        name="three-states",
        description="an optimizer with three states as large as the parameters",
        states=(Full(count=3),),
        step_parameters=3,
        class_names=_of_pytorch_optimizer(
            *("AdEMAMix", "AdaMod", "AdaTAM", "Adai", "AdamG", "AggMo", "ApolloDQN", "DAdaptAdaGrad", "DAdaptSGD"),
            *("DiffGrad", "GrokFastAdamW", "MADGRAD", "Ranger", "VSGD"),
        ),
    ),
    Optimizer(
        name="four-states",
        description="an optimizer with four states as large as the parameters",
        states=(Full(count=4),),
        step_parameters=3,
        class_names=(
            *("adan.Adan", "adan_pytorch.Adan", "timm.optim.Adan"),
            *_of_pytorch_optimizer("AdaPNM", "AdaSmooth", "Adan"),
        ),
    ),
)


_ROWS = (*_TORCH_ROWS, *_QUANTIZED_ROWS, *_FACTORED_ROWS, *_MATRIX_ROWS, *_FURTHER_ROWS)
OPTIMIZERS = {row.name: row for row in _ROWS}
"""By the job file's ``training.optimizer``."""
UNKNOWN = "unknown"
"""The row of optimizers that are not known: a wide range rather than the figures of another."""


def option_defaults() -> dict[str, object]:
    """Return every option of ``training.optimizer_options`` with a value of its type."""
    return {name: value for row in OPTIMIZERS.values() for name, value in row.options.items()}


# Libraries with optimizers that are widely used: a class of theirs that a script names may be imported and stepped.


LISTED_LIBRARIES = frozenset(
    (
        *("adam_mini", "adopt", "apex", "apollo_torch", "bitsandbytes", "came_pytorch", "dadaptation", "deepspeed"),
        *("distributed_shampoo", "galore_torch", "grokadamw", "heavyball", "lion_pytorch", "lomo_optim", "muon"),
        *("optimi", "prodigyopt", "pytorch_optimizer", "schedulefree", "soap", "sophia", "timm", "torch", "torchao"),
        *("torch_optimizer", "transformer_engine", "transformers"),
    )
)
"""Their modules. Nothing of another library, of the script itself or of its folder is imported because a script says
so."""


# Checks ``training.optimizer_options``: the keyword arguments of optimizers on which memory depends.


_KINDS = {bool: "true or false", int: "a whole number of at least 1", list: "a word or a list of words"}


def check_options(options: Mapping[str, Any]) -> None:
    """Check that each option is one of some optimizer in the table, with a value of its type.

    An option that the job's own optimizer has no use for changes nothing, so that another optimizer can be tried.

    Raises:
        ValueError: there is no such option, or its value has another type.
    """
    known = option_defaults()
    for name, value in options.items():
        if name not in known:
            raise ValueError(f"no optimizer has an option {name!r} that memory depends on; known are {_list(known)}")
        kind = type(known[name])
        if not _is_right(value, kind):
            raise ValueError(f"{name} must be {_KINDS[kind]}")


def _is_right(value: Any, kind: type) -> bool:
    if kind is list:
        return isinstance(value, str) or (isinstance(value, list) and all(isinstance(each, str) for each in value))
    if kind is int:
        return type(value) is int and 1 <= value <= 2**31
    return type(value) is kind


def _list(names: Mapping[str, object]) -> str:
    return ", ".join(sorted(names))
