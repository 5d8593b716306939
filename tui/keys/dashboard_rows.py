"""Keys of the dashboard, its dialogs, and the screens about a GPU, a process, a step or a failure."""

from .key import Key

DASHBOARD_KEYS = {
    "dashboard.fit_check": Key("f", "fit check: would a job fit, before you start it; reopens a pending job"),
    "dashboard.attach": Key("a", "attach: compare a running job with its budget; the latest run, or pick one"),
    "dashboard.step": Key("t", "one training step of the job under the cursor: memory by component, largest tensors"),
    "dashboard.preflight": Key("p", "preflight: is everything ready that a pending job needs?"),
    "dashboard.gpu": Key("g", "the GPU under the cursor or of the process: bandwidth, clocks, throttling, PCIe, ECC"),
    "dashboard.process": Key(
        "i", "the process under the cursor: SM, CPU, RAM, environment, open files, folder, parents, limits"
    ),
    "dashboard.alerts": Key(
        "w", "alerts: what has been wrong for a while, what may become an alert, and your quiet hours"
    ),
    "dashboard.crash": Key(
        "e", "why a run ended out of memory: the process under the cursor, a log, or a memory snapshot of torch"
    ),
    "dashboard.settings": Key("comma", "settings, with value and origin of each; keys and colours, too"),
    "dashboard.record": Key("r", "start or stop recording to a file"),
    "dashboard.dismiss": Key("x", "dismiss the ended run under the cursor, or unpin a pending job"),
    "dashboard.host_line": Key("h", "show or hide the host line: CPU, RAM, swap, load"),
    "processes.view": Key("v", "switch the view: runs, all processes, process tree; remembered"),
    "processes.mark": Key("space", "mark the processes under the cursor, to signal them together"),
    "processes.columns": Key("c", "choose columns, such as SM, CPU, RAM, threads; remembered"),
    "processes.sort": Key("s", "sort by the next column; ↓ marks it"),
    "processes.signal": Key(
        "k",
        "signal the marked processes, or those under the cursor: TERM, INT or KILL; asks first, by name; "
        "not with --read-only",
    ),
    "processes.leave_alone": Key("l", "detach from the run under the cursor and leave it alone, or attach to it again"),
    "columns.switch": Key("space", "show or hide the column under the cursor"),
    "columns.more_important": Key("left,minus,shift+up", "more important: the column stays longer when space is short"),
    "columns.less_important": Key("right,plus,shift+down", "less important: the column goes first when space is short"),
    "columns.default": Key("d", "the default columns"),
    "columns.keep": Key("enter", "keep this choice"),
    "signal.terminate": Key("y", "send TERM"),
    "signal.interrupt": Key("i", "send INT, as Ctrl+C does"),
    "signal.kill": Key("K", "send KILL"),
    "signal.leave": Key("n,q", "send nothing"),
    "gpu.previous": Key("left", "the previous GPU or the next GPU; MIG devices come after their GPU"),
    "gpu.next": Key("right", "the next GPU or MIG device", in_help=False),
    "process.next_part": Key(
        "tab", "to the next or previous part: command, place, parents, environment, open files, limits"
    ),
    "process.previous_part": Key("shift+tab", "to the previous part", in_help=False),
    "process.read": Key("r", "read environment, open files and limits again"),
    "alerts.quiet_hours": Key(
        "e", "set the hours in which you are not told of alerts, such as 22:00-07:00, or off; kept for later runs"
    ),
    "preflight.again": Key("r", "check again"),
    "crash.open_file": Key("o", "explain a log, or a memory snapshot of torch"),
    "settings.edit": Key("enter", "change the setting under the cursor; of a key: press the new one"),
    "settings.type": Key("e", "type the value, such as several keys: f2, ctrl+b"),
    "settings.reset": Key("d", "back to the default: it is removed from the file"),
    "step.open_snapshot": Key("o", "draw a memory snapshot of torch beside it, on one scale"),
}
