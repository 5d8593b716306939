"""A node with eight GPUs for the picture of the runs table: a run of four ranks, one over its budget, and a server."""

import random

from make_demo import DPO, GPU, START, gpu, host, process

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job, Lora, ModelSpec, Parallel, Target, Training
from vramtop.monitor.snapshot.snapshot import GpuProcess, Snapshot, Source, WatchedJob

RUN = Job(
    name="llama-70b-lora",
    model=ModelSpec(id="meta-llama/Llama-3.1-70B", attention="flash_attention_2"),
    training=Training(precision="bf16", optimizer="adamw-fused", sequence_length=4096, activation_checkpointing="full"),
    lora=Lora(rank=16, targets="all-linear"),
    parallel=Parallel(strategy="fsdp2", data_shard=4, fsdp_units="blocks"),
    target=Target(gpu=GPU.name),
)
RANKS = range(4)
FIRST_PID = 50_112
SINCE = START - 7_260


def eight_gpus(second: int) -> Snapshot:
    """Return what the node shows at this second."""
    noise = random.Random(second)  # noqa: S311 - a demo, not a secret
    budget, dpo = estimate(RUN).peak.device_bytes, estimate(DPO).peak.device_bytes
    launcher = "torchrun --nproc-per-node 4 train.py --config llama70b.yaml"
    processes: list[list[GpuProcess]] = [
        [
            replace(
                process(
                    FIRST_PID + rank,
                    SINCE,
                    "ana",
                    "python train.py --config llama70b.yaml",
                    budget - (9 - rank) * GIB / 10,
                ),
                parent=FIRST_PID - 1,
                parent_name=launcher.split(maxsplit=1)[0],
            )
        ]
        for rank in RANKS
    ]
    processes += [
        [process(51_870, START - 900, "cho", "python dpo.py --model qwen2.5-7b --beta 0.1", dpo + 21.4 * GIB)],
        *(
            [
                replace(
                    process(41_207 + index, START - 190_000, "serve", f"VLLM::Worker_TP{index}", 70.6 * GIB),
                    parent=41_200,
                    parent_name="vllm",
                )
            ]
            for index in range(2)
        ),
        [process(2114, START - 86_400, "bo", "/usr/bin/python3 -m ipykernel_launcher -f kernel-8c1.json", 1.1 * GIB)],
    ]
    return Snapshot(
        time=START + second,
        source=Source(kind="demo", host="gpubox-8", driver_version="580.95.05", cuda_version="13.0"),
        gpus=tuple(gpu(index, each, second, noise, busy=index < 7) for index, each in enumerate(processes)),
        watched=(
            WatchedJob(job=RUN, pids=tuple((FIRST_PID + rank, SINCE) for rank in RANKS)),
            WatchedJob(job=DPO, pids=((51_870, START - 900),)),
        ),
        host=host(second, busy=2),
    )
