"""The preflight checks: a function each, and a row of ``CHECKS``."""

from ..check import Check
from . import cuda, environment_keys, folders, libraries, memory, model

CHECKS = (
    Check("NVIDIA driver", cuda.check_driver, waits_for="the driver", decisive=True),
    Check("CUDA runtime", cuda.check_cuda_runtime, waits_for="the job's Python to import torch", timeout_seconds=90),
    Check(
        "Compute capability",
        cuda.check_compute_capability,
        waits_for="the driver, and the job's Python to import torch",
        timeout_seconds=90,
    ),
    Check("Visible devices", cuda.check_visible_devices, waits_for="the driver"),
    Check(
        "VRAM verdict",
        memory.check_fit_verdict,
        waits_for="the deepest estimate available",
        timeout_seconds=120,
        decisive=True,
    ),
    Check("Host memory", memory.check_host_memory, waits_for="the quick estimate"),
    Check("Model files", model.check_model_files, waits_for="the file system", decisive=True),
    Check("Model access", model.check_model_access, waits_for="the hub", decisive=True),
    Check("Environment keys", environment_keys.check_environment_keys),
    Check("Output folder", folders.check_output_folder, waits_for="the file system"),
    Check("Temporary folder", folders.check_temporary_folder, waits_for="the file system"),
    Check("Libraries", libraries.check_libraries, waits_for="the job's Python to list its packages"),
    Check("Shared memory", memory.check_shared_memory),
)
"""In the order of the report."""
