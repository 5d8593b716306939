"""Wordings in which programs say that memory ran out: one table, with what each tells and what helps."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..common.sizes import size_text
from .records import FailureKind, OutOfMemory

SIZE = r"\d[\d,]{0,24}(?:\.\d{1,9})? ?(?:bytes|[KMGTPE]i?B?|B)\b"
_PARTS = re.compile(r"([\d,]+(?:\.\d+)?) ?([A-Za-z]*)")
_MAX_BYTES = 2**50
"""Larger figures are -1 as an unsigned number: the driver did not know."""


def size_bytes(text: str, *, binary: bool = False) -> int | None:
    """Return the bytes of a size such as ``2.25GiB``, ``20.00 MiB``, ``0 bytes`` or ``184549376B``; None: unknown.

    Args:
        text: a size; XLA's ``G`` and ``M`` are powers of 1024. Without a unit it is bytes, a decimal GiB.
        binary: ``GB`` and ``MB`` are powers of 1024 too.
    """
    match = _PARTS.match(text)
    if match is None or len(match[1]) > 24:
        return None
    unit = match[2] or ("GiB" if "." in match[1] else "")
    power = "KMGTPE".find(unit[0].upper()) + 1 if unit and unit != "bytes" else 0
    base = 1000 if len(unit) == 2 and not binary else 1024
    size = float(match[1].replace(",", "")) * base**power
    return round(size) if size < _MAX_BYTES else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """One way of saying that memory ran out."""

    kind: FailureKind
    source: str | None = None
    """Name of the program or library that says it; None: the wording does not tell."""
    pattern: str
    """Regular expression of the line that says it; named groups are figures."""
    sure: bool = True
    """False: it has other causes than memory too."""
    caught: bool = False
    """The line says that the program goes on."""
    figures: tuple[str, ...] = ()
    """Expressions whose named groups are figures too, in the same line or one that follows it."""
    binary: bool = False
    """``MB`` and ``GB`` are powers of 1024 here."""
    says: tuple[str, ...] = ()
    """What it means and what helps; ``{name}`` is a figure, and a sentence whose figures the log lacks is left out."""
    derive: Callable[[Mapping[str, int]], dict[str, str]] | None = None
    """Makes further figures, as text, of the sizes."""

    def memory(self, found: Mapping[str, str]) -> OutOfMemory | None:
        """Return the figures of the GPU; None: the log has none."""
        known = {name: self.size(found[name]) for name in ("tried", "total", "free", "allocated") if name in found}
        if self.kind in ("host", "killed", "on chip") or not (known or "gpu" in found):
            return None
        return OutOfMemory(
            backend=self.source or "CUDA",
            gpu=int(found["gpu"]) if "gpu" in found else None,
            tried_bytes=known.get("tried"),
            total_bytes=known.get("total"),
            free_bytes=known.get("free"),
            allocated_bytes=known.get("allocated"),
        )

    def sentences(self, found: Mapping[str, str]) -> Iterator[str]:
        """Yield what it says, with the figures of the log.

        Args:
            found: figures by name, as the log has them.
        """
        sizes = {name: size for name, text in found.items() if name in _SIZES and (size := self.size(text)) is not None}
        texts = {name: text for name, text in found.items() if name not in _SIZES}
        texts |= {name: size_text(size) for name, size in sizes.items()}
        if self.derive is not None:
            texts |= self.derive(sizes)
        for sentence in self.says:
            if all(name in texts for name in re.findall(r"\{(\w+)\}", sentence)):
                yield sentence.format_map(texts)

    def size(self, text: str) -> int | None:
        """Return the bytes of a size as this program prints it."""
        return size_bytes(text, binary=self.binary)


_SIZES = frozenset(
    "tried total free allocated needed wanted room used node beyond arguments outputs temporaries".split()  # noqa: SIM905
)
"""Names of figures that are sizes; all others are words or numbers, shown as they are."""

_SMALLER = "Make the batch or the sequences smaller, or checkpoint activations."
_SHARED_GPU = (
    "If another process uses the GPU, lower XLA_PYTHON_CLIENT_MEM_FRACTION or set XLA_PYTHON_CLIENT_PREALLOCATE=false: "
    "JAX takes 75 % of the GPU when it starts."
)
_TF_SMALLER = (
    "Make the batch smaller. If another process uses the GPU, set TF_FORCE_GPU_ALLOW_GROWTH=true: TensorFlow takes all "
    "of it when it starts."
)
_TPU_SMALLER = "Make the batch smaller, shard over more chips, or recompute activations (jax.checkpoint)."
_SERVER = "Lower --max-model-len or --max-num-seqs, quantize the weights, or use more GPUs (--tensor-parallel-size)."
_LLAMA_CPP = "Put fewer layers on the GPU (-ngl), shorten the context (-c), or take a smaller quantization."
_POSSIBLE = (
    "On a full GPU this is usually memory: {what}. It has other causes too, such as a driver or library version that "
    "does not match."
)


def _of_vllm_share(sizes: Mapping[str, int]) -> dict[str, str]:
    """Return what others hold, and the largest share of the GPU that is free, rounded down to two decimals."""
    if not {"free", "total"} <= sizes.keys() or not sizes["total"]:
        return {}
    share = int(100 * sizes["free"] / sizes["total"]) / 100
    return {"others": size_text(sizes["total"] - sizes["free"]), "share": f"{share:.2f}"}


# XLA: xla/service/buffer_assignment.cc, xla/stream_executor/*_executor_memory_allocator.cc, and its TPU compiler
_XLA_STATS = (
    rf"parameter allocation: +(?P<arguments>{SIZE})",
    rf"maybe_live_out allocation: +(?P<outputs>{SIZE})",
    rf"preallocated temp allocation: +(?P<temporaries>{SIZE})",
    rf"total allocation: +(?P<needed>{SIZE})",
)
_XLA = (
    "The program needs {needed}: arguments {arguments}, outputs {outputs}, temporaries {temporaries}.",
    _SMALLER.replace("checkpoint activations", "recompute activations (jax.checkpoint)"),
    _SHARED_GPU,
)
# tsl/framework/bfc_allocator.cc, tensorflow/core/framework/op_kernel.cc
_TF_FIGURES = (
    r"requested by op (?P<op>[^\s.]\S*)",
    rf"Sum Total of in-use chunks: (?P<allocated>{SIZE})",
    r"\bLimit: +(?P<total>\d+)",
    r"\bInUse: +(?P<allocated>\d+)",
    r"OOM when allocating tensor with shape ?(?P<shape>\[[\d,]*\]) and type (?P<type>\w+)",
)
_TF = (
    "The op was {op}.",
    "The tensor has the shape {shape}, of {type}.",
    "TensorFlow's allocator had {allocated} of its {total} in use.",
    _TF_SMALLER,
)
_KV_LENGTH = "Serve shorter sequences, --max-model-len {length}, or raise --gpu-memory-utilization if memory is free."

WORDINGS: tuple[Wording, ...] = (
    # --- CPU RAM: monitors and servers that say so themselves
    Wording(  # ray: src/ray/raylet/worker_killing_policy.cc, node_manager.cc
        kind="killed",
        source="Ray's memory monitor",
        pattern=r"due to the node running low on memory|killed due to memory pressure \(OOM\)|\bNODE_OUT_OF_MEMORY\b",
        figures=(
            rf"\bwas (?P<used>{SIZE}) / (?P<node>{SIZE})",
            r"memory usage threshold of (?P<threshold>[\d.]+\d)",
        ),
        binary=True,
        says=(
            "CPU RAM of the node ran out, not GPU memory: Ray's memory monitor killed a task or an actor.",
            "The node had {used} of {node} in use.",
            "Ray kills when a share of {threshold} of the RAM is in use (RAY_memory_usage_threshold).",
            "Run fewer tasks or actors on each node (num_cpus, memory), or use a node with more RAM.",
        ),
    ),
    Wording(
        kind="host",
        source="Ray",
        pattern=r"\bObjectStoreFullError\b",
        says=(
            "Ray's object store in shared memory is full; GPU memory was not the cause.",
            "Give it more (ray start --object-store-memory), or hold fewer objects at once.",
        ),
    ),
    Wording(  # ollama: server/sched.go, llm/server.go
        kind="host",
        source="Ollama",
        pattern=rf"model requires more system memory \((?P<tried>{SIZE})\) than is available \((?P<room>{SIZE})\)",
        says=("The model needs {tried} of CPU RAM, and {room} are available: take a smaller model or quantization.",),
    ),
    Wording(
        kind="host",
        source="llama.cpp",
        pattern=r"ggml_\w{1,30}: [Ff]ailed to allocate (?:(?P<tried>[\d.]+ MiB) of )?pinned memory",
        caught=True,
        says=("llama.cpp could not pin {tried} of CPU RAM.", "It uses ordinary memory instead, which is slower."),
    ),
    Wording(  # triton-inference-server: core/src/memory.cc, pinned_memory_manager.cc
        kind="gpu library",
        source="Triton server",
        pattern=r"ailed to allocate CUDA memory with byte size (?P<tried>\d+) on GPU (?P<gpu>\d+):.{0,80}falling back",
        caught=True,
        says=(
            "The pool that the server sets aside is used up, so it takes pinned CPU RAM, which is slower: "
            "--cuda-memory-pool-byte-size makes the pool larger.",
        ),
    ),
    Wording(  # ggml/src/ggml-backend.cpp, ggml-alloc.c; the Host buffers are pinned CPU RAM
        kind="host",
        source="llama.cpp",
        pattern=r"(?:ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate"
        r"|(?:failed|unable) to allocate (?:CPU|(?:CUDA|ROCm|Vulkan|SYCL|MUSA)_Host)\w{0,20}) buffer"
        r"(?: of size (?P<tried>\d+))?",
        says=(
            "CPU RAM ran out, not GPU memory: it holds what the GPU has no room for.",
            "Free RAM, map the file instead of reading it (no --no-mmap), shorten the context (-c), or take a smaller "
            "quantization.",
        ),
    ),
    Wording(
        kind="host",
        source="Java or Node",
        pattern=r"java\.lang\.OutOfMemoryError|JavaScript heap out of memory",
        says=(
            "The heap of the process is full (Spark: spark.executor.memory, spark.driver.memory; Node: "
            "--max-old-space-size), not a GPU.",
        ),
    ),
    Wording(
        kind="host",
        source="Windows",
        pattern=r"\[WinError (?:8|1455)\]|[Pp]aging file is too small",
        says=(
            "Windows has no space left in RAM and its paging file; GPU memory was not the cause.",
            "Make the paging file larger, or load with fewer DataLoader workers.",
        ),
    ),
    Wording(
        kind="host",
        source="TensorFlow",
        pattern=r"OOM when allocating tensor with shape ?(?P<shape>\[[\d,]*\]) and type (?P<type>\w+) on .{0,200}"
        r"device:(?:CPU|cpu):",
        says=("CPU RAM ran out, not GPU memory, for a tensor of shape {shape}, of {type}.",),
    ),
    Wording(  # torch/utils/data/_utils/signal_handling.py, aten/src/ATen/MapAllocator.cpp; nccl: src/misc/shmutils.cc
        kind="host",
        source="shared memory",
        pattern=r"is killed by signal: Bus error|dataloader's workers are out of shared memory"
        r"|(?:unable to (?:write|mmap|resize|open).{0,40} file </torch_|/dev/shm/).{0,200}"
        r"(?:No space left|Cannot allocate)"
        r"|No space left on device.{0,20}/dev/shm/|Error while creating shared memory segment",
        says=(
            "Shared memory (/dev/shm) is full: DataLoader workers pass their batches through it, and NCCL the data of "
            "ranks on one host. GPU memory was not the cause.",
            "In a container, make it larger (docker run --shm-size 8g, or --ipc=host; Kubernetes: an emptyDir with "
            "medium Memory at /dev/shm), or use fewer DataLoader workers.",
        ),
    ),
    Wording(  # concurrent.futures.process; datasets/arrow_dataset.py
        kind="host",
        source="worker process",
        pattern=r"in the process pool was terminated abruptly|subprocesses has abruptly died"
        r"|workers, but all those workers died",
        sure=False,
        says=(
            "A worker process ended without a message: it crashed, or was killed, usually because CPU RAM ran out. GPU "
            "memory was not the cause.",
            "Look at dmesg -T | grep -i oom, or try again with fewer processes (num_proc, max_workers).",
        ),
    ),
    Wording(
        kind="host",
        source="bus error",
        pattern=r"\bBus error\b",
        sure=False,
        says=(
            "A process ended with a bus error: a page of a mapped file was not there. In training that is usually a "
            "full /dev/shm, through which DataLoader workers and NCCL pass data; a full disk or a file that was "
            "truncated while it was read does it too. GPU memory was not the cause.",
            "Look at df -h /dev/shm while the job runs; in a container make it larger (docker run --shm-size 8g).",
        ),
    ),
    Wording(  # vllm/config/cache.py: verify_cache_config
        kind="host",
        source="vLLM",
        pattern=r"Too large swap space\. (?P<wanted>[\d.]+ GiB) out of the (?P<room>[\d.]+ GiB) total CPU memory",
        says=("vLLM would take {wanted} of {room} of CPU RAM for swapped sequences: lower --swap-space (per GPU).",),
    ),
    Wording(  # tensorflow/.../gpu_host_allocator.h, cuda_driver.cc: HostAllocate
        kind="host",
        source="TensorFlow",
        pattern=r"(?:failed to alloc|could not allocate pinned host memory of size:?) "
        r"(?P<tried>\d+)(?= bytes on host|\s*$)",
        says=("The driver could not pin CPU RAM: too little is free, or ulimit -l forbids it.",),
    ),
    # --- memory on the chip, of which each block of a kernel gets a part
    Wording(  # triton/runtime/errors.py: OutOfResources
        kind="on chip",
        source="Triton",
        pattern=r"out of resource: (?P<what>(?:shared|tensor) memory), Required: (?P<asked>\d+),"
        r" Hardware limit\w*: (?P<limit>\d+)",
        says=(
            "A kernel needs {asked} bytes of the chip's {what}, and this GPU has {limit} for it: GPU memory was not "
            "the cause, and a smaller batch does not help.",
            "Use smaller blocks or fewer stages (num_stages), a shorter head dimension, another attention backend, or "
            "a version of the library that knows this GPU.",
        ),
    ),
    # --- servers that refuse to start
    Wording(  # vllm/v1/worker/gpu_worker.py, vllm/v1/worker/utils.py: request_memory
        kind="start",
        source="vLLM",
        pattern=rf"Free memory on device(?: \S+)? \((?P<free>[\d.]+)/(?P<total>{SIZE})\) on startup is less than",
        figures=(rf"desired GPU memory utilization \((?P<asked>[\d.]+), (?P<wanted>{SIZE})\)",),
        says=(
            "vLLM wants {wanted} (--gpu-memory-utilization {asked}), and {free} of {total} are free: {others} are held "
            "by other processes or by an earlier run that has not ended.",
            "Free them, or start with --gpu-memory-utilization {share} or less.",
        ),
        derive=_of_vllm_share,
    ),
    Wording(  # vllm/v1/core/kv_cache_utils.py; 0.6 and earlier: vllm/worker/worker.py
        kind="start",
        source="vLLM",
        pattern=r"No available memory for (?:the )?cache blocks",
        figures=(rf"Available KV cache memory: (?P<left>-?{SIZE})",),
        says=(
            "Weights and activations fill vLLM's share of the GPU, so no room is left for the KV cache.",
            "vLLM counted {left} for it.",
            "Raise --gpu-memory-utilization, or end other processes on the GPU. " + _SERVER,
        ),
    ),
    Wording(
        kind="start",
        source="vLLM",
        pattern=r"To serve at least one request with the models?'?s? max(?:imum)? seq(?:uence)? len(?:gth)? "
        r"\((?P<asked>\d+)\)",
        figures=(
            rf"(?P<needed>{SIZE}) KV cache is needed",
            rf"available KV cache memory \((?P<room>{SIZE})\)",
            r"estimated maximum model length is (?P<length>\d+)",
        ),
        says=(
            "One sequence of {asked} tokens needs {needed} of KV cache, and vLLM has {room} for it.",
            _KV_LENGTH,
            "Otherwise: an fp8 KV cache (--kv-cache-dtype fp8), quantized weights, or more GPUs "
            "(--tensor-parallel-size).",
        ),
    ),
    Wording(
        kind="start",
        source="vLLM",
        pattern=r"max seq len \((?P<asked>\d+)\) is larger than the maximum number of tokens that can be stored in "
        r"(?:the )?KV cache \((?P<length>\d+)\)",
        says=("One sequence of {asked} tokens is too long: the KV cache has room for {length} tokens.", _KV_LENGTH),
    ),
    Wording(
        kind="start",
        source="vLLM",
        pattern=rf"Error in memory profiling\. Initial free memory (?P<free>{SIZE}|\d+)",
        sure=False,
        says=(
            "Another process gave GPU memory back while vLLM measured what it may use: memory had not run out.",
            "Start vLLM after the others have ended, or set --kv-cache-memory-bytes, which skips the measurement.",
        ),
    ),
    Wording(  # vllm/v1/worker/gpu_model_runner.py
        kind="start",
        source="vLLM",
        pattern=r"out of memory occurred when warming up (?P<what>\w+) with (?P<requests>\d+) dummy requests",
        says=(
            "The GPU was full when vLLM warmed up its {what} with {requests} requests.",
            "Lower --max-num-seqs or --gpu-memory-utilization.",
        ),
    ),
    Wording(  # sglang/srt/model_executor: MemoryPoolConfig, ModelRunner.init_memory_pool
        kind="start",
        source="SGLang",
        pattern=r"Not enought? memory\. Please try (?:to increase|increasing) --mem-fraction-static",
        figures=(r"mem_fraction_static=(?P<asked>[\d.]*\d)",),
        says=(
            "Weights fill SGLang's static share of the GPU, so no room is left for the KV cache.",
            "The share is --mem-fraction-static {asked}.",
            "Raise --mem-fraction-static, quantize the weights, or use more GPUs (--tp-size).",
        ),
    ),
    Wording(
        kind="start",
        source="SGLang",
        pattern=r"memory capacity is unbalanced",
        figures=(
            r"pre_model_load_memory=(?P<least>[\d.]+)",
            r"local_gpu_memory=(?P<here>[\d.]+)",
        ),
        says=(
            "One GPU of the group has much less free memory than the others; another process probably holds it.",
            "Look at the GPUs with vramtop --once and free them, or choose others (CUDA_VISIBLE_DEVICES).",
        ),
    ),
    Wording(
        kind="start",
        source="SGLang",
        pattern=r"Capture cuda graph failed: .{0,200}out of memory",
        says=(
            "The GPU was full when SGLang captured CUDA graphs.",
            "Lower --mem-fraction-static or --cuda-graph-max-bs.",
        ),
    ),
    Wording(
        kind="gpu library",
        source="SGLang",
        pattern=r"(?:Prefill|Decode) out of memory\. Try to lower your batch size",
        says=("The KV cache of SGLang is full.", "Lower --max-running-requests or --chunked-prefill-size."),
    ),
    Wording(  # sglang/srt/mem_cache/common.py: alloc_req_slots, whose pool has a row for each running request
        kind="gpu library",
        source="SGLang",
        pattern=r"alloc_req_slots runs out of memory|\bOut of request slots\b",
        sure=False,
        says=(
            "SGLang has no slot left for another request, though the GPU may have room: it was started for too few "
            "(--max-running-requests), or it loses slots, as some versions do.",
        ),
    ),
    Wording(  # text-generation-inference: server/text_generation_server/models/flash_causal_lm.py
        kind="start",
        source="text-generation-inference",
        pattern=r"Not enough memory to handle (?P<tokens>\d+) (?:prefill|total|max_total) tokens",
        says=(
            "The GPU has no room for a batch of {tokens} tokens.",
            "Lower --max-batch-prefill-tokens or --max-total-tokens.",
        ),
    ),
    Wording(
        kind="gpu library",
        source="CuPy",
        pattern=rf"[Oo]ut of memory (?:allocating|to allocate) (?P<tried>{SIZE}) "
        rf"\((?:allocated so far:|total) (?P<allocated>{SIZE})",
        says=("CuPy requested it; if CuPy shares the GPU with PyTorch, limit its pool (CUPY_GPU_MEMORY_LIMIT).",),
    ),
    # --- JAX, XLA, TensorFlow
    Wording(
        kind="gpu library",
        source="TensorFlow or XLA",
        pattern=rf"ran out of memory trying to allocate (?P<tried>{SIZE}).{{0,200}}"
        r"caller indicates that this is not a failure",
        caught=True,
        says=("This is a warning: the program continues with a slower algorithm that needs less memory.",),
    ),
    Wording(
        kind="gpu library",
        source="TPU",
        pattern=r"[Rr]an out of memory in memory space (?P<space>\w+)",
        figures=(
            rf"Used (?P<needed>{SIZE}) of (?P<total>{SIZE}) \w+\.",
            rf"Exceeded \w+ capacity by (?P<beyond>{SIZE})",
            rf"HLO temp +(?P<temporaries>{SIZE})",
            rf"arguments +(?P<arguments>{SIZE})",
        ),
        says=(
            "The program needs {needed} of the chip's {total} ({space}): {beyond} too much.",
            "Of them, arguments are {arguments} and temporaries {temporaries}.",
            _TPU_SMALLER,
        ),
    ),
    Wording(
        kind="gpu library",
        source="TPU",
        pattern=rf"RESOURCE_EXHAUSTED.{{0,200}}(?:Attempting to (?:reserve|allocate) (?P<tried>{SIZE})"
        rf"(?:.{{0,200}}There (?:are|is) (?P<free>{SIZE}) free)?"
        rf"|Hbm usage:? (?P<needed>{SIZE}).{{0,200}}exceeding available bytes: (?P<total>{SIZE}))",
        says=("The program needs {needed} of the chip's {total}.", _TPU_SMALLER),
    ),
    Wording(
        kind="gpu library",
        source="JAX/XLA",
        pattern=r"(?:Out of memory (?:while trying to allocate|allocating)"
        r"|\bxla/.{0,200}ran out of memory trying to allocate"
        r"|Failed to allocate(?: request for)?(?= .{0,60}(?:on device ordinal|for new constant))) "
        rf"(?P<tried>{SIZE})(?: \(\d+B\) on device ordinal (?P<gpu>\d+))?",
        figures=(*_XLA_STATS, rf"Sum Total of in-use chunks: (?P<allocated>{SIZE})"),
        says=_XLA,
    ),
    Wording(
        kind="gpu library",
        source="TensorFlow",
        pattern=rf"Allocator \(\w*?GPU_(?P<gpu>\d+)_bfc\) ran out of memory trying to allocate (?P<tried>{SIZE})"
        r"|OOM when allocating tensor with shape|errors_impl\.ResourceExhaustedError"
        r"|(?:RESOURCE_EXHAUSTED|Resource exhausted): ?failed to allocate memory",
        figures=(r"device:(?:GPU|gpu):(?P<gpu>\d+)", *_TF_FIGURES),
        says=_TF,
    ),
    Wording(
        kind="gpu library",
        source="TensorFlow",
        pattern=r"Dst tensor is not initialized",
        sure=False,
        says=(_POSSIBLE.format(what="TensorFlow could not copy a tensor to it"), _TF_SMALLER),
    ),
    Wording(  # xla/stream_executor/cuda/cuda_executor.cc, of TensorFlow and JAX
        kind="gpu library",
        source="TensorFlow or JAX",
        pattern=rf"failed to allocate (?P<tried>{SIZE}) \(\d+ bytes\) from device: (?:CUDA|HIP)_ERROR_",
        says=(
            "The driver could not allocate {tried} when the program took its share of the GPU. It asks for less then, "
            "so this alone does not end it.",
            _SHARED_GPU,
        ),
    ),
    # --- other frameworks and programs
    Wording(  # paddle/fluid/memory/allocation/cuda_allocator.cc
        kind="gpu library",
        source="PaddlePaddle",
        pattern=rf"Out of memory error on GPU (?P<gpu>\d+)\. +Cannot allocate (?P<tried>{SIZE}) memory",
        figures=(
            rf"(?P<allocated>{SIZE}) memory has been allocated",
            rf"available memory is only (?P<free>{SIZE})",
        ),
        binary=True,
        says=(_SMALLER,),
    ),
    Wording(
        kind="gpu library",
        source="RAPIDS",
        figures=(r"- Free memory: (?P<free>\d+)", r"- Requested memory: (?P<tried>\d+)"),
        pattern=r"bad_alloc: (?:out_of_memory|CUDA error|cudaErrorMemoryAllocation)|rmm::out_of_memory",
        says=(
            "RMM, the allocator of RAPIDS and XGBoost, found no free GPU memory.",
            "Use smaller partitions, or managed memory.",
        ),
    ),
    Wording(  # ggml/src/ggml-cuda/ggml-cuda.cu
        kind="gpu library",
        source="llama.cpp",
        pattern=rf"allocating (?P<tried>{SIZE}) on device (?P<gpu>\d+): (?:cuda|hip|musa)Malloc failed: out of memory",
        says=(_LLAMA_CPP,),
    ),
    Wording(  # ggml-alloc.c, llama-model.cpp, ggml-vulkan.cpp, ggml-metal.m, ggml-cuda.cu: ggml_cuda_error
        kind="gpu library",
        source="llama.cpp",
        pattern=r"(?:(?:failed|unable) to allocate (?:CUDA|ROCm|Vulkan|Metal|SYCL|MUSA)\w{0,20} buffer(?: of size )?"
        r"|ggml_vulkan: Device memory allocation of size )(?P<tried>\d+)?"
        r"|ggml_\w{1,60}: (?:error: )?failed to allocate buffer"
        r"|failed to allocate (?:buffer for kv cache|compute (?:pp )?buffers|memory for the kv cache)"
        r"|CUDA error 2 at \S{0,200}ggml\S{0,200}: out of memory|ggml.{0,200}CUDA error: out of memory",
        says=(_LLAMA_CPP,),
    ),
    Wording(  # transformers/quantizers/quantizer_bnb_4bit.py, quantizer_bnb_8bit.py: validate_environment
        kind="gpu library",
        source="transformers",
        pattern=r"Some modules are dispatched on the CPU or the disk",
        says=(
            "The quantized model does not fit beside what the GPU holds already: device_map would leave a part of it "
            "on the CPU.",
            "End other processes on the GPU, take a smaller model, or name the part that stays on the CPU (device_map "
            "with llm_int8_enable_fp32_cpu_offload=True).",
        ),
    ),
    Wording(  # catboost/cuda/cuda_lib: TOutOfMemoryError; in MiB
        kind="gpu library",
        source="CatBoost",
        pattern=r"Out of memory\. Requested (?P<asked>[\d.]+); Free (?P<left>[\d.]+\d)",
        says=(
            "CatBoost asked for {asked} MiB, and {left} MiB were free.",
            "Lower max_bin (border_count), max_ctr_complexity or depth, or raise gpu_ram_part.",
        ),
    ),
    Wording(  # kaldi/src/cudamatrix/cu-allocator.cc
        kind="gpu library",
        source="Kaldi",
        pattern=r"Failed to allocate a memory region of (?P<tried>\d+) bytes",
        figures=(r"free: ?(?P<free>\d+M), ?used: ?\d+M, ?total: ?(?P<total>\d+M)",),
        says=("Give each job its own GPU (nvidia-smi -c 3), or make the minibatch smaller.",),
    ),
    Wording(  # mlc_llm/serve/engine_base.py and cpp/serve/config.cc
        kind="start",
        source="MLC LLM",
        pattern=r"Insufficient GPU memory error: .{0,80}GPU memory is (?P<room>[\d.]+ MB)",
        figures=(
            r"model weight size \((?P<node>[\d.]+ MB)\)",
            r"temporary buffer size \((?P<temporaries>[\d.]+ MB)\)",
        ),
        binary=True,
        says=(
            "The weights take {node} and the temporary buffers {temporaries}, and {room} of the GPU are there.",
            "Lower prefill_chunk_size, the context or max_num_sequence, or take a smaller quantization.",
        ),
    ),
    Wording(
        kind="gpu library",
        source="DirectML",
        pattern=r"Could not allocate tensor with (?P<tried>\d+ bytes)\. There is not enough GPU video memory"
        r"|DML allocator out of memory",
        says=(_SMALLER,),
    ),
    Wording(
        kind="gpu library",
        source="OpenCL",
        pattern=r"\b(?:CL_)?MEM_OBJECT_ALLOCATION_FAILURE|\bCL_OUT_OF_RESOURCES",
        sure=False,
        says=("The OpenCL driver found no memory or no registers for a kernel.", _SMALLER),
    ),
    Wording(  # accelerate/big_modeling.py and transformers: weights that fit neither the GPUs nor RAM
        kind="gpu library",
        source="accelerate",
        pattern=r"had weights offloaded to the disk",
        says=(
            "The model fits neither the GPUs nor the CPU RAM that is free: device_map would leave a part on disk.",
            "Take a smaller or quantized model, more GPUs, or give offload_folder, which is very slow.",
        ),
    ),
    Wording(  # flashinfer/allocator.h
        kind="gpu library",
        source="FlashInfer",
        pattern=r"Failed to allocate memory for \w{1,60} with size (?P<tried>\d+) and alignment \d+ in Aligned",
        sure=False,
        says=(
            "FlashInfer's workspace, whose size the server sets, is too small for this batch; the GPU may have room.",
            "Make it larger (SGLang: SGLANG_FLASHINFER_WORKSPACE_SIZE; vLLM: VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE), "
            "or lower the number of requests.",
        ),
    ),
    Wording(  # c10/cuda/CUDACachingAllocator.cpp: a size that no computer has
        kind="gpu library",
        source="PyTorch",
        pattern=r"Tried to allocate (?:more than 1EB|-\d)",
        sure=False,
        says=(
            "The size that was asked for is impossible: a shape is wrong, such as one that was read from a tensor that "
            "holds garbage. More memory does not help.",
        ),
    ),
    Wording(  # exllamav2/model.py, exllamav3/model/model_ls.py
        kind="gpu library",
        source="ExLlama",
        pattern=r"Insufficient (?:VRAM|space|memory) (?:in split )?for model and cache",
        says=(
            "The weights and the cache do not fit on all GPUs together, or not in the parts that gpu_split gives them.",
            "Shorten the context (max_seq_len, cache_size), quantize the cache (cache_mode), or take a smaller "
            "quantization.",
        ),
    ),
    Wording(  # tensorrt_llm/runtime/tllmBuffers.h
        kind="gpu library",
        source="TensorRT-LLM",
        pattern=r"\[(?:TensorRT-LLM|TRT-LLM)\].{0,300}(?:: out of memory|OutOfMemory)",
        says=(
            "The engine, its activations and the KV cache do not fit together.",
            "Lower kv_cache_free_gpu_mem_fraction (it counts what is free after the engine), max_batch_size or "
            "max_num_tokens, or use more GPUs (--tp_size).",
        ),
    ),
    Wording(  # the driver of Jetson: nvmap
        kind="gpu library",
        source="Jetson",
        pattern=r"Nv(?:Map|Rm)Mem\w{1,40}: .{0,40}\berror 12\b",
        says=(
            "The driver found no memory. CPU and GPU share it on a Jetson, so that other programs, the desktop and the "
            "file cache take from it too.",
            "End other programs, make the model or the batch smaller, or restart: the driver's memory fragments.",
        ),
    ),
    Wording(
        kind="gpu library",
        source="TensorRT",
        pattern=r"[Ss]kipping tactic .{0,200}insufficient memory|memory is insufficient to use tactic",
        caught=True,
        says=("The builder leaves out a kernel for which memory is missing, and takes another.",),
    ),
    Wording(  # TensorRT: virtualMemoryBuffer.cpp, defaultAllocator.cpp, and its builder's warning
        kind="gpu library",
        source="TensorRT",
        pattern=r"\[TRT\].{0,200}(?:OutOfMemory|[Oo]ut of memory)|virtualMemoryBuffer\.cpp.{0,80}OutOfMemory"
        r"|Requested amount of GPU memory \((?P<tried>\d+) bytes\) could not be allocated"
        r"|Insufficient GPU memory for KV cache|due to insufficient workspace",
        says=("Make the batch, the workspace (--memPoolSize) or the engine's longest shape smaller.",),
    ),
    Wording(  # bitsandbytes: csrc/ops.cuh, pythonInterface.cpp, CUDA_CHECK_RETURN
        kind="gpu library",
        source="bitsandbytes",
        pattern=r"Error out of memory at line \d+ in file \S+",
        says=(
            "bitsandbytes asked the driver for GPU memory, but none was free.",
            "Load 4-bit instead of 8-bit, keep part of the model on the CPU (device_map), or make the batch smaller.",
        ),
    ),
    Wording(  # faiss/gpu/StandardGpuResources.cpp
        kind="gpu library",
        source="Faiss",
        pattern=r"StandardGpuResources: alloc fail type .{0,80} size (?P<tried>\d+) bytes",
        says=("Use a smaller temporary memory (setTempMemory), a smaller index, or more GPUs.",),
    ),
    Wording(  # tinygrad/runtime/ops_cuda.py and device.py: MemoryError
        kind="gpu library",
        source="tinygrad",
        pattern=rf"Allocation of (?P<tried>{SIZE}) failed on (?:CUDA|NV)(?::\d+)?\. Used: (?P<allocated>{SIZE})",
        says=(_SMALLER,),
    ),
    Wording(  # onnxruntime/core/framework/bfc_arena.cc
        kind="gpu library",
        source="ONNX Runtime",
        pattern=r"Failed to allocate memory for requested buffer of size (?P<tried>\d+)",
        sure=False,
        says=(
            "ONNX Runtime could not allocate {tried}: GPU memory if its CUDA provider was in use, else CPU RAM.",
            "Make the batch smaller, or set arena_extend_strategy to kSameAsRequested.",
        ),
    ),
    Wording(  # mlx/backend/metal/allocator.cpp
        kind="gpu library",
        source="MLX",
        pattern=r"\[metal::malloc\] Attempting to allocate (?P<tried>\d+ bytes) which is greater than",
        figures=(r"maximum allowed buffer size of (?P<room>\d+ bytes)",),
        says=("Metal gives at most {room} to one tensor.", "Make the batch or the sequences smaller."),
    ),
    Wording(
        kind="gpu library",
        source="Metal",
        pattern=r"Invalid buffer size: (?P<tried>[\d.]+ [KMGT]i?B)",
        binary=True,
        says=("One tensor is larger than Metal lets a buffer be: make the batch, the image or the sequences smaller.",),
    ),
    Wording(
        kind="gpu library",
        source="Metal",
        pattern=r"kIOGPUCommandBufferCallbackErrorOutOfMemory",
        says=("The Mac's memory limit for its GPU is used up.", "Make the batch or the context smaller."),
    ),
    Wording(
        kind="gpu library",
        source="Vulkan",
        pattern=r"(?<!ggml_vulkan: vk::Device::allocateMemory: )ErrorOutOfDeviceMemory|VK_ERROR_OUT_OF_DEVICE_MEMORY",
        says=("The Vulkan driver found no free GPU memory.",),
    ),
    Wording(  # CUDA.jl: lib/cudadrv/pool.jl
        kind="gpu library",
        source="CUDA.jl",
        pattern=rf"Out of GPU memory(?: trying to allocate (?P<tried>{SIZE}))?",
        figures=(rf"Effective GPU memory usage: [\d.]+% \((?P<allocated>{SIZE})/(?P<total>{SIZE})\)",),
        says=("Free unused arrays with CUDA.reclaim(), or make the arrays smaller.",),
    ),
    Wording(  # accelerate/utils/memory.py: find_executable_batch_size
        kind="gpu library",
        source="accelerate",
        pattern=r"No executable batch size found",
        says=(
            "accelerate halved the batch size until 1, and every size ran out of memory.",
            "A batch of one sequence does not fit: shorten the sequences, checkpoint activations, train adapters "
            "(LoRA, QLoRA), or shard over more GPUs.",
        ),
    ),
    Wording(  # CANN's error codes, which torch_npu, MindSpore and Paddle print
        kind="gpu library",
        source="Ascend",
        pattern=r"\bEL0004\b",
        figures=(r"\bsize:(?P<tried>\d+)(?:, device_id:(?P<gpu>\d+))?",),
        says=("The NPU has no memory left.", _SMALLER),
    ),
    Wording(
        kind="gpu library",
        source="Gaudi",
        pattern=r"PT_DEVMEM\b.{0,80}Allocation failed for size:{1,2} ?(?P<tried>\d+)",
        says=(_SMALLER,),
    ),
    Wording(  # Intel GPUs: unified-runtime, Level Zero
        kind="gpu library",
        source="oneAPI or ROCm",
        pattern=r"(?:UR_RESULT|ZE_RESULT|PI|HSA_STATUS)_ERROR_OUT_OF_(?:DEVICE_MEMORY|RESOURCES)",
        sure=False,
        says=("The GPU's driver is out of resources, usually memory.", _SMALLER),
    ),
    # --- the killers of the host: the kernel, systemd, Kubernetes and batch systems
    Wording(  # linux: mm/oom_kill.c
        kind="killed",
        pattern=r"[Mm]emory cgroup out of memory|Out of memory: Kill(?:ed)? process \d+|invoked oom-killer"
        r"|oom-kill:constraint=|killed as a result of limit of",
        figures=(
            r"Kill(?:ed)? process (?P<pid>\d+),? \((?P<name>[^)]{1,40})\)",
            r"anon-rss:(?P<used>\d+kB)",
            r"oom_memcg=(?P<group>[^,\s]{1,200})",
        ),
        binary=True,
        says=(
            "The kernel killed process {pid} ({name}).",
            "It held {used} of RAM.",
            "The limit of the control group {group} was reached, such as that of a container or a job.",
        ),
    ),
    Wording(
        kind="killed",
        pattern=r"Detected \d+ oom[-_ ]kill event|task \d+[^:]{0,80}: Out Of Memory|State=OUT_OF_MEMORY"
        r"|\bOOMKilled\b(?!\W{1,4}false)|node was low on resource: memory"
        r"|systemd-oomd(?:\[\d+\]: Killed| killed)|low memory! at or below SIG"
        r"|killed by the OOM killer|result 'oom-kill'|[Ee]xceed(?:ed|ing) (?:step |job )?memory limit"
        r"|PBS: job killed: v?mem |exceeds job hard limit \"?h_vmem"
        r"|beyond (?:the )?'?(?:physical|virtual)'? memory limit|\bTERM_MEMLIMIT\b|exceeded \d+% memory budget"
        r"|killed by the cgroup out-of-memory|Replicas low on memory",
    ),
    Wording(  # Colab and Kaggle restart a notebook
        kind="killed",
        source="the notebook's host",
        pattern=r"[Yy]our session crashed after using all available RAM"
        r"|[Nn]otebook tried to allocate more memory than is available",
        says=("CPU RAM of the notebook's machine ran out, not GPU memory.",),
    ),
    Wording(  # a SIGKILL without its sender
        kind="killed",
        sure=False,
        pattern=r"(?:(?<![Ee]rror )code|exit status|non-zero (?:exit )?status(?: of)?|\bError)(?: is)?"
        r" {0,9}[:=]? {0,9}(?:-9|137)\b|(?<!via Signals\.)SIGKILL\b|\b[Ss]ignal(?: 9\b|: [Kk]illed)|=9/KILL"
        r"|(?:^|^\S{1,300} ?: \w{4,6} \d{1,9} ?: {1,9}\d{1,9} |\ds|\] )"  # as shells say it, in glibc's languages
        r"(?:Killed|已杀死|已砍掉|強制終了|Getötet|Processus arrêté|Terminado \(killed\)|Убито|Ucciso)"
        r"(?: {2,}.*)?$|^(?:zsh: |\[\d+\] [ \d+-]{0,20})killed |Killed signal terminated program"
        r"|A worker process managed by the executor was unexpectedly terminated",
    ),
    # --- CPU RAM
    Wording(  # torch/utils/data/dataloader.py: a worker that a signal did not end, or whose signal came too late
        kind="host",
        source="DataLoader",
        sure=False,
        pattern=r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) exited unexpectedly",
        says=(
            "A DataLoader worker ended without a reason in the log: often the host had no RAM left, but a crash in the "
            "data set's code looks the same. With num_workers=0 the error is shown; if none is, use fewer workers.",
        ),
    ),
    Wording(
        kind="host",
        pattern=r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory): you tried to allocate "
        r"(?P<tried>\d{1,18}) bytes|_ArrayMemoryError|^(?:numpy\.\S*)?MemoryError\b|\bstd::bad_alloc\b"
        r"|\bbad allocation\b|Cannot allocate memory|[Ff]ailed to allocate CPU Memory|bytes of host memory"
        r"|insufficient shared memory \(shm\)|cudaHostAlloc.{0,80}(?:fail|error|out of memory)|\bENOMEM\b"
        r"|[Ii]nsufficient system memory|fatal *: Memory allocation failure|instance type with more memory"
        r"|\[Errno 12\]|无法分配内存|Не удалось выделить память|allouer de la mémoire|メモリを確保できません"
        r"|cannot allocate vector of size|(?:runtime|LLVM ERROR): out of memory|^memory allocation of \d+ bytes failed",
        figures=(r"Unable to allocate (?P<tried>\d+(?:\.\d+)? [KMGT]iB)", r"of size (?P<tried>[\d.]+ [KMG]b)\b"),
        binary=True,
    ),
    # --- GPU memory that PyTorch or a library asked for, without figures
    Wording(  # aten/src/THC/THCGeneral.cpp, of PyTorch before 1.5
        kind="gpu library",
        source="PyTorch before 1.5",
        pattern=r"[Cc]uda runtime error \(2\) ?: out of memory|THCudaCheck FAIL .{0,200}error=2 ?: out of memory",
        says=(
            "PyTorch asked the driver for GPU memory, but none was free; this old message has no figures.",
            _SMALLER,
        ),
    ),
    Wording(  # c10/cuda/CUDAMallocAsyncAllocator.cpp; ComfyUI turns this backend on
        kind="gpu library",
        source="PyTorch's cudaMallocAsync backend",
        pattern=r"\bAllocation on device(?: \d+)?\s*$|\bAllocation on device \d+ would exceed allowed memory",
        says=(
            "This PyTorch backend raised the error, and the log has no figures from it.",
            "Make the image, the batch or the model smaller, or offload parts of it (ComfyUI: --lowvram).",
            "For figures, run once with PyTorch's own allocator (ComfyUI: --disable-cuda-malloc; elsewhere unset "
            "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync).",
        ),
    ),
    Wording(  # torch asks NVML for the processes while it writes its message, and fails in that
        kind="gpu library",
        source="PyTorch",
        pattern=r"NVML_SUCCESS == \w+ ?INTERNAL ASSERT FAILED at .{0,60}CUDACachingAllocator",
    ),
    Wording(
        kind="gpu library",
        figures=(
            r"current device: (?P<gpu>\d+), in function",
            r"; GPU=(?P<gpu>\d+) ;",
            r"\b(?P<file>ggml[\w-]*\.cu)\b",
        ),
        says=("The call is llama.cpp's, in {file}. " + _LLAMA_CPP,),
        pattern=r"(?:CUDA|HIP) (?:driver )?[Ee]rror: out of memory|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"
        r"|(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_ALLOC_FAILED|CUFFT_ALLOC_FAILED|Error 2: out of memory"
        r"|hipErrorOutOfMemory|HIP_ERROR_OutOfMemory|Failed to CUDA (?:calloc|host alloc)"
        r"|(?:Cuda|CUDA|Hip|HIP) failure(?: \d+)?:? '?out of memory|cudaSuccess \(2 vs\. 0\) +out of memory"
        r"|(?:CUDA|HIP) runtime error.{0,80}: out of memory"
        r"|(?:cuda|hip)Malloc\w{0,10} (?:retry )?(?:failed|error):? out of memory|Out of memory on device\."
        r"|Memory not available to allocate buffer: (?P<tried>\d+)|cuMem\w{1,30} failed: out of memory"
        r"|\[CUDA\]:? out of memory|CUDA ran out of memory|GPU memory allocation failed"
        r"|(?i:(?:not enough|insufficient|out of) (?:(?:GPU|video|device|GPU video) memory|VRAM))"
        r"|bytes of device memory: out of memory|(?:显存|显卡内存|GPU ?内存)不足"
        r"|(?:CUDA|cuda) failed with error(?: 2)? out of memory|CUDA: out of memory\s*$|Gpu API call\) out of memory"
        r"|OutOfMemoryError: ?(?:CUDA out of memory\.?)?\s*$|[A-Z]{2,4} out of memory\.?\s*$",
    ),
    Wording(
        kind="gpu library",
        source="cuBLAS",
        pattern=r"(?:CUBLAS|CUSOLVER|CUSPARSE)_STATUS_NOT_INITIALIZED",
        sure=False,
        says=(_POSSIBLE.format(what="cuBLAS finds no memory for its workspace"), _SMALLER),
    ),
    Wording(  # aten/src/ATen/native/cudnn/Conv_v7.cpp, Conv_v8.cpp; tensorflow/.../cuda_dnn.cc
        kind="gpu library",
        source="cuDNN",
        pattern=r"Unable to find a valid cuDNN algorithm|was unable to find an engine to execute this computation"
        r"|CUDNN_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR)|Failed to get convolution algorithm",
        sure=False,
        says=(_POSSIBLE.format(what="no cuDNN algorithm finds memory for its workspace"), _SMALLER),
    ),
    # --- whatever else says that memory ran out
    Wording(
        kind="not understood",
        sure=False,
        pattern=r"(?i:out[ _-]?of[ _-]?(?:\w{1,20}[ _-])?memory|OutOf\w{0,20}Memory|RESOURCE[ _]?EXHAUSTED"
        r"|(?:failed|unable) to allocate|(?:can ?not|could not) allocate|memory allocation (?:fail|error)"
        r"|insufficient (?:\w{1,20} )?memory)|\bOOM\b|内存不足",
    ),
)

CAUGHT = re.compile(  # fairseq, Lightning's batch size finder, detectron2, ComfyUI, ultralytics, OpenNMT
    r"(?i:attempting to recover from OOM|batch size \d+ failed, trying batch size|retrying (?:with )?batch"
    r"|ignoring this choice|attempting to copy inputs of .{0,200} due to CUDA OOM|finished batch size finder"
    r"|(?<!try )(?<!consider )(?<!by )(?<!please )(?:decreas|reduc|halv)(?:ing|ed) (?:the |micro[ -]?)?batch[ -_]size "
    r"(?:from|to)\b|skipp\w{1,9} (?:\w{1,20} ){0,2}batch|(?:\boom\b|out ?of ?memory).{0,120}"
    r"(?:(?<!please )(?<!to )(?<!and )\bretry|(?<!before )\bretrying|\bskipp|\brecover|batch removed|continuing|halving"
    r"|using cpu|falling back|trying again|(?<!try )(?<!consider )(?<!by )reducing (?:the )?batch)"
    r"|(?:\bretry(?! failed)\w{0,9}|\bskipp\w{1,9}|\brecover\w{0,9}) .{0,60}(?:\boom\b|out of memory))"
)
"""A line that says the program caught the failure and goes on."""
ENDED = re.compile(r"'train_runtime':|`Trainer\.fit` stopped: `max_|Training completed\. Do not forget to share")
"""A line that Hugging Face's or Lightning's trainer prints where training has come to its end."""


_LETTERS = bytes(byte + 32 if 65 <= byte <= 90 else byte for byte in range(256))
_LEFT_OUT = b"0123456789 ._-"
"""Characters in which lines of one kind differ, and in which wordings of one failure do."""


def fold(text: bytes) -> bytes:
    """Return a text without digits, blanks, dots and dashes, in lower case: lines of one kind become equal."""
    return text.translate(_LETTERS, _LEFT_OUT)


_ROOTS = {
    root.encode(): tuple(word.encode() for word in words.split())
    for root, words in {
        "memory": "outof enoughmem enoughtmem enoughgpu enoughvid enoughdev memoryerror lowonmem memorypressure "
        "memorylimit memory(shm memoryondevice memoryfor memoryprof memoryalloc systemmemory memorycapac memoryseg "
        "memorybudget morememory hostmemory insufficient lowmemory!",
        "vram": "outofvram enoughvram insufficientvram",
        "alloc": "oallocate beallocated tallocate allocating allocationo allocfailed badalloc cudahostalloc calloc "
        "hostalloc cachingallocator memoryallocation allocationfa",
        "code": "exitcode returncode withcode",
        "signal": "bysignal onsignal tosignal :signal",
        "status": "exitstatus nonzero",
        "cu": "cublas cudnn cusolver cusparse executablebatch",
        "": "enomem exhausted unexpectedly findanengine outofres dsttensoris maxseq objectstorefull pagingfile "
        "winerror ]error buserror spaceleft dispatchedonthecpu allavailableram insufficientspace swapspace "
        "onhost workersdied offloadedtothedisk buffersize: abruptly 1eb nvmapmem nvrmmem onresource:memory memlimit "
        "hvmem el0004 devicesideassert illegalmemory launchfailure 已杀死 已砍掉 強制終了 getötet processusarrêté "
        "terminado(killed) Убито ucciso [errno] 无法分配内存 存不足 выделитьпамять allouerdelam メモリを確保できません",
    }.items()
}
"""Folded words of which every line that the table knows contains one, by the part that they share."""
_WEAK = (b"kill", b"oom")
"""Folded words of the other lines: parts of others, such as of skill and room, so that the line itself is looked at."""
_KILLED = re.compile(rb"\b(?:OOM|oom)|\bKilled\b|SIGKILL|9/KILL|(?:: |job |\] .{0,22})killed\b|killed (?:by|as)\b")
_AFTERWARDS = tuple(b"oom retry skipp failed,trying copyinputsof ignoringthischoice batchsize loss train".split())
"""Folded words of which every line of a loop, of ``CAUGHT`` and of ``ENDED`` contains one that says nothing else."""


def lines_that_may_say(folded: bytes) -> set[bytes]:
    """Keep the folded lines that may report that memory ran out; no other line does."""
    return lines_with(folded, [word for root, shared in _ROOTS.items() if root in folded for word in shared])


def lines_that_may_say_killed(folded: bytes) -> set[bytes]:
    """Return those of folded lines that may say so where ``may_say_killed`` finds it in the line as it is."""
    return lines_with(folded, _WEAK)


def may_say_killed(line: bytes) -> bool:
    """Return False for a line that certainly says nothing of a process that was killed."""
    return _KILLED.search(line) is not None


def lines_that_may_go_on(folded: bytes) -> set[bytes]:
    """Keep the folded lines that may report that the program went on; no other line does."""
    return lines_with(folded, _AFTERWARDS)


def lines_with(folded: bytes, words: Iterable[bytes]) -> set[bytes]:
    """Return the lines of a text that contain one of the words: it is searched as a whole, as words are few."""
    found = set()
    for word in words:
        at = folded.find(word)
        while at >= 0:
            end = folded.find(b"\n", at)
            end = len(folded) if end < 0 else end
            found.add(folded[folded.rfind(b"\n", 0, at) + 1 : end])
            at = folded.find(word, end)
    return found


PINNED = Wording(  # at::cuda::getPinnedMemoryAllocator: cudaHostAlloc, in a process that may have no CUDA context yet
    kind="gpu library",
    source="pinned memory",
    pattern="",
    sure=False,
    says=(
        "The call pins CPU RAM, for which the error has the same words: the host may have no more RAM to pin (or "
        "ulimit -l forbids it), or the GPU no room for the CUDA context that pinning needs.",
        "Pin less (pin_memory=False in DataLoader, fewer workers, no optimizer or parameter offload), or free the GPU.",
    ),
)
"""A CUDA error that the line of the traceback which pins memory raises; its words are those of any other."""

BROKEN = re.compile(r"device-side assert triggered|an illegal memory access|unspecified launch failure")
AFTER_FAULT = Wording(
    kind="gpu library",
    source="after a fault",
    pattern="",
    sure=False,
    says=(
        "A kernel had failed before this line ({fault}), and every later CUDA call fails with it: this one is no sign "
        "that memory ran out. An index out of range, such as a label or a token beyond the model's vocabulary, is the "
        "usual cause.",
        "Run with CUDA_LAUNCH_BLOCKING=1, or on the CPU, to see the line that did it.",
    ),
)
"""A library's error in a process whose GPU had failed already."""

_COMPILED = tuple((wording, re.compile(wording.pattern)) for wording in WORDINGS)


def find_wording(line: str, *, before: int | None = None) -> tuple[Wording, dict[str, str]] | None:
    """Return the wording of a line of a log with the figures in it; None: it does not say that memory ran out.

    Args:
        line: of a log.
        before: what begins here or later does not count.
    """
    for wording, pattern in _COMPILED:
        if (match := pattern.search(line)) and (before is None or match.start() < before):
            return wording, {name: text for name, text in match.groupdict().items() if text} | further(wording, line)
    return None


def further(wording: Wording, line: str) -> dict[str, str]:
    """Return the figures of a wording that stand in this line, its own or one that follows it."""
    found: dict[str, str] = {}
    for pattern in wording.figures:
        if match := re.search(pattern, line):
            found = {name: text for name, text in match.groupdict().items() if text} | found
    return found
