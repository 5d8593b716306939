import pytest

from vramtop.estimator.common.errors import CannotTellError
from vramtop.monitor.fleet.schedulers import parse_cluster, parse_nodes, parse_partitions

SLURM_20_11 = (
    "NodeName=n1 Arch=x86_64 CoresPerSocket=32  CPUAlloc=16 CPUTot=64 CPULoad=3.02 "
    "AvailableFeatures=a100,ib ActiveFeatures=a100,ib Gres=gpu:a100:4(S:0-1) NodeAddr=n1 Version=20.11.8 "
    "OS=Linux 4.18.0 #1 SMP Tue  RealMemory=515000 AllocMem=131072 FreeMem=377000 Sockets=2 Boards=1 "
    "MemSpecLimit=3000 State=MIXED ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=gpu,long  "
    "BootTime=2021-01-01T00:00:00 CfgTRES=cpu=64,mem=515000M,billing=64,gres/gpu=4,gres/gpu:a100=4 "
    "AllocTRES=cpu=16,mem=128G,gres/gpu=1,gres/gpu:a100=1 CapWatts=n/a Comment=(null)\n"
)
SLURM_22_05 = (  # with -d, on a cluster that does not account for GPUs: AllocTRES has none
    "NodeName=vm Arch=x86_64 CoresPerSocket=1  CPUAlloc=1 CPUEfctv=2 CPUTot=2 CPULoad=4.68 "
    "AvailableFeatures=a100,gpu_mem_80gb ActiveFeatures=a100,gpu_mem_80gb Gres=gpu:a100:4 GresDrain=N/A "
    "GresUsed=gpu:a100:2(IDX:0-1) NodeAddr=127.0.0.1 NodeHostName=vm Version=22.05.8 OS=Linux 6.18 #1 SMP @0  "
    "RealMemory=400000 AllocMem=100000 FreeMem=13097 Sockets=2 Boards=1 State=MIXED ThreadsPerCore=1 TmpDisk=0 "
    "Weight=1 Owner=N/A MCS_label=N/A Partitions=gpu,off  BootTime=2026-11-22T02:53:24 CfgTRES=cpu=2,mem=400000M "
    "AllocTRES=cpu=1,mem=100000M CapWatts=n/a\n"
)
SLURM_24_05 = (
    "NodeName=gpu-07 Arch=x86_64 CoresPerSocket=48 CPUAlloc=0 CPUEfctv=192 CPUTot=192 CPULoad=0.10 "
    "AvailableFeatures=(null) ActiveFeatures=(null) Gres=gpu:nvidia_h100_80gb_hbm3:6(S:0-1),gpu:1g.10gb:14,shard:64 "
    "GresUsed=gpu:nvidia_h100_80gb_hbm3:0(IDX:N/A),gpu:1g.10gb:3(IDX:0,2-3),shard:0(0/8,0/8) NodeAddr=gpu-07 "
    "RealMemory=2000000 AllocMem=0 FreeMem=1990000 Sockets=2 Boards=1 State=IDLE+DRAIN+NOT_RESPONDING ThreadsPerCore=2 "
    "Partitions=all CfgTRES=cpu=192,mem=2000000M,billing=192 AllocTRES= "
    "Reason=Gres=gpu:h200:9 State=IDLE RealMemory=1 [root@2026-01-01T00:00:00]\n"
)


def test_free_gpus_and_memory_come_from_accounting() -> None:
    (node,) = parse_nodes(SLURM_20_11)
    assert [(gpus.type, gpus.count, gpus.used) for gpus in node.gpus] == [("a100", 4, 1)]
    assert (node.features, node.partitions, node.cpus, node.free_cpus) == (("a100", "ib"), ("gpu", "long"), 64, 48)
    assert (node.memory_bytes, node.free_memory_bytes) == (512_000 << 20, (512_000 - 131_072) << 20)
    assert node.takes_jobs_now


def test_gpus_in_use_are_known_without_accounting() -> None:
    (node,) = parse_nodes(SLURM_22_05)
    assert [(gpus.type, gpus.count, gpus.used) for gpus in node.gpus] == [("a100", 4, 2)]
    without_details = SLURM_22_05.replace("GresDrain=N/A GresUsed=gpu:a100:2(IDX:0-1) ", "")
    assert [gpus.used for gpus in parse_nodes(without_details)[0].gpus] == [None]  # MIXED: some, but not how many
    idle = without_details.replace("State=MIXED", "State=IDLE")
    assert [gpus.used for gpus in parse_nodes(idle)[0].gpus] == [0]


def test_a_reason_is_text_and_no_field() -> None:
    (node,) = parse_nodes(SLURM_24_05)
    kinds = [(gpus.type, gpus.count, gpus.used) for gpus in node.gpus]
    assert kinds == [("nvidia_h100_80gb_hbm3", 6, 0), ("1g.10gb", 14, 3)]
    assert (node.features, node.memory_bytes) == ((), 2_000_000 << 20)
    assert node.is_gone


@pytest.mark.parametrize(
    ("state", "gone", "now"),
    [
        ("IDLE", False, True),
        ("MIXED", False, True),
        ("ALLOCATED", False, True),
        ("DOWN", True, False),
        ("DOWN*+DRAIN", True, False),
        ("IDLE*", True, False),
        ("MIXED+DRAIN", True, False),
        ("DRAINED", True, False),
        ("UNKNOWN+DRAIN+INVALID_REG", True, False),
        ("IDLE+RESERVED", False, False),
        ("IDLE+MAINTENANCE+RESERVED", False, False),
        ("IDLE+CLOUD+POWERED_DOWN", False, False),
        ("IDLE~", False, False),
        ("MIXED+PLANNED", False, False),
        ("ALLOCATED+COMPLETING", False, False),
        ("", True, False),
    ],
)
def test_which_states_take_jobs(state: str, gone: bool, now: bool) -> None:
    (node,) = parse_nodes(f"NodeName=n1 Gres=gpu:a100:1 State={state} Partitions=gpu\n")
    assert (node.is_gone, node.takes_jobs_now) == (gone, now)


@pytest.mark.parametrize(
    ("gres", "expected"),
    [
        ("gpu:2", [(None, 2)]),
        ("gpu", [(None, 1)]),
        ("gpu:tesla:no_consume:4", [("tesla", 4)]),
        ("gpu:a100:4(S:0,2),gpu:v100:2(S:1,3)", [("a100", 4), ("v100", 2)]),
        ("gpu:nvidia_a100_3g.20gb:2", [("nvidia_a100_3g.20gb", 2)]),
        ("mps:a100:400,shard:16", []),
        ("(null)", []),
    ],
)
def test_gres(gres: str, expected: list[tuple[str | None, int]]) -> None:
    (node,) = parse_nodes(f"NodeName=n1 Gres={gres} State=IDLE Partitions=gpu\n")
    assert [(gpus.type, gpus.count) for gpus in node.gpus] == expected


def test_partitions() -> None:
    text = (
        "PartitionName=gpu AllowGroups=ALL Default=YES MaxNodes=4 State=UP TotalNodes=3\n"
        "PartitionName=old Default=NO MaxNodes=UNLIMITED State=INACTIVE\n"
    )
    gpu, old = parse_partitions(text)
    assert (gpu.name, gpu.is_up, gpu.is_default, gpu.max_nodes) == ("gpu", True, True, 4)
    assert (old.is_up, old.is_default, old.max_nodes) == (False, False, None)


def test_a_cluster_has_the_partitions_of_its_nodes_even_if_they_cannot_be_listed() -> None:
    cluster = parse_cluster(SLURM_20_11, "")
    assert [partition.name for partition in cluster.partitions] == ["gpu", "long"]
    with pytest.raises(CannotTellError, match="lists no node"):
        parse_cluster("slurm_load_node: nothing\n", "")
