"""Optimizers of other libraries whose states are as large as the parameters.

Sources: lion-pytorch 0.2, schedulefree 1.4, grokadamw 0.1, torch-optimi 0.3, prodigyopt 1.1, dadaptation 3.2,
pytorch-optimizer 4.1, torchdistx; states as counted in real steps (``tests/accuracy/optimizer_states.py``).
"""

from .optimizer import Full, Optimizer


def _of_pytorch_optimizer(*names: str) -> tuple[str, ...]:
    return tuple(f"pytorch_optimizer.{name}" for name in names)


WHOLE_STATE_ROWS = (
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
