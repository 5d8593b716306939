"""Opens the GPU screen on the GPU under the cursor of the dashboard."""

from vramtop.monitor.snapshot import GpuKey

from ..base import BoardApp, ShowsGpus
from .screen import GpuScreen


def open_gpu(app: BoardApp) -> None:
    """Show the GPU under the cursor, or that of the process under it."""
    front, row = app.screen, app.selected_process
    open_gpu_on(app, front.selected_gpu if isinstance(front, ShowsGpus) else row.gpu.key if row else None)


def open_gpu_on(app: BoardApp, key: GpuKey | None) -> None:
    """Show a GPU or MIG device; None: there is none, and a notification says so."""
    if key is None:
        app.notify("There is no GPU to show.", severity="warning")
    else:
        app.push_once(GpuScreen(key))
