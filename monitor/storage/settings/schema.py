"""Every setting of vramtop, in the order in which they are shown.

To add one, write a row here, and read it where it takes effect. What has a flag is filled in by
``tui/cli/settings_of_options.py``.
"""

from __future__ import annotations

from .setting import Setting

THEME, VIEW, COLUMNS, SORT, HOST_LINE, ASCII, INTERVAL = (
    f"dashboard.{key}" for key in ("theme", "view", "columns", "sort", "host_line", "ascii", "interval")
)
QUIET_HOURS = "alerts.quiet_hours"
KEYS, COLOURS = "keys", "colours"
"""Names of settings that are remembered, or read by name."""
TABLES = {
    "dashboard": "The dashboard",
    "attach": "Attaching to training processes",
    "estimates": "Estimates",
    "history": "Your measured runs",
    "pending": "Pending jobs",
    "alerts": "Alerts: how you are told, and from when on",
    "hosts": "Several hosts, over ssh",
    "hosts.groups": "Groups of hosts: --host @NAME",
    "prometheus": "Many hosts, from a Prometheus",
    "export": "vramtop export",
    "serve": "vramtop serve",
    "keys": "Keys of the dashboard",
    "colours": "Colours of the dashboard",
}
"""The TOML tables in their order, each with its heading."""
PROCESS_VIEWS = ("runs", "tree", "processes")
PROCESS_SORTS = ("STATUS", "VRAM", "GPU", "DIFF", "PID", "UP", "USER", "SM", "BW", "CPU", "RAM", "THR")
PROCESS_COLUMNS = (
    *("PID", "USER", "GPU", "VRAM GiB", "MAX", "SPREAD", "BUDGET", "DIFF", "STATUS", "SM %", "BW %", "CPU %"),
    *("RAM GiB", "THR", "UP", "RUNS IN", "COMMAND"),
)
ONLY = ("running", "diverging", "mine", "training", "server", "notebook", "desktop")
ALERTS = ("over_budget", "growing", "does_not_fit", "unattributed", "gpu_lost", "no_readings")
SIGNALS = ("none", "bell", "desktop")
METHODS = ("auto", "formula", "exact", "traced")
_DAY = 86_400
_ADDRESS = r"((\[[^\]\s]+\]|[^:\s\[\]]*):)?\d{1,5}"
_GPU = r"[0-9]{1,4}(-[0-9]{1,4}|(:[0-9]{1,4}){0,2})|(?i:GPU|MIG)-[0-9A-Za-z/-]{4,}"


def _is_backwards(gpus: tuple[str, ...]) -> str | None:
    """Return what is wrong with a range of GPUs whose end is before its start."""
    for gpu in gpus:
        first, dash, last = gpu.partition("-")
        if dash and first.isdigit() and int(first) > int(last):
            return f'"{gpu}" is no range; give "{last}-{first}"'
    return None


def _is_no_time(hours: str) -> str | None:
    """Return what is wrong with quiet hours that end when they begin."""
    times = [[int(number) for number in time.split(":")] for time in hours.split("-") if ":" in time]
    same = bool(times) and times[:1] == times[1:]
    return "quiet hours end at another time than they begin; give off for none" if same else None


SETTINGS: tuple[Setting, ...] = (
    Setting(
        name="dashboard.interval", kind="number", default=1.0, least=0.1, most=_DAY, flag="--interval",
        about="Seconds between readings of this machine, and of hosts over ssh; also for vramtop export",
    ),
    Setting(
        name=VIEW, kind="choice", default="runs", choices=PROCESS_VIEWS,
        about="View of the process table; the one that you switch to is remembered",
    ),
    Setting(
        name=COLUMNS, kind="list", default=(), choices=PROCESS_COLUMNS,
        example=("PID", "VRAM GiB", "STATUS", "COMMAND"),
        about="Columns of the process table, the most important first; empty: as many of the usual ones as fit",
    ),
    Setting(
        name=SORT, kind="choice", default="STATUS", choices=PROCESS_SORTS,
        about="Column by which the process table is sorted at the start",
    ),
    Setting(
        name=THEME, kind="text", default="vramtop-dark", pattern=r"[\w-]{1,60}", also="TEXTUAL_THEME",
        example="vramtop-light", expects="the name of a theme, such as vramtop-light or vramtop-high-contrast",
        about="Theme; the command palette has the list, and what you choose there is remembered",
    ),
    Setting(
        name=HOST_LINE, kind="switch", default=True,
        about="Show the line with the load, RAM and swap of the host; remembered",
    ),
    Setting(
        name="dashboard.mouse", kind="switch", default=True, flag="--mouse, --no-mouse",
        about="Use the mouse; false leaves it to the terminal, for selecting text",
    ),
    Setting(
        name="dashboard.ascii", kind="choice", default="auto", choices=("auto", "on", "off"),
        flag="--ascii, --no-ascii",
        about="Draw with ASCII characters only; auto: where the locale has no others",
    ),
    Setting(
        name="dashboard.read_only", kind="switch", default=False, flag="--read-only, --no-read-only",
        about="The dashboard cannot end processes",
    ),
    Setting(
        name="dashboard.user", kind="list", default=(), flag="--user", example=("ann", "bob"),
        about="Display only processes of these users; --user '' displays all again",
    ),
    Setting(
        name="dashboard.gpu", kind="list", default=(), flag="--gpu", example=("0", "2-3"),
        pattern=_GPU, check=_is_backwards, expects='a list of GPUs, such as ["0", "2-3", "0:3", "GPU-5a3f"]',
        about="Display only these GPUs; --gpu '' displays all again",
    ),
    Setting(
        name="dashboard.only", kind="list", default=(), flag="--only", choices=ONLY, example=("mine", "training"),
        about="Display only processes that are all of this; --only '' displays all again",
    ),
    Setting(
        name="attach.automatic", kind="switch", default=True, flag="--attach, --no-attach",
        about="Attach to training processes by itself, so that they have budgets",
    ),
    Setting(
        name="estimates.method", kind="choice", default="auto", choices=METHODS, flag="--method",
        about="Method of the estimate where a command takes one",
    ),
    Setting(
        name="estimates.python", kind="text", default="", flag="--python", is_program=True,
        example="/opt/conda/bin/python", expects="the path of a Python interpreter",
        about="Python interpreter with torch and transformers, for exact counts and traces; empty: searched for",
    ),
    Setting(
        name="estimates.download", kind="switch", default=True,
        about="Fetch the config.json of a model that is nowhere here from the Hugging Face hub, that file alone",
    ),
    Setting(
        name="history.enabled", kind="switch", default=True, flag="--history, --no-history",
        about="Keep measurements of your runs, and correct estimates by them",
    ),
    Setting(
        name="history.max_runs", kind="count", default=2000, least=1, most=2000,
        about="Measured runs that are kept, the newest ones; each has about 4 KiB",
    ),
    Setting(
        name="history.max_age_days", kind="number", default=0.0, least=0, most=36_500,
        about="Days after which a measured run is removed, when the next one is kept; 0: never",
    ),
    Setting(
        name="pending.signal", kind="choice", default="none", choices=SIGNALS, flag="--signal-fit",
        about="How to signal that a pending job fits now or no longer fits, besides a notice",
    ),
    Setting(
        name="pending.command", kind="text", default="", flag="--on-fit", is_program=True,
        example="notify-send \"$VRAMTOP_JOB fits\"", expects="a shell command",
        about="Shell command to run when a pending job begins to fit",
    ),
    Setting(
        name=QUIET_HOURS, kind="text", default="off", flag="--quiet-hours", example="22:00-07:00",
        pattern=r"(?i:off)|\s*([01]?\d|2[0-3]):[0-5]\d\s*-\s*([01]?\d|2[0-3]):[0-5]\d\s*",
        expects="HH:MM-HH:MM, such as 22:00-07:00, or off", check=_is_no_time,
        about="Hours of the day, local time, in which nobody is told of alerts",
    ),
    Setting(
        name="alerts.signal", kind="choice", default="none", choices=SIGNALS, flag="--signal-alert",
        about="How to signal that an alert fires or clears, besides a notice",
    ),
    Setting(
        name="alerts.command", kind="text", default="", flag="--on-alert", is_program=True,
        example="notify-send \"$VRAMTOP_ALERT_SENTENCE\"", expects="a shell command",
        about="Shell command to run when an alert fires or clears, in the dashboard and by vramtop export",
    ),
    Setting(
        name="alerts.off", kind="list", default=(), choices=ALERTS, example=("does_not_fit",),
        about="Alerts that you do not want at all",
    ),
    Setting(
        name="alerts.over_budget_after", kind="number", default=300.0, least=0, most=_DAY,
        about="Seconds for which a job must hold more than predicted until that alert fires",
    ),
    Setting(
        name="alerts.growing_after", kind="number", default=300.0, least=0, most=_DAY,
        about="Seconds for which a job must grow toward a full GPU until that alert fires",
    ),
    Setting(
        name="alerts.does_not_fit_after", kind="number", default=1800.0, least=0, most=_DAY,
        about="Seconds for which a pending job must not fit until that alert fires",
    ),
    Setting(
        name="alerts.unattributed_after", kind="number", default=900.0, least=0, most=_DAY,
        about="Seconds for which a GPU must have memory of no visible process until that alert fires",
    ),
    Setting(
        name="alerts.gpu_lost_after", kind="number", default=120.0, least=0, most=_DAY,
        about="Seconds for which a GPU must be unreadable until that alert fires",
    ),
    Setting(
        name="alerts.no_readings_after", kind="number", default=60.0, least=0, most=_DAY,
        about="Seconds for which there must be no recent reading, here or of a host, until that alert fires",
    ),
    Setting(
        name="hosts.ssh", kind="text", default="ssh", own_variable="VRAMTOP_SSH", is_program=True,
        example="ssh -F /home/ann/.ssh/cluster", expects="a command in place of ssh",
        about="Command in place of ssh for --host",
    ),
    Setting(
        name="hosts.groups", kind="mapping", default={}, example={"train": "node[01-16]"},
        pattern=r"[^-\s@]\S*", expects='names and lists of hosts: train = "node[01-16]"',
        about="Groups of hosts by name: vramtop --host @train reads them",
    ),
    Setting(
        name="prometheus.url", kind="text", default="", flag="--prometheus", pattern=r"https?://[^\s@]+",
        example="http://prometheus:9090",
        expects="an address that begins with http:// or https://, without user and password",
        about="The Prometheus that --prometheus without an address reads",
    ),
    Setting(
        name="prometheus.interval", kind="number", default=5.0, least=0.1, most=_DAY, flag="--interval",
        about="Seconds between readings of a Prometheus",
    ),
    Setting(
        name="prometheus.token_file", kind="text", default="", flag="--prometheus-token-file",
        example="/home/ann/.prometheus-token", expects="the path of a file",
        about="File with a bearer token for that Prometheus",
    ),
    Setting(
        name="prometheus.ca_file", kind="text", default="", flag="--prometheus-ca",
        example="/etc/ssl/our-ca.pem", expects="the path of a file",
        about="Certificates of the authority of that Prometheus's certificate, in place of the system's",
    ),
    Setting(
        name="export.listen", kind="text", default="127.0.0.1:10440", flag="--listen", pattern=_ADDRESS,
        expects="HOST:PORT, PORT, or :PORT for all addresses",
        about="Address on which vramtop export serves its metrics",
    ),
    Setting(
        name="serve.listen", kind="text", default="", flag="--listen", pattern=_ADDRESS, example="127.0.0.1:8000",
        expects="HOST:PORT, PORT, or :PORT for all addresses",
        about="Address on which vramtop serve shows the dashboard; empty: 127.0.0.1 and a free port",
    ),
    Setting(
        name=KEYS, kind="mapping", default={}, example={"fit.pin": ("f2", "ctrl+b")},
        expects='names of actions and keys: "fit.pin" = "f2", or ["f2", "ctrl+b"]',
        about="Keys by action, in place of the usual ones; the settings screen and docs/reference/keys.md list them",
    ),
    Setting(
        name=COLOURS, kind="mapping", default={}, example={"over": "#e5534b"},
        expects='names and colours: over = "#e5534b"; for some themes: "light.over" = "orange"',
        about="Colours by what they stand for, in place of vramtop's; the settings screen lists the names",
    ),
)  # fmt: skip
"""All settings. Tables stand together and in the order of ``TABLES``."""
_BY_NAME: dict[str, Setting] = {setting.name: setting for setting in SETTINGS}


def find_setting(name: str) -> Setting | None:
    """Return the setting of a dotted name."""
    return _BY_NAME.get(name)


def mapping_of(name: str) -> Setting | None:
    """Return the mapping that a dotted name is an entry of: ``keys.sort`` is one of ``keys``."""
    table = next((each for each in SETTINGS if each.kind == "mapping" and name.startswith(f"{each.name}.")), None)
    return table if table and len(name) > len(table.name) + 1 else None


def nearest_name(name: str) -> str | None:
    """Return the name of a setting that is meant by a wrong one, or None."""
    last = name.rpartition(".")[2].replace("-", "_")
    same = [each for each in _BY_NAME if each.rpartition(".")[2] == last]
    if len(same) == 1:
        return same[0]
    import difflib  # not at start-up

    near: list[str] = difflib.get_close_matches(name.replace("-", "_"), [*_BY_NAME], n=1, cutoff=0.6)
    if near:
        return near[0]
    ends: dict[str, str] = {each.rpartition(".")[2]: each for each in _BY_NAME}
    close = difflib.get_close_matches(last, [*ends], n=1, cutoff=0.75)
    return ends.get(close[0]) if close else None
