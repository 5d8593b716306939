"""vLLM and SGLang: a served job, by arithmetic on what its worker allocates.

Checked against figures that vLLM itself logged (``tests/estimator/formula/test_serving.py`` names them).
"""

from ..budget import Budget, Components, Method, ModelFacts, Peak, Phase
from ..common.sizes import GIB, MIB
from ..job.gpu_catalogue import Gpu
from ..job.rules.dtype_widths import BYTES_PER_ELEMENT
from ..job.settings import Inference
from ..model.rank_share import LocalParameters, Stage
from ..serving_need import ServingNeed
from .host_memory import host_need_of_plan
from .key_value_cache import layer_token_bytes, prefill_tokens, sequence_cache_bytes
from .plan import Plan
from .process_memory import VLLM_GRAPHS_BYTES, context_bytes, nccl_bytes

_SAMPLER_BYTES_PER_LOGIT = 41
"""For the sequences that are sampled at once: fp32 logits, sorted with their indices, probabilities and their sums.
1.26 GiB for 256 sequences of Llama 3's vocabulary on one rank and on each of two (vllm-project/vllm#10511)."""
_LIBRARIES_BYTES = 250 * MIB
"""Buffers of NCCL, cuBLAS and attention kernels: 0.16 to 0.35 GiB in vLLM's logs (#12126, #13061, #10517)."""
_LARGE_GPU_BYTES = 70 * GIB
_UNKNOWN_VERSION_DOUBT = 0.02
"""Share of the GPU by which the defaults of versions before and since 0.20 differ."""


def serving_budget(plan: Plan, *, method: Method) -> Budget:
    """Return the least memory with which vLLM starts, with the cache of one sequence of full length.

    Its ``serving`` holds the figures for larger GPUs.
    """
    needs = [_need(plan, stage) for stage in plan.distinct_stages]
    need = max(needs, key=lambda each: each.least_bytes)
    context = context_bytes(plan.job.versions, plan.generation)
    parts = Components(
        weights=need.weights,
        activations=need.cache or need.sequence_bytes,
        temporary=need.activations,
        communication=need.libraries,
        context=context,
    )
    loaded = Components(weights=need.weights, context=context)
    outside = context + need.libraries
    total = parts.total_bytes
    return Budget(
        job=plan.job.job,
        model=ModelFacts(
            parameters=plan.inventory.parameters,
            trainable_parameters=0,
            count=plan.inventory.count,
            max_positions=plan.arch.max_positions,
        ),
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
            high_bytes=total + need.high_bytes - need.least_bytes,
        ),
        steady_device_bytes=total,
        assumptions=tuple(_serving_assumptions(plan)),
        warnings=(),
        host=host_need_of_plan(plan),
        serving=need,
    )


def _need(plan: Plan, stage: Stage) -> ServingNeed:
    job, arch = plan.job, plan.arch
    asked, widths = job.inference or Inference(), job.widths
    sequences, length = job.training.micro_batch, job.training.sequence_length
    step = prefill_tokens(job, large_card=_is_large(plan.gpu))
    vllm, versions = asked.engine == "vllm", job.versions
    known = versions.knows_vllm if vllm else versions.knows_sglang
    sampler = _SAMPLER_BYTES_PER_LOGIT * min(sequences, step) * arch.vocab if stage.last and arch.has_vocab_head else 0
    return ServingNeed(
        engine=plan.job.job.engine_name or "",
        utilization=asked.gpu_memory_utilization,
        weights=round(sum(_weight_bytes(held, asked.weights, widths.compute) for held in stage.parameters)),
        activations=max(_prefill_bytes(plan, step), sampler),
        libraries=_LIBRARIES_BYTES,
        graphs=VLLM_GRAPHS_BYTES if asked.cuda_graphs else 0,
        sequence_bytes=sequence_cache_bytes(job, arch, stage.layers, length),
        token_bytes=layer_token_bytes(job, arch) * stage.layers,
        sequences=sequences,
        length=length,
        cache=asked.cache_bytes,
        context=context_bytes(job.versions, plan.generation),
        communication=0 if vllm and versions.counts_nccl else nccl_bytes(job.parallel),
        graphs_in_share=vllm and versions.counts_cuda_graphs,
        context_in_share=vllm and versions.counts_context,
        share_is_of_free=not vllm,
        share_doubt=0.0 if known else _UNKNOWN_VERSION_DOUBT,
        sleeps=asked.sleep,
    )


def _is_large(gpu: Gpu | None) -> bool:
    return gpu is None or (gpu.total_bytes >= _LARGE_GPU_BYTES and "a100" not in gpu.name)


def _weight_bytes(held: LocalParameters, stored: str, compute_width: int) -> float:
    linear = (held.group.linear or held.group.role == "expert") and held.group.role != "head"
    return held.elements * (BYTES_PER_ELEMENT.get(stored, compute_width) if linear else compute_width)


def _prefill_bytes(plan: Plan, tokens: int) -> int:
    """Return the memory of the MLP, or of the fused experts, in one step: input, output, projections and product.

    3 f + 3 h elements per token: 2.07 GiB for 20,000 tokens and 2.99 for 29,000 of Llama-3.1-8B (#10517).
    """
    arch = plan.arch
    tensors, split = (3 if arch.gated else 2), plan.job.parallel.tensor
    mlp = tensors * max(arch.mlp_size if arch.dense_layers else 0, arch.shared_mlp_size) / split
    experts = arch.experts_per_token * (tensors * arch.expert_mlp_size / split + arch.hidden)
    return round(tokens * plan.job.widths.compute * (max(mlp, experts) + 3 * arch.hidden))


def _serving_assumptions(plan: Plan) -> list[str]:
    share = (plan.job.inference or Inference()).gpu_memory_utilization
    step = prefill_tokens(plan.job, large_card=_is_large(plan.gpu))
    gpu = plan.gpu.label if plan.gpu else "a Hopper GPU"
    engine = plan.job.job.engine_name
    of, tokens = ("total", "max_num_batched_tokens") if engine == "vLLM" else ("free memory", "chunked_prefill_size")
    found = [
        f"The CUDA context is that of {gpu}.",
        f"{engine} always takes {share:g} of the GPU's {of}. These figures are the minimum it starts with: weights, "
        "its largest step, and the cache of one full-length sequence.",
        f"A step has at most {step:,} tokens ({tokens}) and samples for {plan.job.training.micro_batch} sequences.",
    ]
    if plan.arch.sliding_window:
        found.append("Layers with a sliding window keep only that many tokens (vLLM's hybrid cache manager).")
    return found
