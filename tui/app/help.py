"""Help: the keys, and how to read the bars, letters, signs and statuses."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from ..draw.palette import COMPONENTS, STATUSES, VERDICTS, Mark

_KEYS = (
    ("f", "fit check: would a job fit, before it is started; a job that waits is opened again"),
    ("a", "attach: read a running job's settings, and hold it against its budget; the newest run, or a choice"),
    ("t", "a training step of that job: memory by component over it, and its largest tensors; F5 in a form"),
    ("Enter", "attach to the process under the cursor: its settings, ranks, memory over time, and why it diverges"),
    ("Tab", "to the GPUs and back; arrows choose a GPU where they are shown as rows"),
    ("p", "preflight: is all there that a job that waits needs; F12 or c in the fit check; r looks again"),
    ("/", "filter the processes: pid, user, command, job, status, gpu3; Esc shows all"),
    ("s", "sort the processes by the next column, marked ↓ in its title"),
    ("space", "pause and go on"),
    ("k", "terminate the process under the cursor: asks first, and again before SIGKILL; not with --read-only"),
    ("x", "dismiss the ended run under the cursor; else take a job from those that wait"),
    ("r", "record to a file, and stop recording"),
    ("Ctrl+P", "all commands, and the themes"),
    ("Ctrl+L", "draw the whole screen again; Ctrl+Z suspends, fg in the shell comes back"),
    ("q", "quit"),
)
_ATTACH_KEYS = (
    ("+ -", "a shorter or a longer stretch of time: 1, 5, 15, 60 minutes, the whole run"),
    ("[ ]", "the run before, the next run; ↑ ↓ choose the rank that is drawn"),
    ("F6", "to the settings and back; Tab goes from field to field"),
    ("F8", "forget what you filled in for this command line; an emptied field is forgotten too"),
    ("F5", "the training step of this job"),
    ("F3", "attach to another process as well"),
    ("x", "dismiss this run: an ended one stays until then"),
)
_GRAPH = (
    (
        "colours",
        "the budget by component: faint is to come, full is held (without colour: capitals)",
    ),
    ("━ ┄ ═", "the budget, its lower and upper bound, the card"),
    ("S C L F =", "start, CUDA context, loading weights, first step, steady"),
    (
        "KNOWN BY",
        "who says what the peak was: the probe, the driver, or readings so far apart",
    ),
)
_FIT_KEYS = (
    ("F2 p", "pin: the job waits, and the dashboard shows whether it fits; one that waits already is replaced"),
    ("F3 o", "open a job file, a configuration of another tool, or a launch line; both can be pasted"),
    ("F4 g", "the card: these GPUs, or others of the catalogue, and how many"),
    ("F5 t", "a training step of the job: memory by component over it"),
    ("F6", "to the suggestions or the verdict, and back to the settings"),
    ("1-9", "apply a suggestion; Alt and the digit while a field is being typed; Enter where the list has the cursor"),
    (
        "F7 i",
        "what if: need over micro-batch or length, against the card; l finds the largest that fits, Enter takes it",
    ),
    ("F8 w", "save as a job file, for vramtop fit FILE"),
    ("F9 y", "copy what was changed, as flags of vramtop fit and as edits of the tool's own file"),
    ("F12 c", "preflight: is all there that the job needs: driver, model, keys, disk, libraries, network"),
    ("F10 u", "undo: a suggestion, a file that was opened, or the edits of one field"),
    ("", "letters and digits act where no field is being typed into; Esc closes, and f brings the same job back"),
)
_BARS = (
    ("held", "what is on the card now: each process, ▓ unattributed, ░ reserved by the driver"),
    ("budget", "on the same scale, the whole card: what its jobs should hold, by component"),
    ("├──┤", "the range of that budget: a job outside of it is over or under"),
    ("·", "what the allocator's cache keeps beyond the components"),
    ("┈", "the budget in the graph, whose floor is 0 and whose ceiling is the card"),
    ("┃", "where the budget ends, on the one-line bars"),
    ("0:3", "a MIG device: GPU 0, GPU instance 3; 0:3:1 adds the compute instance; bars are in scale to its memory"),
    ("n/a", "not known; details say why"),
)
_STATUS_HELP = {
    "loading": "has not loaded all of its weights yet",
    "warming_up": "has not reached its first full step yet",
    "on_budget": "holds what was predicted",
    "over": "holds more than the upper bound: settings differ, or a leak",
    "under": "holds less than the lower bound, and does not grow",
    "growing": "should be steady, and is not",
    "ended": "is no longer on its GPU; stays until it is dismissed",
    "out_of_memory": "ended for want of memory, by what it said or held last",
    "unknown": "its memory cannot be read",
}
_VERDICT_HELP = {
    "fits": "even its upper bound fits",
    "tight": "the expected peak fits, the upper bound does not",
    "does_not_fit": "the expected peak does not fit in what is free and not spoken for",
    "unknown": "what the GPUs can give is not known",
}


class HelpScreen(ModalScreen[None]):
    """The help.

    Args:
        fit_first: begin with the keys of the fit check.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark", "app.pop_screen", "Close"),
    ]
    DEFAULT_CSS = """
    HelpScreen { align: center middle; }
    HelpScreen VerticalScroll {
        width: 92; max-width: 96%; height: auto; max-height: 94%;
        background: $surface; border: solid $primary; padding: 0 1;
    }
    """

    def __init__(self, *, fit_first: bool = False) -> None:
        super().__init__()
        self._fit_first = fit_first

    def compose(self) -> ComposeResult:
        """One text to scroll through."""
        with VerticalScroll(can_focus=True) as box:
            box.border_title = "Help"
            box.border_subtitle = "Esc closes"
            yield Static(help_content(fit_first=self._fit_first))


def help_content(*, fit_first: bool = False) -> Content:
    """The whole help; the keys of the fit check come first or last."""
    fit_keys = [_head("Keys of the fit check"), *(_entry(key, text) for key, text in _FIT_KEYS)]
    lines = [*(fit_keys if fit_first else []), _head("Keys"), *(_entry(key, text) for key, text in _KEYS)]
    lines += [_head("Reading a panel"), *(_entry(sign, text) for sign, text in _BARS)]
    lines += [_head("On the attach screen"), *(_entry(key, text) for key, text in (*_ATTACH_KEYS, *_GRAPH))]
    lines += [_head("Components of a budget")]
    lines += [_marked(f" {mark.letter} ", mark, mark.word) for mark in COMPONENTS.values()]
    lines += [_head("A running job is")]
    lines += [_marked(f" {mark.letter} {mark.word} ", mark, _STATUS_HELP[name]) for name, mark in STATUSES.items()]
    lines += [_head("A pending job")]
    lines += [_marked(f" {mark.letter} {mark.word} ", mark, _VERDICT_HELP[name]) for name, mark in VERDICTS.items()]
    return Content("\n").join(lines if fit_first else [*lines, *fit_keys])


def _head(words: str) -> Content:
    return Content.styled(f"\n{words}", "bold underline")


def _entry(key: str, text: str) -> Content:
    return Content.assemble((f" {key:9}", "bold"), f" {text}")


def _marked(words: str, mark: Mark, text: str) -> Content:
    return Content.assemble(" ", (words, f"#0b1220 on {mark.colour}"), f"  {text}")
