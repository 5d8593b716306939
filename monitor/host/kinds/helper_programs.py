"""Notebooks and helper processes: what runs beside the programs that use a GPU. Add one here, as one row."""

from .known_program import KnownProgram

NOTEBOOKS = (
    KnownProgram(
        kind="notebook", name="Jupyter kernel", modules=("ipykernel_launcher", "ipykernel", "colab_kernel_launcher"),
    ),
)  # fmt: skip

HELPERS = (
    KnownProgram(kind="helper", name="MPS server", executables=("nvidia-cuda-mps-*",)),
    KnownProgram(kind="helper", name="DCGM", executables=("nv-hostengine", "dcgm-exporter", "dcgmi")),
    KnownProgram(kind="helper", name="compile worker", modules=("torch._inductor.compile_worker",)),
    KnownProgram(kind="helper", name="Ray", executables=("raylet", "gcs_server"), titles=("ray::IDLE",)),
)  # fmt: skip

TRAINING = (
    KnownProgram(kind="training", name="Ray Train", titles=("ray::_RayTrainWorker", "ray::RayTrainWorker")),
)  # fmt: skip
