"""vLLM: a job that is served instead of trained, by arithmetic on what its worker allocates.

Checked against figures that vLLM itself logged (``tests/estimator/test_serving.py`` names them).
"""

from ..budget.budget import Budget, Components, Method, ModelFacts, Peak, Phase
from ..budget.serving_need import ServingNeed
from ..common.sizes import GIB, MIB
from ..job.dtype_widths import Widths, read_widths
from ..job.gpu_catalogue import Gpu
from ..job.job import Inference, Job
from ..model.architecture import Architecture
from ..model.parameters import Inventory
from ..model.rank_share import LocalParameters, Stage, stages
from .activations.kv_cache import layer_token_bytes, prefill_tokens, sequence_cache_bytes
from .cuda_overhead import context_bytes
from .host_memory import host_need_of

_LINEAR_BYTES = {"fp8": 1.0, "int8": 1.0, "int4": 0.5 + 2.5 / 128}
"""Per weight; AWQ and GPTQ: 4 bits, and a 16-bit scale and a 4-bit zero per group of 128."""
_SAMPLER_BYTES = 41
"""Per logit of the sequences that are sampled at once: fp32 logits, sorted with their indices, probabilities and their
sums. 1.26 GiB for 256 sequences of Llama 3's vocabulary on one rank and on each of two (vllm-project/vllm#10511)."""
_LIBRARIES_BYTES = 250 * MIB
"""NCCL, cuBLAS and attention kernels' own buffers: 0.16 to 0.35 GiB in vLLM's logs (#12126, #13061, #10517)."""
_GRAPHS_BYTES = 750 * MIB
"""``Estimated CUDA graph memory: 0.73 GiB`` (vllm-project/vllm#39559)."""
_LARGE_CARD_BYTES = 70 * GIB


def serving_budget(
    job: Job, arch: Architecture, inventory: Inventory, *, method: Method, gpu: Gpu | None = None
) -> Budget:
    """What vLLM needs at least: to start, and for one sequence of full length. ``serving`` says what it makes of more.

    Raises:
        InputError: the job is spread over more than the model has.
    """
    widths = read_widths(job)
    held = stages(job, inventory)
    needs = [_need(job, arch, stage, widths, gpu) for stage in held]
    need = max(needs, key=lambda each: each.least_bytes)
    context = context_bytes(job, gpu)
    parts = Components(
        weights=need.weights,
        activations=need.sequence_bytes,
        temporary=need.activations,
        communication=need.libraries,
        context=context,
    )
    loaded = Components(weights=need.weights, context=context)
    outside = context + need.libraries
    total = parts.total_bytes
    return Budget(
        job=job,
        model=ModelFacts(parameters=inventory.parameters, trainable_parameters=0, count=inventory.count),
        method=method,
        phases=(
            Phase(name="loading", components=loaded, outside_bytes=context),
            Phase(name="forward", components=parts, outside_bytes=outside),
        ),
        peak=Peak(
            phase="forward",
            components=parts,
            allocated_bytes=total - outside,
            reserved_bytes=total - outside,
            device_bytes=total,
            low_bytes=total - round(0.5 * need.activations) - need.libraries // 2,
            high_bytes=need.high_bytes + context,
        ),
        steady_device_bytes=total,
        assumptions=tuple(_assumptions(job, arch, gpu)),
        warnings=(),
        host=host_need_of(job, arch, inventory, held, widths),
        serving=need,
    )


def _need(job: Job, arch: Architecture, stage: Stage, widths: Widths, gpu: Gpu | None) -> ServingNeed:
    asked = job.inference or Inference()
    sequences, length = job.training.micro_batch, job.training.sequence_length
    step = prefill_tokens(job, large_card=_large(gpu))
    return ServingNeed(
        utilization=asked.gpu_memory_utilization,
        weights=round(sum(_weight_bytes(held, asked.weights, widths) for held in stage.parameters)),
        activations=max(_prefill_bytes(job, arch, widths, step), _sampler_bytes(arch, stage, min(sequences, step))),
        libraries=_LIBRARIES_BYTES,
        graphs=_GRAPHS_BYTES,
        sequence_bytes=sequence_cache_bytes(job, arch, stage.layers, widths, length),
        token_bytes=layer_token_bytes(job, arch, widths) * stage.layers,
        sequences=sequences,
        length=length,
    )


def _large(gpu: Gpu | None) -> bool:
    return gpu is None or (gpu.total_bytes >= _LARGE_CARD_BYTES and "a100" not in gpu.name)


def _weight_bytes(held: LocalParameters, stored: str, widths: Widths) -> float:
    linear = held.group.linear or held.group.role == "expert"
    if stored in _LINEAR_BYTES and linear and held.group.role != "head":
        return held.elements * _LINEAR_BYTES[stored]
    return held.elements * widths.compute


def _prefill_bytes(job: Job, arch: Architecture, widths: Widths, tokens: int) -> int:
    """A step's MLP: what it reads and gives, and both projections and their product; fused experts likewise.

    3 f + 3 h elements per token: 2.07 GiB for 20,000 tokens and 2.99 for 29,000 of Llama-3.1-8B (#10517).
    """
    tensors, split = (3 if arch.gated else 2), job.parallel.tensor
    mlp = tensors * max(arch.mlp_size if arch.dense_layers else 0, arch.shared_mlp_size) / split
    experts = arch.experts_per_token * (tensors * arch.expert_mlp_size / split + arch.hidden)
    return round(tokens * widths.compute * (max(mlp, experts) + 3 * arch.hidden))


def _sampler_bytes(arch: Architecture, stage: Stage, sequences: int) -> int:
    return _SAMPLER_BYTES * sequences * arch.vocab if stage.last and arch.has_vocab_head else 0


def _assumptions(job: Job, arch: Architecture, gpu: Gpu | None) -> list[str]:
    share = (job.inference or Inference()).gpu_memory_utilization
    step = prefill_tokens(job, large_card=_large(gpu))
    card = gpu.label if gpu else "a card of the Hopper generation"
    said = [
        f"CUDA context as on {card}.",
        f"vLLM takes {share:g} of the card's total, whatever it needs; the figures here "
        "are the least it starts with: weights, its largest step, and the cache of one sequence of full length.",
        f"A step has {step:,} tokens at most (max_num_batched_tokens), and samples for {job.training.micro_batch}.",
    ]
    if arch.sliding_window:
        said.append("Layers with a sliding window keep that much alone (vLLM's hybrid cache manager).")
    return said
