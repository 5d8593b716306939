from builders import make_gpu, make_process, make_run, make_snapshot, make_watchlist

from vramtop.estimator.causes.divergence import Divergence
from vramtop.estimator.causes.explain import Explanation
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.tui.screens.attach.rank_view import divergence_content
from vramtop.tui.screens.attach.run_header import run_title


def test_a_run_without_a_name_shows_its_program_and_model():
    watchlist = make_watchlist(make_run(Job(model=ModelSpec(id="meta-llama/Llama-3.1-8B")), 4711), device=40)
    runs = watchlist.update(make_snapshot([make_gpu(0, [make_process(used=40)])])).runs
    assert run_title(runs[0]).plain == "train.py Llama-3.1-8B"


def test_an_explanation_is_shown_once():
    found = Explanation(changes={}, description="checkpointing is off", device_bytes=GIB, predicted_bytes=GIB)
    line = "1.0 GiB if checkpointing is off"
    whole = Divergence(sentence=f"observed 1.1 GiB, expected 0.5; {line}", parts=(), explanations=(found,))
    assert divergence_content(whole).plain.splitlines() == ["Why? observed 1.1 GiB, expected 0.5", f"  · {line}"]


def test_what_makes_memory_grow_does_not_repeat_that_it_grows():
    growing = Divergence(
        sentence="holds 44.9 GiB and grows", parts=(), explanations=(), further=("kept tensors",), is_trend=True
    )
    shown = divergence_content(growing).plain.splitlines()
    assert shown == ["Why? causes of endless growth:", "  · kept tensors"]
