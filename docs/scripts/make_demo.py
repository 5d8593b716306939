"""Writes the demo recording: two GPUs over three minutes, with memory figures from the estimator itself.

A full fine-tuning job loads, takes its first step and runs on budget. A second job starts on the other GPU and holds
twice its budget from its first step on: its script does not switch checkpointing on. A third job is pending: by the
budget of the second it would fit beside it, by what that holds it does not.
"""

import random

from vramtop.estimator.common.sizes import GIB, MIB
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.gpu_catalogue import find_gpu
from vramtop.estimator.job.job import Job, Lora, ModelSpec, Target, Training
from vramtop.estimator.job.job_file.changes import with_changes
from vramtop.monitor.snapshot.gpu_details import EccErrors, GpuDetails, NvLinks, PcieLink, RemappedRows
from vramtop.monitor.snapshot.snapshot import GpuProcess, GpuReading, HostLoad, Snapshot, Source, WatchedJob
from vramtop.monitor.sources.recording import RecordingWriter
from vramtop.monitor.sources.replay import demo_path

SECONDS = 180
START = 1_780_000_000.0
GPU = find_gpu("h100-80gb")
SFT = Job(
    name="llama-8b-sft",
    model=ModelSpec(id="meta-llama/Llama-3.1-8B"),
    training=Training(
        precision="bf16",
        optimizer="adamw-fused",
        sequence_length=4096,
        activation_checkpointing="full",
        varying_lengths=False,
    ),
    target=Target(gpu=GPU.name),
)
DPO = Job(
    name="qwen-7b-dpo",
    model=ModelSpec(id="Qwen/Qwen2.5-7B-Instruct", attention="flash_attention_2"),
    training=Training(
        precision="bf16",
        optimizer="adamw-fused",
        micro_batch=2,
        sequence_length=2048,
        activation_checkpointing="full",
        varying_lengths=False,
    ),
    lora=Lora(rank=32, targets="all-linear"),
    target=Target(gpu=GPU.name),
)
DPO_RAN = with_changes(DPO, {"training.activation_checkpointing": "none"})
"""What the second job's program does."""
PENDING = Job(
    name="qwen-14b-lora",
    model=ModelSpec(id="Qwen/Qwen2.5-14B"),
    training=Training(
        precision="bf16",
        optimizer="adamw-fused",
        sequence_length=2048,
        activation_checkpointing="full",
        varying_lengths=False,
    ),
    lora=Lora(rank=16, targets="all-linear"),
    target=Target(gpu=GPU.name),
)


def main() -> None:
    """Write the recording to the path where the package looks for it."""
    noise = random.Random(7)  # noqa: S311 - a demo, not a secret
    path = demo_path()
    with RecordingWriter(path, overwrite=True) as writer:
        for second in range(SECONDS):
            writer.write(snapshot(second, noise))
    print(f"{path}: {SECONDS} snapshots, {path.stat().st_size} bytes")


def snapshot(second: int, noise: random.Random) -> Snapshot:
    """Return the snapshot at this second of the recording."""
    sft_peak, dpo_peak = estimate(SFT).peak, estimate(DPO_RAN).peak
    sft = grown(second - 4, context=0.6, weights=16.0, first=0.55, peak=sft_peak.device_bytes - 300 * MIB)
    dpo = grown(second - 38, context=0.6, weights=15.4, first=0.9, peak=dpo_peak.device_bytes - 150 * MIB)
    notebook = process(
        2114, START - 86_400, "bo", "/usr/bin/python3 -m ipykernel_launcher -f kernel-8c1.json", 1.1 * GIB
    )
    first = [process(48213, START + 4, "ana", "python train.py --config sft.yaml", sft)] if sft else []
    second_job = [process(48977, START + 38, "cho", "python dpo.py --model qwen2.5-7b --beta 0.1", dpo)] if dpo else []
    watched = []
    if sft:
        watched.append(WatchedJob(job=SFT, pids=((48213, START + 4),)))
    if dpo:
        watched.append(WatchedJob(job=DPO, pids=((48977, START + 38),)))
    return Snapshot(
        time=START + second,
        source=Source(kind="demo", host="gpubox-3", driver_version="580.95.05", cuda_version="13.0"),
        gpus=(
            gpu(0, first, second, noise, busy=second > 30),
            gpu(1, [*second_job, notebook], second, noise, busy=second > 60),
        ),
        watched=tuple(watched),
        pending=(PENDING,) if second >= 10 else (),
        host=host(second, busy=(second > 30) + (second > 60)),
    )


def host(second: int, *, busy: int) -> HostLoad:
    """The host while this number of jobs train, each with 8 data loader workers."""
    noise = random.Random(second // 2)  # noqa: S311 - read every two seconds
    average = tuple(round(max(0.4, busy * 9 * share + noise.random() * 0.3), 2) for share in (1.0, 0.8, 0.5))
    return HostLoad(
        cpu_percent=round(1.5 + 14.5 * busy + 3 * noise.random(), 1),
        cpus=64,
        ram_used_bytes=round((31 + 46 * busy + noise.random()) * GIB),
        ram_total_bytes=round(503.5 * GIB),
        swap_used_bytes=0,
        swap_total_bytes=8 * GIB,
        load=(average[0], average[1], average[2]),
    )


def grown(age: int, *, context: float, weights: float, first: float, peak: int) -> int:
    """Bytes that a job holds at this age in seconds: context, weights, a first step, then steady."""
    if age < 0:
        return 0
    if age < 4:
        return round(context * GIB * (age + 1) / 4)
    if age < 20:
        return round((context + (weights - context) * (age - 4) / 16) * GIB)
    if age < 25:
        return round(weights * GIB)
    if age < 31:
        return max(round(weights * GIB), round(peak * first))
    return peak


def process(pid: int, start: float, user: str, command: str, used: float) -> GpuProcess:
    """A compute process."""
    return GpuProcess(
        pid=pid,
        start_time=start,
        used_bytes=int(used) // MIB * MIB,
        kinds=("compute",),
        user=user,
        name="python",
        command=command,
    )


def gpu(index: int, processes: list[GpuProcess], second: int, noise: random.Random, *, busy: bool) -> GpuReading:
    """An H100 that holds these processes."""
    reserved = GPU.reserved_bytes or 0
    used = sum(each.used_bytes or 0 for each in processes) + 18 * MIB
    load = noise.randint(93, 99) if busy else (noise.randint(0, 6) if processes else 0)
    return GpuReading(
        index=index,
        uuid=f"GPU-5b1d8c3e-0000-4000-8000-00000000000{index}",
        name="NVIDIA H100 80GB HBM3",
        total_bytes=GPU.total_bytes,
        reserved_bytes=reserved,
        used_bytes=used,
        free_bytes=GPU.total_bytes - reserved - used,
        utilisation_percent=load,
        memory_utilisation_percent=load * (61 if index else 44) // 100,
        temperature_c=34 + load * 30 // 100 + index,
        power_w=round(75 + 5.6 * load + noise.random() * 4, 1),
        power_limit_w=700.0,
        processes=tuple(sorted(processes, key=lambda each: -(each.used_bytes or 0))),
        read_at=START + second,
        compute_mode="default",
        details=details(index, second, load),
    )


def details(index: int, second: int, load: int) -> GpuDetails:
    """What the GPU screen shows of an H100 with this utilisation; the busier one reaches its power limit at times."""
    noise = random.Random(second * 2 + index)  # noqa: S311
    return GpuDetails(
        level="full",
        clock_reasons=0x1 if load == 0 else 0x4 if index and load >= 98 else 0x0,
        fan_percents=(),
        sm_mhz=345 if load == 0 else 1980 - load // 2 - noise.randrange(30),
        sm_max_mhz=1980,
        memory_mhz=2619,
        memory_max_mhz=2619,
        performance_state=0,
        memory_temperature_c=44 + load * 30 // 100 + index,
        slowdown_c=87,
        shutdown_c=92,
        encoder_percent=0,
        decoder_percent=0,
        power_default_w=700.0,
        power_max_w=700.0,
        ecc_enabled=True,
        ecc=EccErrors(recent_corrected=0, recent_uncorrected=0, lifetime_corrected=0, lifetime_uncorrected=0),
        remapped_rows=RemappedRows(after_corrected=0, after_uncorrected=0, pending=False, failed=False),
        persistence=True,
        bar1_total_bytes=128 * GIB,
        bar1_used_bytes=2 * MIB,
        pcie=PcieLink(
            generation=5,
            max_generation=5,
            width=16,
            max_width=16,
            sent_per_second=load * noise.randrange(1_000_000, 3_000_000),
            received_per_second=load * noise.randrange(6_000_000, 9_000_000),
            replays=0,
        ),
        nvlink=NvLinks(
            count=18,
            active=18,
            version=4,
            link_bytes_per_second=26_562_000_000,
            peers=("switch",),
            sent_per_second=0,
            received_per_second=0,
        ),
        vbios="96.00.74.00.01",
        compute_capability="9.0",
        pci_address=f"0000:{0x1A + 0x0B * index:02x}:00.0",
        numa_node=0,
        near_cpus="0-31",
    )


if __name__ == "__main__":
    main()
