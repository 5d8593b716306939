"""Opens the step screen on the job under the dashboard's cursor, or on another job with a budget."""

from vramtop.estimator.budget import Budget

from ..base import BoardApp
from .open_file import OpenedFile
from .screen import StepScreen


def open_step(app: BoardApp) -> None:
    """Draw the step of the job under the cursor, of another running job, or of a pending one."""
    board, selected = app.board, app.selected_process
    rows = [*([selected] if selected else []), *(board.processes if board else ())]
    running = next((row for row in rows if row.budget), None)
    pending = next((row.budget for row in board.pending if row.budget), None) if board else None
    if running and running.budget:
        show_step(app, running.budget, running.gpu.total_bytes)
    elif pending:
        show_step(app, pending, app.max_gpu_bytes)
    else:
        app.notify("No running or pending job has a budget, so there is no step to show.", severity="warning")


def show_step(app: BoardApp, budget: Budget, gpu_bytes: int | None, observed: OpenedFile | None = None) -> None:
    """Draw the step of a budget, and a snapshot beside it; a traced budget then replaces it on the dashboard too."""
    estimate = app.refine

    def refine() -> Budget:
        assert estimate is not None  # noqa: S101 - passed on only if there is one
        refined = estimate(budget.job)
        app.watchlist.set_budget(refined)
        return refined

    app.push_once(StepScreen(budget, gpu_bytes=gpu_bytes, refine=refine if estimate else None, observed=observed))
