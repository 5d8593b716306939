"""Results that are made again from their shapes compared with those of torch's own fake mode."""

from typing import Any

import pytest
import torch
from job_matrix import CELLS
from torch._subclasses.fake_tensor import FakeTensorMode

from vramtop.estimator.job.job_file.changes import with_changes
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.trace.traced_step import trace_request
from vramtop.estimator.worker.described import trace_script
from vramtop.estimator.worker.memory import fake_results, tracker


def run_in_mode(func: Any, args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs)


@pytest.mark.parametrize(
    "name",
    [
        "llama, bf16",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("llama, mixed fsdp2", "deepseek_v3, bf16", "t5, mixed", "gpt2, mixed eager", "bert, mixed")
        ),
    ],
)
def test_a_trace_is_the_same_without_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = CELLS[name].model.config
    depth = {key: 2 for key in ("num_hidden_layers", "num_layers", "n_layer") if key in config}
    job = with_changes(CELLS[name], {"model.config": config | depth})
    script = trace_request(job, resolve_model(job.model))["script"]
    (first,), (second,) = trace_script(script, [None]), trace_script(script, [None])
    monkeypatch.setattr(tracker, "run", run_in_mode)
    (without,) = trace_script(script, [None])
    for traced in (first, second):
        assert traced.history.events == without.history.events
        assert [vars(record) for record in traced.history.records] == [vars(each) for each in without.history.records]


def test_a_result_is_made_once_by_the_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_results, "_ENTRIES", {})
    calls = []
    dispatch = FakeTensorMode.dispatch

    def counted(mode: Any, func: Any, *others: Any, **named: Any) -> Any:
        if func.namespace == "aten":
            calls.append(func)
        return dispatch(mode, func, *others, **named)

    monkeypatch.setattr(FakeTensorMode, "dispatch", counted)
    with FakeTensorMode():
        left, right = torch.empty(3, 4), torch.empty(4, 5)
        calls.clear()
        results = [fake_results.run(torch.ops.aten.mm.default, (left, right), {}) for _ in range(3)]
        views = [fake_results.run(torch.ops.aten.t.default, (left,), {}) for _ in range(2)]
    assert len(calls) == 2
    assert [each.shape for each in results] == [(3, 5)] * 3
    assert len({each.untyped_storage()._cdata for each in results}) == 3
    assert {each.untyped_storage()._cdata for each in views} == {left.untyped_storage()._cdata}
    assert {each.stride() for each in views} == {(1, 4)}


def test_a_gradient_that_nobody_asks_for_is_none_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_results, "_ENTRIES", {})
    backward, of_bias = torch.ops.aten.convolution_backward.default, False
    with FakeTensorMode():
        given = torch.empty(2, 4, 6, 6), torch.empty(2, 3, 8, 8), torch.empty(4, 3, 3, 3)
        settings = [4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, of_bias]
        for made in (fake_results.run(backward, (*given, *settings), {}) for _ in range(2)):
            assert [each if each is None else each.shape for each in made] == [(2, 3, 8, 8), (4, 3, 3, 3), None]
    assert None not in fake_results._ENTRIES.values()


@pytest.mark.parametrize("number", [2.0, 2, True])
def test_known_values_beside_unknown_ones_make_the_results_of_the_mode(number: Any) -> None:
    """A number beside a tensor becomes a known tensor of its own type, which the result does not take."""
    with FakeTensorMode():
        wide, known = torch.empty(3, 4, dtype=torch.bfloat16), torch.tensor(number)
        known.constant = torch.tensor(number)
        for left, right in ((wide, known), (known, wide), (wide.float(), known)):
            made = [fake_results.run(torch.ops.aten.mul.Tensor, (left, right), {}) for _ in range(2)]
            own = torch.ops.aten.mul.Tensor(left, right)
            assert [(each.dtype, each.shape, each.constant) for each in made] == [(own.dtype, own.shape, None)] * 2
        whole = torch.ops.aten.mul.Tensor, (torch.empty(3, dtype=torch.int64), known), {}
        assert [fake_results.run(*whole).dtype for _ in range(2)] == [
            torch.result_type(torch.empty(3).long(), known)
        ] * 2


ATEN = torch.ops.aten


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_of_meta_kernels_are_those_of_the_mode(dtype: torch.dtype) -> None:
    with FakeTensorMode():
        wide = [torch.empty(3, 4), torch.empty((), dtype=dtype)]
        lists = [torch.empty(3, 4, dtype=dtype), torch.empty(2, 1, dtype=dtype)], [torch.empty(3, 4), torch.empty(2, 5)]
        calls = [
            (ATEN._foreach_add.List, *lists),
            (ATEN._foreach_mul.Scalar, lists[0], 2.0),
            (ATEN._foreach_addcdiv.ScalarList, wide, wide, wide, [1.0, 2.0]),
            (ATEN._foreach_norm.Scalar, wide, 2),
            (ATEN._foreach_sqrt.default, wide),
            (ATEN._foreach_addcdiv_.ScalarList, wide, wide, wide, [1.0, 2.0]),
        ]  # fmt: skip
        for func, *args in calls:
            own = func(*args)
            for made in (fake_results.run(func, tuple(args), {}) for _ in range(2)):
                assert described(tuple(made)) == described(tuple(own)) if own else made is None, func


def described(result: Any) -> Any:
    if result is None or isinstance(result, torch.Tensor):
        return None if result is None else (type(result), result.shape, result.stride(), result.dtype, result.device)
    return type(result), [described(each) for each in result]
