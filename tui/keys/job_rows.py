"""Keys of the fit check, the attach screen, what-if, and the dashboard over many hosts."""

from .key import Key

JOB_KEYS = {
    "fit.pin": Key(
        "f2,p", "pin the job as pending: the dashboard shows whether it fits; replaces an earlier version of it"
    ),
    "fit.open": Key("f3,o", "open a job file, a configuration of another tool, or a launch line; both can be pasted"),
    "fit.choose_gpus": Key(
        "f4,g", "choose the GPUs: those of this machine, or any number of a model from the catalogue"
    ),
    "fit.what_if": Key(
        "f7,i", "what-if: memory over micro-batch or sequence length; finds the largest that fits, and applies it"
    ),
    "fit.save": Key("f8,w", "save as a job file, for vramtop fit FILE"),
    "fit.copy": Key("f9,y", "copy the changed settings, as flags of vramtop fit and as edits of the tool's own file"),
    "fit.undo": Key("f10,u", "undo a suggestion, an opened file, or the edits of one field"),
    "fit.keep": Key("f11,a", "keep this job as candidate A and compare changes with it; again: drop it"),
    "fit.swap": Key("b", "go back to candidate A; the job as it is now becomes A"),
    "fit.preflight": Key(
        "f12,c",
        "preflight: check the driver, model, access tokens, disk, libraries and network that the job needs",
    ),
    "fit.apply": Key("enter", "apply the highlighted suggestion", in_help=False),
    "attach.choose": Key("f3", "attach to one more process"),
    "attach.forget": Key("f8", "forget what you filled in for this command line; clearing a field forgets it, too"),
    "attach.zoom_in": Key("plus,equals_sign", "show a shorter or longer time: 1, 5, 15, 60 minutes, the whole run"),
    "attach.zoom_out": Key("minus,underscore", "show a longer time", in_help=False),
    "attach.previous_run": Key(
        "left_square_bracket",
        "the previous run, the next run; ↑ ↓ choose the rank that is drawn, PgUp PgDn scroll what is below",
    ),
    "attach.next_run": Key("right_square_bracket", "the next run", in_help=False),
    "attach.dismiss": Key("x", "dismiss this run; an ended run stays until then"),
    "what_if.axis": Key("tab,m,s", "over the other setting: micro-batch or sequence length"),
    "what_if.less": Key("left", "a smaller value"),
    "what_if.more": Key("right", "a larger value"),
    "what_if.much_less": Key("pageup", "a much smaller value"),
    "what_if.much_more": Key("pagedown", "a much larger value"),
    "what_if.largest": Key("l", "the largest value that fits"),
    "what_if.reset": Key("home", "the value that the job has now"),
    "what_if.apply": Key("enter", "take the value over into the job"),
    "fleet.view": Key("v", "switch between hosts and runs"),
    "fleet.sort": Key("s", "sort by the next column: status, host, job, user, free; ↓ marks it"),
    "fleet.fit": Key("f", "fit: which hosts can take a job, now, after the running jobs, or empty"),
    "fleet.edit_job": Key("slash,e", "edit the job"),
}
