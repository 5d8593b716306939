"""Who else says that memory ran out: every row of the table on a line of its kind, and what no row knows."""

# ruff: noqa: E501 - lines of logs as they are written

import io
import json

import pytest

from vramtop.estimator.crash.explanation import Explanation, explain_failure
from vramtop.estimator.crash.job_log import read_log
from vramtop.estimator.crash.records import CrashLog
from vramtop.estimator.crash.wordings import WORDINGS, find_wording, size_bytes

GIB, MIB = 2**30, 2**20

XLA = """\
E0528 07:02:44 pjrt_client.cc:2826] Execution of replica 0 failed: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 3221225472 bytes.
BufferAssignment OOM Debugging.
BufferAssignment stats:
             parameter allocation:  512.00MiB
        maybe_live_out allocation:    1.50GiB
     preallocated temp allocation:    3.00GiB
                 total allocation:    5.00GiB
"""
TENSORFLOW = """\
W tensorflow/core/common_runtime/bfc_allocator.cc:485] Allocator (GPU_1_bfc) ran out of memory trying to allocate 1.50GiB (rounded to 1610612736)requested by op model/dense/MatMul
I tensorflow/core/common_runtime/bfc_allocator.cc:1040] InUse at 7f0000000000 of size 256 next 1
I tensorflow/core/common_runtime/bfc_allocator.cc:1101] Sum Total of in-use chunks: 7.50GiB
Limit:                      8589934592
InUse:                      8053063680
tensorflow.python.framework.errors_impl.ResourceExhaustedError: Graph execution error:
OOM when allocating tensor with shape[64,512,4096] and type float on /job:localhost/replica:0/task:0/device:GPU:1 by allocator GPU_1_bfc
"""
FREE = (
    "ValueError: Free memory on device cuda:0 (30.00/40.00 GiB) on startup is less than desired GPU memory utilization "
    "(0.9, 36.0 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
LENGTH = (
    "ValueError: To serve at least one request with the model's max seq len (32768), 4.0 GiB KV cache is needed, which "
    "is larger than the available KV cache memory (1.5 GiB). Based on the available memory, the estimated maximum model "
    "length is 12288."
)
RAY = """\
ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.
Memory on the node (IP: 10.0.0.2, ID: 4f) where the task (task ID: a6, name=tokenize, pid=9, memory used=3.33GB) was running was 51.00GB / 54.00GB (0.944), which exceeds the memory usage threshold of 0.94. Ray killed this worker
"""

# (log, head of the failure, a sentence)
PINS = """Traceback (most recent call last):
  File "/env/torch/utils/data/_utils/pin_memory.py", line 98, in pin_memory
    return data.pin_memory()
RuntimeError: CUDA error: out of memory"""
KERNEL = """\
oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=3b,mems_allowed=0,oom_memcg=/docker/3b,task_memcg=/docker/3b,task=python
Memory cgroup out of memory: Killed process 31337 (python) total-vm:98566144kB, anon-rss:2097152kB, file-rss:70016kB"""
EXAMPLES = (
    (XLA, "gpu library", "JAX/XLA", True, "needs 5.00 GiB: arguments 512 MiB, outputs 1.50 GiB, temporaries 3.00 GiB"),
    ("RESOURCE_EXHAUSTED: Failed to allocate request for 176.00MiB (184549376B) on device ordinal 0", "gpu library", "JAX/XLA", True, "XLA_PYTHON_CLIENT_PREALLOCATE=false"),
    ("W external/xla/xla/tsl/framework/bfc_allocator.cc:497] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.00GiB", "gpu library", "JAX/XLA", True, "XLA_PYTHON_CLIENT_MEM_FRACTION"),
    ("failed to allocate 20.00GiB (21474836480 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory", "gpu library", "TensorFlow or JAX", True, "could not allocate 20.00 GiB"),
    ("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 30.00G of 16.00G hbm. Exceeded hbm capacity by 14.00G.", "gpu library", "TPU", True, "30.00 GiB of the chip's 16.00 GiB (hbm): 14.00 GiB too much"),
    ("RESOURCE_EXHAUSTED: Attempting to reserve 3.50G at the bottom of memory. That was not possible. There are 2.25G free", "gpu library", "TPU", True, "shard over more chips"),
    ("RESOURCE_EXHAUSTED: TPU TensorCore Hbm usage: 100.00G, SparseCore Hbm usage 1.00G, exceeding available bytes: 90.00G", "gpu library", "TPU", True, "of the chip's 90.00 GiB"),
    (TENSORFLOW, "gpu library", "TensorFlow", True, "the shape [64,512,4096], of float"),
    ("OOM when allocating tensor with shape[8,9] and type half on /job:localhost/device:GPU:0 by allocator GPU_0_bfc", "gpu library", "TensorFlow", True, "shape [8,9], of half"),
    ("Resource exhausted: failed to allocate memory [Op:Mul]", "gpu library", "TensorFlow", True, "TF_FORCE_GPU_ALLOW_GROWTH=true"),
    ("InternalError: Dst tensor is not initialized.", "gpu library", "TensorFlow", False, "usually memory"),
    ("OOM when allocating tensor with shape[8,9] and type half on /job:localhost/device:CPU:0 by allocator cpu", "host", "TensorFlow", True, "CPU RAM ran out, not GPU memory"),
    ("Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.27GiB with freed_by_count=0. The caller indicates that this is not a failure, but", "gpu library", "TensorFlow or XLA", True, "slower algorithm"),
    (FREE, "start", "vLLM", True, "--gpu-memory-utilization 0.75 or less"),
    ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when", "start", "vLLM", True, "no room is left for the KV cache"),
    (LENGTH, "start", "vLLM", True, "--max-model-len 12288"),
    (LENGTH.replace("), ", "),\n(", 1), "start", "vLLM", True, "needs 4.00 GiB of KV cache, and vLLM has 1.50 GiB"),
    ("ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be stored in KV cache (20208).", "start", "vLLM", True, "--max-model-len 20208"),
    ("AssertionError: Error in memory profiling. Initial free memory 8.46 GiB, current free memory 12.98 GiB.", "start", "vLLM", False, "memory had not run out"),
    ("RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests. Please try lowering", "start", "vLLM", True, "sampler with 256 requests"),
    ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: mem_fraction_static=0.7", "start", "SGLang", True, "--mem-fraction-static 0.7"),
    ("ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.3. Raise --mem-fraction-static above 0.320", "start", "SGLang", True, "names 0.320 as the least share"),
    ("[TensorRT-LLM][ERROR] maxTokensInPagedKvCache must be large enough to process at least 1 sequence to completion", "start", "TensorRT-LLM", True, "kv_cache_free_gpu_mem_fraction"),
    ("Error: llama runner process has terminated: cudaMalloc failed: out of memory", "gpu library", "llama.cpp", True, "-ngl"),
    ("ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes.", "start", "SGLang", True, "much less free memory"),
    ("Exception: Capture cuda graph failed: CUDA error: out of memory", "start", "SGLang", True, "--cuda-graph-max-bs"),
    ("RuntimeError: alloc_req_slots runs out of memory. Please set a smaller number for `--max-running-requests`.", "gpu library", "SGLang", False, "no slot left"),
    ("Prefill out of memory. Try to lower your batch size.", "gpu library", "SGLang", True, "--max-running-requests"),
    ("Not enough memory to handle 4096 prefill tokens. You need to decrease `--max-batch-prefill-tokens`", "start", "text-generation-inference", True, "a batch of 4096 tokens"),
    (RAY, "killed", "Ray's memory monitor", True, "51.00 GiB of 54.00 GiB in use"),
    ("ray.exceptions.ObjectStoreFullError: Failed to put object", "host", "Ray", True, "--object-store-memory"),
    ("Error: model requires more system memory (5.6 GiB) than is available (4.1 GiB)", "host", "Ollama", True, "4.10 GiB are available"),
    ("OSError: [WinError 1455] The paging file is too small for this operation to complete.", "host", "Windows", True, "paging file larger"),
    ("Exception in thread main java.lang.OutOfMemoryError: Java heap space", "host", "Java or Node", True, "spark.executor.memory"),
    ("Out of memory error on GPU 0. Cannot allocate 1.500000GB memory on GPU 0, 6.000000GB memory has been allocated and available memory is only 512.000000MB.", "gpu library", "PaddlePaddle", True, "smaller"),
    ("cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 4,294,967,296 bytes (allocated so far: 12,000,000,000 bytes).", "gpu library", "CuPy", True, "CUPY_GPU_MEMORY_LIMIT"),
    ("MemoryError: std::bad_alloc: out_of_memory: CUDA error at: cuda_memory_resource.hpp:62: cudaErrorMemoryAllocation", "gpu library", "RAPIDS", True, "managed memory"),
    ("ggml_backend_cuda_buffer_type_alloc_buffer: allocating 2048.00 MiB on device 1: cudaMalloc failed: out of memory", "gpu library", "llama.cpp", True, "-ngl"),
    ("llama_model_load: error loading model: unable to allocate CUDA0 buffer", "gpu library", "llama.cpp", True, "-ngl"),
    ("ggml_vulkan: Device memory allocation of size 462323712 failed.", "gpu library", "llama.cpp", True, "-ngl"),
    ("whisper_init_state: failed to allocate memory for the kv cache", "gpu library", "llama.cpp", True, "-ngl"),
    ("CUDA error 2 at /src/ggml-cuda.cu:4856: out of memory", "gpu library", "llama.cpp", True, "-ngl"),
    ("Error out of memory at line 380 in file /src/csrc/pythonInterface.cpp", "gpu library", "bitsandbytes", True, "device_map"),
    ("bfc_arena.cc:342 AllocateRawInternal Failed to allocate memory for requested buffer of size 1073741824", "gpu library", "ONNX Runtime", False, "could not allocate 1.00 GiB"),
    ("RuntimeError: [metal::malloc] Attempting to allocate 2147483648 bytes which is greater than the maximum allowed buffer size of 1073741824 bytes.", "gpu library", "MLX", True, "at most 1.00 GiB"),
    ("Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)", "gpu library", "Metal", True, "Mac"),
    ("vk::Device::allocateMemory: ErrorOutOfDeviceMemory", "gpu library", "Vulkan", True, "no free GPU memory"),
    ("terminate: UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY", "gpu library", "oneAPI or ROCm", False, "usually memory"),
    ("ERROR: Out of GPU memory trying to allocate 3.000 GiB\nEffective GPU memory usage: 99.85% (15.0 GiB/16.0 GiB)", "gpu library", "CUDA.jl", True, "CUDA.reclaim()"),
    ("RuntimeError: No executable batch size found, reached zero.", "gpu library", "accelerate", True, "batch of one sequence"),
    ("srun: error: gpu017: task 3: Out Of Memory", "killed", None, True, "OOM killer"),
    ("exits with return code = -9", "killed", None, False, "SIGKILL"),
    ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 2147483648 bytes", "host", None, True, "of 2.00 GiB"),
    ("numpy.core._exceptions._ArrayMemoryError: Unable to allocate 3.00 GiB for an array", "host", None, True, "of 3.00 GiB"),
    ("THCudaCheck FAIL file=THCStorage.cu line=58 error=2 : out of memory", "gpu library", "PyTorch before 1.5", True, "no figures"),
    ("!!! Exception during processing !!! Allocation on device ", "gpu library", "PyTorch's cudaMallocAsync backend", True, "--disable-cuda-malloc"),
    ('RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":1131', "gpu library", "PyTorch", True, "no figures"),
    ("torch.AcceleratorError: CUDA error: out of memory", "gpu library", None, True, "outside its allocator"),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", "gpu library", "cuBLAS", False, "usually memory"),
    ("RuntimeError: Unable to find a valid cuDNN algorithm to run convolution", "gpu library", "cuDNN", False, "usually memory"),
    ("RuntimeError: DataLoader worker (pid 4567) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.", "host", "shared memory", True, "--shm-size"),
    ("RuntimeError: DataLoader worker (pid(s) 12, 13) exited unexpectedly", "host", "DataLoader", False, "num_workers=0"),
    ("RuntimeError: unable to write to file </torch_1234_567_0>: No space left on device (28)", "host", "shared memory", True, "fewer DataLoader workers"),
    ("RuntimeError: unable to mmap 1048576 bytes from file </torch_1_2>: Cannot allocate memory (12)", "host", "shared memory", True, "GPU memory was not the cause"),
    ("node:12:34 [0] NCCL WARN Error while creating shared memory segment /dev/shm/nccl-abc123 (size 9637888)", "host", "shared memory", True, "--ipc=host"),
    ("OSError: [Errno 28] No space left on device: '/dev/shm/psm_abc'", "host", "shared memory", True, "--shm-size"),
    ("ValueError: Some modules are dispatched on the CPU or the disk. Make sure you have enough GPU RAM to fit", "gpu library", "transformers", True, "device_map"),
    ("[TRT] [E] 2: [virtualMemoryBuffer.cpp::resizePhysical::140] Error Code 2: OutOfMemory (no further information)", "gpu library", "TensorRT", True, "--memPoolSize"),
    ("[W] Requested amount of GPU memory (34359738368 bytes) could not be allocated.", "gpu library", "TensorRT", True, "smaller"),
    ("RuntimeError: Failed to pin memory: cudaHostAlloc(...) : out of memory", "host", None, True, "CPU RAM ran out"),
    ("RuntimeError: StandardGpuResources: alloc fail type TemporaryMemoryBuffer dev 0 space Device stream 0x5 size 1610612736 bytes (cudaMalloc error out of memory [2])", "gpu library", "Faiss", True, "setTempMemory"),
    ("tinygrad.device.MemoryError: Allocation of 1.00 GB failed on CUDA. Used: 22.30 GB", "gpu library", "tinygrad", True, "smaller"),
    ("MXNetError: cudaMalloc retry failed: out of memory", "gpu library", None, True, "no figures"),
    ("RuntimeError: CUDA failed with error out of memory", "gpu library", None, True, "no figures"),
    ("RuntimeError: Insufficient VRAM in split for model and cache", "gpu library", "ExLlama", True, "gpu_split"),
    ("RuntimeError: TensorStorage tensor.h 168\ncuda failed with error 2 out of memory. use CUDA_LAUNCH_BLOCKING=1", "gpu library", None, True, "no figures"),
    ("CUDA Error: out of memory", "gpu library", None, True, "no figures"),
    ("CUDA error: out of memory\n  current device: 0, in function alloc at /go/src/llama.cpp/ggml-cuda.cu:233", "gpu library", None, True, "llama.cpp's, in ggml-cuda.cu. Put fewer layers"),
    ("[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMallocAsync(ptr, n, pool, stream): out of memory (/app/tllmBuffers.h:125)", "gpu library", "TensorRT-LLM", True, "kv_cache_free_gpu_mem_fraction"),
    ("std::bad_alloc: cudaErrorMemoryAllocation: out of memory\n- Free memory: 1073741824\n- Requested memory: 99", "gpu library", "RAPIDS", True, "managed memory"),
    ("NCudaLib::TOutOfMemoryError: Error: Out of memory. Requested 4300.56; Free 2004.5", "gpu library", "CatBoost", True, "4300.56 MiB, and 2004.5 MiB were free"),
    ("Failed to allocate a memory region of 2097152 bytes. Memory info: free:11M, used:8101M, total:8112M", "gpu library", "Kaldi", True, "nvidia-smi -c 3"),
    ("Insufficient GPU memory error: The available single GPU memory is 5461.333 MB, which is less than the sum of model weight size (4096.000 MB) and temporary buffer size (8192.000 MB).", "start", "MLC LLM", True, "take 4.00 GiB and the temporary buffers 8.00 GiB, and 5.33 GiB"),
    ("RuntimeError: Could not allocate tensor with 67108864 bytes. There is not enough GPU video memory available!", "gpu library", "DirectML", True, "smaller"),
    ("pyopencl._cl.MemoryError: create_buffer failed: MEM_OBJECT_ALLOCATION_FAILURE", "gpu library", "OpenCL", False, "no memory"),
    ("ValueError: The current `device_map` had weights offloaded to the disk. Please provide an `offload_folder`", "gpu library", "accelerate", True, "neither the GPUs nor the CPU RAM"),
    ("Failed to allocate memory for batch_prefill_tmp_v with size 450887680 and alignment 16 in AlignedAllocator", "gpu library", "FlashInfer", False, "SGLANG_FLASHINFER_WORKSPACE_SIZE"),
    ("OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.", "gpu library", "PyTorch", False, "impossible"),
    ("RuntimeError: Invalid buffer size: 24.00 GB", "gpu library", "Metal", True, "larger than Metal"),
    ("torch.AcceleratorError: HIP error: out of memory", "gpu library", None, True, "no figures"),
    ("pycuda._driver.MemoryError: cuMemAlloc failed: out of memory", "gpu library", None, True, "no figures"),
    ("[LightGBM] [Fatal] [CUDA] out of memory cuda_utils.cpp 12", "gpu library", None, True, "no figures"),
    ("Unsloth: CUDA ran out of memory! Try reducing batch size", "gpu library", None, True, "no figures"),
    ("Error: System is out of GPU memory", "gpu library", None, True, "no figures"),
    ("RuntimeError: Cannot pin memory: CUDA error: out of memory", "gpu library", "pinned memory", False, "no more RAM to pin"),
    ("ValueError: Too large swap space. 32.00 GiB out of the 31.25 GiB total CPU memory is allocated for the swap space.", "host", "vLLM", True, "32.00 GiB of 31.25 GiB"),
    ("failed to alloc 2304 bytes on host: CUDA_ERROR_OUT_OF_MEMORY: out of memory", "host", "TensorFlow", True, "pin CPU RAM"),
    ("RuntimeError: Not enought memory. Please try to increase --mem-fraction-static.", "start", "SGLang", True, "KV cache"),
    ("Error: llama runner process has terminated: signal: killed", "killed", None, False, "SIGKILL"),
    ("trainer-1 exited with code 137", "killed", None, False, "SIGKILL"),
    ("c++: fatal error: Killed signal terminated program cc1plus", "killed", None, False, "SIGKILL"),
    ("=>> PBS: job killed: mem 67211264kb exceeded limit 67108864kb", "killed", None, True, "OOM killer"),
    ('job 123 exceeds job hard limit "h_vmem" of queue', "killed", None, True, "OOM killer"),
    ("Task in /slurm/job_123/step_0 killed as a result of limit of /slurm/job_123", "killed", None, True, "OOM killer"),
    ("cuda_malloc.h] Cannot allocate 1073741824 bytes of device memory: out of memory", "gpu library", None, True, "no figures"),
    ("train.service: Failed with result 'oom-kill'.", "killed", None, True, "OOM killer"),
    ("train.service: Main process exited, code=killed, status=9/KILL", "killed", None, False, "SIGKILL"),
    ("process rank 3 with PID 0 on node gpu1 exited on signal 9 (Killed).", "killed", None, False, "SIGKILL"),
    ("torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGKILL", "killed", None, False, "SIGKILL"),
    ("(1) The process is killed by SIGKILL by OOM killer due to high memory usage.", "killed", None, False, "SIGKILL"),
    ("BrokenProcessPool: A process in the process pool was terminated abruptly while the future was running", "host", "worker process", False, "it crashed, or was killed"),
    ("RuntimeError: One of the subprocesses has abruptly died during map operation.", "host", "worker process", False, "num_proc"),
    ("NvMapMemAllocInternalTagged: 1075072515 error 12", "gpu library", "Jetson", True, "CPU and GPU share it"),
    ("out of memory to allocate 163840000 bytes (total 1673061376 bytes)", "gpu library", "CuPy", True, "CUPY_GPU_MEMORY_LIMIT"),
    ("triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 66560, Hardware limit: 65536. Reducing", "on chip", "Triton", True, "66560 bytes of the chip's shared memory, and this GPU has 65536"),
    ("alloc_tensor_range: failed to allocate CPU buffer of size 536870912", "host", "llama.cpp", True, "not GPU memory"),
    ("llama_model_load: error loading model: unable to allocate CUDA_Host buffer", "host", "llama.cpp", True, "not GPU memory"),
    ("ggml_cuda_host_malloc: failed to allocate 3000.00 MiB of pinned memory: out of memory", "host", "llama.cpp", True, "could not pin 2.93 GiB"),
    ("ggml_vulkan: Failed to allocate pinned memory.\nggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory", "host", "llama.cpp", True, "ordinary memory instead"),
    ("W1029 1 memory.cc:135] Failed to allocate CUDA memory with byte size 6291456 on GPU 0: CNMEM_STATUS_OUT_OF_MEMORY, falling back to pinned system memory", "gpu library", "Triton server", True, "--cuda-memory-pool-byte-size"),
    ("ERROR [PID: 7] Memory_Allocation_Failure(EL0004): Failed to allocate memory requested by GE module.\n Call rtMalloc fail, type = 2, size:3221291008, device_id:0[FUNC:Alloc]", "gpu library", "Ascend", True, "NPU"),
    ("RuntimeError: [Rank:0] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::536870912 (512)MB", "gpu library", "Gaudi", True, "smaller"),
    ("RuntimeError: gpu/hip.cpp:109: allocate_gpu: Memory not available to allocate buffer: 41943040", "gpu library", None, True, "no figures"),
    ("cpu_device_storage.h:72: Failed to allocate CPU Memory", "host", None, True, "not GPU memory"),
    ("JaxRuntimeError: INTERNAL: Failed to allocate 1073741824 bytes for new constant", "gpu library", "JAX/XLA", True, "jax.checkpoint"),
    ("zsh: killed     python train.py", "killed", None, False, "SIGKILL"),
    ("[1]  + 12345 killed     python train.py", "killed", None, False, "SIGKILL"),
    ("make: *** [Makefile:12: train] Error 137", "killed", None, False, "SIGKILL"),
    ("[ERROR] Worker (pid:1234) was sent SIGKILL! Perhaps out of memory?", "killed", None, False, "SIGKILL"),
    ("DAMN ! worker 1 (pid: 21) died, killed by signal 9 :( trying respawn ...", "killed", None, False, "SIGKILL"),
    ("subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 137.", "killed", None, False, "SIGKILL"),
    ("Worker tcp://127.0.0.1:42123 (pid=1234) exceeded 95% memory budget. Restarting...", "killed", None, True, "CPU RAM"),
    ("KilledWorker: Attempted to run task train on 4 different workers, but all those workers died while running it.", "host", "worker process", False, "dmesg"),
    ("FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory", "host", "Java or Node", True, "--max-old-space-size"),
    ("ptxas fatal   : Memory allocation failure", "host", None, True, "CPU RAM ran out"),
    ("nvcc error   : 'cicc' died due to signal 9", "killed", None, False, "SIGKILL"),
    ("RuntimeError: Triton Error [CUDA]: out of memory", "gpu library", None, True, "no figures"),
    ("Error: cannot allocate vector of size 3.2 Gb", "host", None, True, "of 3.20 GiB"),
    ("memory allocation of 8589934592 bytes failed", "host", None, True, "CPU RAM ran out"),
    ("OSError: [WinError 8] Not enough memory resources are available to process this command", "host", "Windows", True, "paging file"),
    ("[TRT] [W] Skipping tactic 0x3e8 due to insufficient memory on requested size of 17179869184 detected", "gpu library", "TensorRT", True, "takes another"),
    ("RuntimeError: cuFFT error: CUFFT_ALLOC_FAILED", "gpu library", None, True, "no figures"),
    ("Error: Failed to load model: insufficient VRAM", "gpu library", None, True, "no figures"),
    ("HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed to allocate the necessary resources.", "gpu library", "oneAPI or ROCm", False, "usually memory"),
    ("OSError: [Errno 12] 无法分配内存", "host", None, True, "CPU RAM ran out"),
    ("run.sh: fork: Не удалось выделить память", "host", None, True, "CPU RAM ran out"),
    ("GPU 内存不足", "gpu library", None, True, "no figures"),
    ("内存不足", "not understood", None, False, "does not know"),
    ("错误：显存不足，请减小 batch_size", "gpu library", None, True, "no figures"),
    ("已杀死", "killed", None, False, "SIGKILL"),
    ("elapsed: 673s, ETA: 2621s已杀死", "killed", None, False, "SIGKILL"),
    ("./run.sh : ligne 4 : 12345 Processus arrêté      python train.py", "killed", None, False, "SIGKILL"),
    (":ResourceExhaustedError:\n\nOut of memory error on GPU 0. Cannot allocate 50.000000MB memory on GPU 0", "gpu library", "PaddlePaddle", True, "smaller"),
    ("RuntimeError: CUDA error: device-side assert triggered\nRuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "gpu library", "after a fault", False, "beyond the model's vocabulary"),
    ("what(): CUDA error: an illegal memory access was encountered\nRuntimeError: CUDA error: out of memory", "gpu library", "after a fault", False, "CUDA_LAUNCH_BLOCKING=1"),
    ("srun: error: node-18: task 289: Bus error", "host", "bus error", False, "usually a full /dev/shm"),
    (KERNEL, "killed", None, True, "process 31337 (python). It held 2.00 GiB of RAM. The limit of the control group /docker/3b was"),
    ("Message: The node was low on resource: memory. Container trainer was using 61233984Ki", "killed", None, True, "resources.limits.memory"),
    ("Mar 02 box systemd-oomd[812]: Killed /user.slice/train.scope due to memory pressure", "killed", None, True, "OOM killer"),
    ("slurmstepd: error: Exceeded job memory limit at some point.", "killed", None, True, "OOM killer"),
    ("DeviceMemoryAllocator.h:68] GPU memory allocation failed (might be due to insufficient memory)", "gpu library", None, True, "no figures"),
    ("fatal: the pool has insufficient memory", "not understood", None, False, "does not know"),
    ("Your session crashed after using all available RAM.", "killed", "the notebook's host", True, "not GPU memory"),
    ("Container killed on request. Exit code is 137", "killed", None, False, "SIGKILL"),
    (PINS, "gpu library", "pinned memory", False, "no more RAM to pin"),
    ("ERROR renderer: the arena is Out-Of-Memory", "not understood", None, False, "does not know this wording"),
    ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=77.0. Some of your processes may have been", "killed", None, True, "OOM killer"),
    ("slurmstepd: error: Detected 2 oom_kill events in StepId=77.batch.", "killed", None, True, "OOM killer"),
    ("[1.5] Memory cgroup out of memory: Killed process 991 (python) total-vm:99kB, anon-rss:98kB", "killed", None, True, "OOM killer"),
    ("Out of memory: Killed process 991 (python) total-vm:9kB", "killed", None, True, "OOM killer"),
    ("    exitcode  : -9 (pid: 4711)", "killed", None, False, "SIGKILL"),
    ("subprocess.CalledProcessError: died with <Signals.SIGKILL: 9>.", "killed", None, False, "SIGKILL"),
    ("/var/spool/slurmd/job1/slurm_script: line 28:  8156 Killed                  python3 main.py", "killed", None, False, "SIGKILL"),
    ("Killed", "killed", None, False, "SIGKILL"),
    (" 6%|6  | 37/625 [04:47<1:10, 13.82it/s, loss=0.5]Killed", "killed", None, False, "SIGKILL"),
    ("    Reason:       OOMKilled", "killed", None, True, "OOM killer"),
    ('"OOMKilled": true,', "killed", None, True, "OOM killer"),
    ("RuntimeError: DataLoader worker (pid 12847) is killed by signal: Killed. ", "killed", None, False, "SIGKILL"),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "gpu library", None, True, "no figures"),
    ("ncclUnhandledCudaError: Call to CUDA function failed. Cuda failure 2 'out of memory'", "gpu library", None, True, "no figures"),
    ("DefaultCPUAllocator: not enough memory: you tried to allocate 2147483648 bytes.", "host", None, True, "of 2.00 GiB"),
)  # fmt: skip


def read(text: str) -> CrashLog:
    return read_log(io.BytesIO(f"step 1\n{text}\n".encode()))


def explained(text: str) -> Explanation:
    cause = read(text).cause
    assert cause is not None
    return explain_failure(cause)


@pytest.mark.parametrize(("text", "kind", "source", "sure", "words"), EXAMPLES, ids=lambda each: str(each)[:30])
def test_a_wording_and_what_it_tells(text: str, kind: str, source: str | None, sure: bool, words: str) -> None:
    log = read(text)
    assert [(each.kind, each.source, each.sure) for each in log.failures] == [(kind, source, sure)]
    assert words in " ".join(explained(text).findings)


def test_every_row_of_the_table_has_an_example() -> None:
    found = {id(known[0]) for text, *_ in EXAMPLES for line in text.splitlines() if (known := find_wording(line))}
    assert [row.pattern for row in WORDINGS if id(row) not in found] == []


def test_figures_of_the_gpu() -> None:
    memory = explained(TENSORFLOW).failure.memory
    assert (memory.gpu, memory.tried_bytes, memory.allocated_bytes) == (1, 1.5 * GIB, 7.5 * GIB)
    assert memory.total_bytes == 8 * GIB
    memory = explained(FREE).failure.memory
    assert (memory.free_bytes, memory.total_bytes, memory.tried_bytes) == (30 * GIB, 40 * GIB, None)
    rmm = "bad_alloc: cudaErrorMemoryAllocation: out of memory\n- Free memory: {}\n- Requested memory: {}"
    for free, tried in (("2GB", "3GB"), (2 * GIB, 3 * GIB)):  # XGBoost names the units since 3.0
        memory = explained(rmm.format(free, tried)).failure.memory
        assert (memory.free_bytes, memory.tried_bytes) == (2 * GIB, 3 * GIB)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2.25GiB", 2.25 * GIB),
        ("2 kB", 2000),
        ("184549376B", 176 * MIB),
        ("0 bytes", 0),
        ("20.00 MiB", 20 * MIB),
        ("4,096 bytes", 4096),
        ("1.5G", 1.5 * GIB),
        ("2 GB", 2_000_000_000),
        ("67.5", 67.5 * GIB),
        ("17179869184.00 GiB", None),
        ("9" * 40, None),
    ],
)
def test_sizes_as_programs_print_them(text: str, size: float | None) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize("word", ["out of memory", "OutOfMemory", "RESOURCE_EXHAUSTED", "Failed to allocate", "OOM"])
def test_an_unknown_wording_is_never_denied(word: str) -> None:
    cause = read(f"fatal: {word} (frobnicator)").cause
    assert (cause.kind, cause.text) == ("not understood", f"fatal: {word} (frobnicator)")


def test_what_is_understood_comes_first_and_what_is_survived_last() -> None:
    text = "note: out of memory\n{}\nRuntimeError: CUDA error: out of memory\nexits with return code = -9"
    log = read(text.format("Unable to find a valid cuDNN algorithm"))
    assert log.cause is log.failures[2]
    assert log.cause.kind == "gpu library"
    assert log.cause.source is None


def test_what_was_not_understood_stays_beside_what_is_only_possible() -> None:
    log = read("RuntimeError: MAGMA: out of memory\nexits with return code = -9")
    assert [each.kind for each in log.failures] == ["not understood", "killed"]


def test_the_source_that_a_traceback_quotes_is_no_message() -> None:
    log = read(
        "Traceback (most recent call last):\n"
        '  File "/env/vllm/kv_cache_utils.py", line 500, in check\n'
        '    raise ValueError("No available memory for the cache blocks. "\n'
        "ValueError: No available memory for the cache blocks. Try increasing it."
    )
    assert [(each.kind, each.line) for each in log.failures] == [("start", 5)]


def test_a_traceback_after_the_message_says_where() -> None:
    found = explained(
        "!!! Exception during processing !!! Allocation on device\nTraceback (most recent call last):\n"
        '  File "/opt/comfy/attention.py", line 63, in forward\n    x = self.proj(x)\n'
        "torch.OutOfMemoryError: Allocation on device\n"
    ).failure
    assert (str(found.place), found.code) == ("comfy/attention.py:63 forward", "x = self.proj(x)")


# What was caught, and where the log goes on.

MESSAGE = (
    "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 10.00 GiB total capacity; 7.00 GiB already allocated; 1.00 "
    "GiB free; 8.50 GiB reserved in total by PyTorch)"
)


@pytest.mark.parametrize(
    "line",
    [
        "WARNING attempting to recover from OOM in forward/backward pass",
        "Batch size 16 failed, trying batch size 8",
        "Attempting to copy inputs of <function f> to CPU due to CUDA OOM",
        "ran out of memory in validation step, retrying batch",
        "skipping this batch",
        "Retrying with batch size 4",
        "Ignoring this choice.",
        "CUDA out of memory with batch=16. Reducing to batch=8 and retrying (1/3).",
        "Step 100, cuda OOM - batch removed",
        "Decreasing batch size to: 4.",
        "{'train_runtime': 4000.1, 'train_samples_per_second': 3.2, 'train_loss': 1.9, 'epoch': 1.0}",
        "`Trainer.fit` stopped: `max_epochs=1` reached.",
        "Training completed. Do not forget to share your model on huggingface.co/models =)",
    ],
)
def test_a_failure_that_the_program_caught(line: str) -> None:
    log = read(f"WARNING {MESSAGE}\n{line}\nloss 1.0\n")
    assert [(each.kind, each.caught) for each in log.failures] == [("gpu", True)]
    assert "caught the error and continued" in explained(f"{MESSAGE}\n{line}\n").findings[0]


def test_the_failure_that_was_not_caught_is_the_cause() -> None:
    log = read(f"{MESSAGE}\nattempting to recover from OOM\n{MESSAGE}\n")
    assert [each.caught for each in log.failures] == [True, False]
    assert log.cause is log.failures[1]


def bar(step: int) -> str:
    return f"  5%|5    | {step}/400 [00:31<16:40,  2.58s/it]"


def test_steps_after_it_mean_that_the_log_goes_on() -> None:
    text = f"{bar(10)}\r{MESSAGE}\n" + "\r".join(bar(step) for step in range(10, 40))
    assert read(text).failures[0].later_steps == 29
    assert "it did not end the run" in explained(text).findings[0]
    ended = f"{bar(10)}\r{MESSAGE}\n{bar(11)}\rRuntimeError: CUDA error: out of memory"
    assert not any(each.survived for each in read(ended).failures)
    own = f"{MESSAGE}\nbatch size 8\n" + "".join(f"Epoch {epoch}: loss 1.{epoch}\n" for epoch in range(1, 5))
    assert "it did not end the run" in explained(own).findings[0]
    assert not any(each.survived for each in read(f"step 9 loss 1\n{MESSAGE}\nstep 10 loss 1.0\n").failures)
    other = f"[rank0]: {bar(10)}\n[rank1]: {MESSAGE}\n" + "\n".join(f"[rank0]: {bar(step)}" for step in range(10, 40))
    assert read(other).cause == read(other).failures[0]
    assert not read(other).failures[0].survived


# Logs of any size.


def test_a_hole_of_nuls_hides_nothing() -> None:
    """``copytruncate`` truncates a log that its writer goes on writing where it was: what is before is NULs."""
    for before in (b"", b"step 1\n", b"x" * 3000 + b"\n"):
        log = read_log(io.BytesIO(before + bytes(300_001) + f"step 2\n{MESSAGE}\n".encode()))
        assert [(each.kind, each.line) for each in log.failures] == [("gpu", 2 + (before != b""))]


def test_lines_of_one_kind_are_read_once_and_no_failure_among_them_is_missed() -> None:
    lines = [
        f"[rank{n % 8}]: step {n} memory allocated 12.{n % 10} GiB, exit code 0, 3 to allocate" for n in range(5000)
    ]
    lines[4321] = "[rank1]: step 4321 exit code 137"
    lines[4800] = MESSAGE
    log = read_log(io.BytesIO("\n".join(lines).encode()))
    assert [(each.kind, each.line) for each in log.failures] == [("killed", 4322), ("gpu", 4801)]
    assert log.lines == 5000


def test_progress_is_told() -> None:
    said: list[str] = []
    read_log(io.BytesIO(b"loss 1.0\n" * 400_000), progress=said.append)
    assert said[-1] == "reading the log: 4 MB"
    assert len(said) > 10


def test_the_device_that_llama_cpp_names() -> None:
    memory = explained(
        "CUDA error: out of memory\n  current device: 1, in function alloc at ggml-cuda.cu:9"
    ).failure.memory
    assert (memory.gpu, memory.tried_bytes, memory.total_bytes) == (1, None, None)


def test_lines_of_dockers_json_file() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "/app/train.py", line 88, in forward',
        "    y = f(x)",
        MESSAGE,
    ]
    text = "\n".join(json.dumps({"log": f"{line}\n", "stream": "stderr"}, separators=(",", ":")) for line in lines)
    (failure,) = read_log(io.BytesIO(f'{text}\n{{"log":"cut'.encode())).failures
    assert (failure.line, str(failure.place), failure.code) == (4, "app/train.py:88 forward", "y = f(x)")


def test_a_traceback_in_a_field_of_json() -> None:
    trace = f'Traceback (most recent call last):\n  File "/app/train.py", line 77, in step\n    x()\nOutOfMemoryError: {MESSAGE}'
    (failure,) = read(json.dumps({"level": "ERROR", "exc_info": trace})).failures
    assert str(failure.place) == "app/train.py:77 step"


def test_advice_to_reduce_the_batch_is_no_sign_that_the_program_went_on() -> None:
    for line in (MESSAGE + " Try reducing the batch size", "CUDA ran out of memory! Please retry with a smaller batch"):
        (failure,) = read(line).failures
        assert not failure.caught


@pytest.mark.parametrize(
    "prefix",
    ["(VllmWorker rank=3 pid=8765) ERROR 05-01", "(Worker_TP3 pid=8765) ERROR 05-01", "(Worker_TP3_EP3 pid=87)"],
)
def test_the_rank_of_a_worker_of_vllm(prefix: str) -> None:
    assert read(f"{prefix} torch.OutOfMemoryError: {MESSAGE}").failures[0].rank == 3


def test_the_source_is_told_without_what_a_collector_puts_before_it() -> None:
    lines = ['  File "/app/train.py", line 88, in step', "    loss.backward()", f"torch.OutOfMemoryError: {MESSAGE}"]
    (failure,) = read("\n".join(f"trainer-1  | {line}" for line in lines)).failures
    assert (str(failure.place), failure.code) == ("app/train.py:88 step", "loss.backward()")


@pytest.mark.parametrize(
    ("frame", "place"),
    [
        ("│ /app/train.py:88 in step                      │", "app/train.py:88 step"),
        ("File /home/u/model.py:12, in Net.forward(self, x)", "u/model.py:12 Net.forward"),
        ("Cell In[9], line 3", "In[9]:3 <module>"),
    ],
)
def test_frames_of_rich_and_of_ipython(frame: str, place: str) -> None:
    (failure,) = read(f"Traceback (most recent call last)\n{frame}\nOutOfMemoryError: {MESSAGE}").failures
    assert str(failure.place) == place
