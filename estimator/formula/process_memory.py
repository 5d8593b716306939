"""Memory of a training process around its step: CUDA context, cuBLAS workspaces, NCCL's own buffers, a vLLM."""

import re
from collections.abc import Iterable

from msgspec import Struct

from ..common.sizes import GIB, KIB, MIB
from ..job.gpu_catalogue import Generation, Gpu
from ..job.resolved_job import ResolvedJob
from ..job.rules.strategies import STRATEGIES
from ..job.rules.version_rules import VersionRules
from ..job.settings import Parallel
from ..model.rank_share import Stage

_NCCL_PAIR_BYTES = 544 * MIB
_NCCL_BYTES = 688 * MIB
"""A communicator of two ranks, and of more, after its first all-reduce (4 x A100, NVIDIA/nccl#964)."""
_NCCL_PEER_BYTES = 32 * 12 * MIB
"""Buffers of the first all-to-all per peer on the same machine: 32 channels, with 10 MiB to receive and 2 to send
(8 x H100, NVIDIA/nccl#1685)."""
_GPUS_PER_MACHINE = 8
"""Expert-parallel peers beyond that are on other machines: a job does not say how many GPUs a machine has."""
_KERNELS_BYTES = 120 * MIB
"""Kernels of cuBLAS, flash attention and torch that a training step loads into the context: a judgment, of which no
observation by itself is known; the range of the context is several times as wide."""
_ALL_KERNELS_BYTES = 450 * MIB
"""All kernels, beside the context: A100, torch 1.13 and 2.1 with CUDA_MODULE_LOADING=EAGER, 922 and 942 MiB."""
_CUDNN_BYTES = 245 * MIB
"""cuDNN's library with all kernels: an A100 shows 1,688 MiB with convolutions and 1,443 without (arXiv 2602.17817)."""
_CUDNN_KERNELS_BYTES = _CUDNN_BYTES // 4
"""Its kernels that convolutions load, where each is loaded when it first runs: a judgment."""
VLLM_GRAPHS_BYTES = 750 * MIB
"""``Estimated CUDA graph memory: 0.73 GiB`` (vllm-project/vllm#39559)."""
_UNKNOWN_GPU_BYTES = 80 * GIB
"""Total memory of a GPU that is not known, of which a vLLM takes its share."""
_WORKSPACE_PAIRS = re.compile(r":(\d+):(\d+)")


def context_bytes(
    versions: VersionRules, generation: Generation, *, kernels: bool = True, convolves: bool = False
) -> int:
    """Return the bytes of CUDA context, driver libraries and loaded kernels of one process.

    Args:
        versions: they decide when kernels are loaded.
        generation: of the GPU.
        kernels: a step has run and its kernels are loaded; otherwise there are only the weights.
        convolves: cuDNN has run a convolution.
    """
    if versions.loads_whole_libraries:
        return generation.eager_context_mib * MIB
    if versions.loads_kernels_eagerly:
        return generation.context_bytes + _ALL_KERNELS_BYTES + convolves * _CUDNN_BYTES
    kernels_bytes = _KERNELS_BYTES + convolves * _CUDNN_KERNELS_BYTES
    return generation.context_bytes + (kernels_bytes if kernels else 0)


def workspace_bytes(
    generation: Generation, *, setting: str | None = None, transformer_engine: bool = False, experts: bool = False
) -> int:
    """Return the bytes of cuBLAS workspaces, which torch allocates for the main and the autograd thread.

    Args:
        generation: of the GPU.
        setting: ``CUBLAS_WORKSPACE_CONFIG``: pairs of a size in KiB and a number (torch's CublasHandlePool.cpp).
        transformer_engine: TransformerEngine runs the linear layers and has a workspace of its own.
        experts: TransformerEngine runs experts too, on four streams with a workspace each.
    """
    pairs = _WORKSPACE_PAIRS.findall(setting) if setting else ()
    stated = sum(int(size) * KIB * int(count) for size, count in pairs)
    engines = (5 if experts else 1) if transformer_engine else 0
    thread = stated if pairs else generation.cublas_workspace_kib * KIB
    return 2 * thread + engines * generation.engine_workspace_mib * MIB


def gathered_input_bytes(job: ResolvedJob, hidden: int, stage: Stage) -> int:
    """Return the bytes of the buffer in which Megatron's head gathers its split input, and which is never freed.

    Source: ``GlobalMemoryBuffer.get_tensor`` in megatron/core/utils.py, which core/tensor_parallel/layers.py calls
    (Megatron-LM, January 2026).
    """
    split = job.framework.saves_split_inputs and job.parallel.sequence_parallel and job.parallel.tensor > 1
    return job.widths.compute * hidden * job.local_tokens if split and stage.last else 0


def batch_mask_bytes(job: ResolvedJob, stage: Stage) -> int:
    """Return the bytes of the attention mask that a batch brings to the first and the last stage.

    Each rank has the rows of its own positions. Megatron-LM makes it unless told not to with
    ``--no-create-attention-mask-in-dataloader`` (core/datasets/gpt_dataset.py; ``get_batch`` of pretrain_gpt.py slices
    it; January 2026).
    """
    made = job.framework.masks_in_batch and (stage.first or stage.last)
    return job.local_tokens * job.training.sequence_length if made else 0


def nccl_bytes(parallel: Parallel) -> int:
    """Return the bytes of NCCL's own buffers on one rank; 0 for a single rank.

    There is one communicator for each dimension of the job's mesh and, unless that is the same, one for all ranks.
    More communicators take more (NVIDIA/nccl#986), more machines than two hardly do. DeepSpeed reduces gradients in a
    clone of the group of all ranks (``_clone_world_group`` of deepspeed/utils/groups.py, 0.14 to 0.19), which has its
    own.
    """
    if parallel.world_size == 1:
        return 0
    dimensions = (
        parallel.data_shard * parallel.context if parallel.data_shard > 1 else 1,
        parallel.data_replicate,
        parallel.tensor,
        parallel.pipeline,
        parallel.context,
    )
    groups = {size for size in dimensions if size == parallel.world_size}  # all ranks: one and the same
    sizes = [*groups, *(size for size in dimensions if 1 < size < parallel.world_size)]
    sizes += [] if groups else [parallel.world_size]
    sizes += [parallel.world_size] if STRATEGIES[parallel.strategy].deepspeed else []
    return communicator_bytes(sizes) + (min(parallel.expert, _GPUS_PER_MACHINE) - 1) * _NCCL_PEER_BYTES


def communicator_bytes(sizes: Iterable[int]) -> int:
    """Return the bytes of NCCL's communicators of these numbers of ranks; one rank has none."""
    return sum(_NCCL_PAIR_BYTES if size == 2 else _NCCL_BYTES for size in sizes if size > 1)


class ColocatedVllm(Struct, frozen=True, kw_only=True):
    """Bytes that a vLLM in the training process takes of one GPU; zeros without one."""

    weights: int = 0
    """Its own copy of the weights."""
    cache: int = 0
    """The rest of its share: its cache, and the activations of its largest step."""
    sleeps: bool = False
    """Its memory is given back between rollouts."""

    @property
    def total_bytes(self) -> int:
        """The whole share."""
        return self.weights + self.cache


def colocated_vllm(job: ResolvedJob, stage: Stage, gpu: Gpu | None) -> ColocatedVllm:
    """Return the memory of a vLLM that runs beside training: its share of the GPU, however little it needs.

    Args:
        job: the job.
        stage: a rank's parameters, for the weights that vLLM loads again.
        gpu: the GPU; None: not known, so one of 80 GiB.
    """
    rollout = job.rollout
    if rollout is None or rollout.engine != "vllm":
        return ColocatedVllm()
    total = gpu.total_bytes if gpu is not None else _UNKNOWN_GPU_BYTES
    share = int(rollout.gpu_memory_utilization * total)
    weights = min(share, stage.elements() * job.widths.compute // rollout.tensor)
    return ColocatedVllm(weights=weights, cache=share - weights, sleeps=rollout.sleep)
