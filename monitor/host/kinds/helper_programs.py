"""Training that hides its command line, notebooks, and helpers: what runs beside the programs that use a GPU.

Add one here, as one row.
"""

from .known_program import KnownProgram

TRAINING = (
    KnownProgram(
        kind="training", name="Ray Train",
        titles=("ray::RayTrainWorker", "ray::_RayTrainWorker", "ray::TorchTrainer", "ray::TrainTrainable"),
    ),
    KnownProgram(kind="training", name="verl", titles=("ray::WorkerDict", "ray::FusedWorker")),
    KnownProgram(
        kind="training", name="OpenRLHF",
        titles=("ray::PolicyModelActor", "ray::CriticModelActor", "ray::ReferenceModelActor", "ray::RewardModelActor"),
    ),
)  # fmt: skip

NOTEBOOKS = (
    KnownProgram(
        kind="notebook", name="Jupyter kernel",
        modules=("ipykernel_launcher", "ipykernel", "colab_kernel_launcher", "xpython_launcher"),
    ),
    KnownProgram(
        kind="notebook", name="Jupyter",
        executables=("jupyter", "jupyter-lab", "jupyter-notebook", "jupyter-server", "jupyterhub-singleuser"),
        modules=("jupyterlab", "notebook", "jupyter_server", "jupyter"),
    ),
    KnownProgram(kind="notebook", name="marimo", executables=("marimo",), modules=("marimo",)),
)  # fmt: skip

HELPERS = (
    KnownProgram(kind="helper", name="MPS server", executables=("nvidia-cuda-mps-*",)),
    KnownProgram(kind="helper", name="DCGM", executables=("nv-hostengine", "dcgm-exporter", "dcgmi", "dcgmproftest*")),
    KnownProgram(
        kind="helper", name="NVIDIA's daemon",
        executables=("nvidia-persistenced", "nvidia-persiste*", "nvidia-powerd", "nv-fabricmanager", "nvidia-smi"),
    ),
    KnownProgram(kind="helper", name="monitor", executables=("nvitop", "nvtop", "gpustat", "btop", "vramtop")),
    KnownProgram(kind="helper", name="data loader worker", executables=("pt_data_worker",)),
    KnownProgram(kind="helper", name="compile worker", modules=("torch._inductor.compile_worker",)),
    KnownProgram(
        kind="helper", name="multiprocessing",
        code=("multiprocessing.resource_tracker", "multiprocessing.forkserver", "multiprocessing.semaphore_tracker"),
    ),
    KnownProgram(
        kind="helper", name="launcher", executables=("torchrun", "accelerate", "accelerate-launch", "deepspeed"),
        modules=("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"),
    ),
    KnownProgram(
        kind="helper", name="Ray",
        executables=("raylet", "gcs_server"), titles=("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent"),
    ),
    KnownProgram(kind="helper", name="Weights & Biases", executables=("wandb-core", "wandb"), modules=("wandb",)),
    KnownProgram(kind="helper", name="TensorBoard", executables=("tensorboard",), modules=("tensorboard",)),
)  # fmt: skip

OTHERS = (
    KnownProgram(kind="other", name="Ray worker", titles=("ray::",)),
    KnownProgram(kind="other", name="Frigate", titles=("frigate.",)),
    KnownProgram(kind="other", name="Blender", executables=("blender",)),
    KnownProgram(kind="other", name="ffmpeg", executables=("ffmpeg",)),
    KnownProgram(kind="other", name="gpu-burn", executables=("gpu_burn", "gpu-burn")),
)  # fmt: skip
