from __future__ import annotations

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache

import tdcompile
from tdcompile._compat.backends import options_of
from tdcompile.backend import TensorDictBackend, tdcompile_backend


@pytest.fixture(autouse=True)
def _installed():
    torch._dynamo.reset()
    counters.clear()
    with tdcompile.install():
        yield
    torch._dynamo.reset()


def num_compiled():
    return counters["stats"]["unique_graphs"]


def mean_of_squares(x, t):
    return ((x * t.reshape(-1, 1)) ** 2 + t.reshape(-1, 1)).mean()


def arguments(rows=3):
    return torch.arange(rows * 4.0).reshape(rows, 4), torch.arange(1.0, rows + 1)


HOW = {
    "plain": {},
    "mode": {"mode": "reduce-overhead"},
    "inductor-option": {"options": {"epilogue_fusion": False}},
    "our-option": {"options": {"tdcompile.passes": ()}},
    "mode-and-option": {"options": {"tdcompile.mode": "reduce-overhead", "epilogue_fusion": False}},
}


@pytest.mark.parametrize("how", HOW)
def test_compiled_function_is_right(how):
    compiled = torch.compile(mean_of_squares, backend="tdcompile", fullgraph=True, **HOW[how])
    torch.testing.assert_close(compiled(*arguments()), mean_of_squares(*arguments()))
    assert num_compiled() == 1


def test_mode_and_options_reach_inductor(monkeypatch):
    seen = []
    real = tdcompile._compat.inductor.compile_with_inductor

    def spy(*args, **kwargs):
        seen.append((kwargs["mode"], kwargs["options"]))
        return real(*args, **kwargs)

    monkeypatch.setattr(tdcompile._compat.inductor, "compile_with_inductor", spy)
    options = {"tdcompile.mode": "reduce-overhead", "epilogue_fusion": False}
    torch.compile(mean_of_squares, backend="tdcompile", options=options)(*arguments())
    torch.compile(lambda x: x + 1, backend="tdcompile", mode="reduce-overhead")(torch.ones(2))
    backend = TensorDictBackend("max-autotune-no-cudagraphs", {"max_autotune": False})
    torch.compile(lambda x: x + 2, backend=backend)(torch.ones(2))
    assert seen == [
        ("reduce-overhead", {"epilogue_fusion": False}),
        ("reduce-overhead", {}),
        ("max-autotune-no-cudagraphs", {"max_autotune": False}),
    ]
    assert options == {"tdcompile.mode": "reduce-overhead", "epilogue_fusion": False}


def test_gradients_are_eagers():
    compiled = torch.compile(mean_of_squares, backend="tdcompile", fullgraph=True)
    grads = []
    for fn in (compiled, mean_of_squares):
        inputs = [value.requires_grad_() for value in arguments()]
        fn(*inputs).backward()
        grads.append([value.grad for value in inputs])
    torch.testing.assert_close(grads[0], grads[1])


def test_dynamic_shapes_compile_once():
    compiled = torch.compile(mean_of_squares, backend="tdcompile", dynamic=True, fullgraph=True)
    for rows in (3, 4, 5, 7):
        torch.testing.assert_close(compiled(*arguments(rows)), mean_of_squares(*arguments(rows)))
    assert num_compiled() == 1


@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
def test_same_settings_do_not_compile_again(how):
    for _ in range(3):
        fresh = {
            key: dict(value) if isinstance(value, dict) else value for key, value in how.items()
        }
        torch.compile(mean_of_squares, backend="tdcompile", **fresh)(*arguments())
    assert num_compiled() == 1


def test_equal_backend_objects_do_not_compile_again():
    for _ in range(3):
        backend = TensorDictBackend(options={"epilogue_fusion": False})
        torch.compile(mean_of_squares, backend=backend)(*arguments())
    assert num_compiled() == 1


def test_other_settings_compile_again():
    torch.compile(mean_of_squares, backend="tdcompile")(*arguments())
    torch.compile(mean_of_squares, backend="tdcompile", options={"tdcompile.passes": ()})(
        *arguments()
    )
    assert num_compiled() == 2


def test_backends_compare_by_settings():
    one = TensorDictBackend(options={"epilogue_fusion": False})
    assert one == TensorDictBackend(options={"epilogue_fusion": False})
    assert hash(one) == hash(TensorDictBackend(options={"epilogue_fusion": False}))
    assert one != TensorDictBackend(options={"epilogue_fusion": True})
    assert one != tdcompile_backend
    assert tdcompile_backend == TensorDictBackend()


def test_unknown_option_names_the_near_ones_through_dynamo():
    compiled = torch.compile(
        mean_of_squares, backend="tdcompile", options={"tdcompile.audti": True}
    )
    with pytest.raises(BackendCompilerFailed, match=r"near names: tdcompile\.audit"):
        compiled(*arguments())


def test_fx_graph_cache_is_hit_and_never_bypassed():
    with fresh_cache(), torch._functorch.config.patch(enable_autograd_cache=False):
        for expected in ({"fxgraph_cache_miss": 1}, {"fxgraph_cache_hit": 1}):
            torch._dynamo.reset()
            counters.clear()
            torch.compile(mean_of_squares, backend="tdcompile")(*arguments())
            found = {key: counters["inductor"][key] for key in expected}
            assert found == expected
            assert counters["inductor"]["fxgraph_cache_bypass"] == 0


def test_autograd_cache_is_hit():
    with fresh_cache(), torch._functorch.config.patch(enable_autograd_cache=True):
        for expected in ("autograd_cache_miss", "autograd_cache_hit"):
            torch._dynamo.reset()
            counters.clear()
            torch.compile(mean_of_squares, backend="tdcompile")(*arguments())
            assert counters["aot_autograd"][expected] == 1


WRAPPED = {
    "name": ("tdcompile", {}, {}),
    "options": ("tdcompile", {"options": {"tdcompile.audit": True}}, {"tdcompile.audit": True}),
    "mode": ("tdcompile", {"mode": "reduce-overhead"}, {"tdcompile.mode": "reduce-overhead"}),
    "object": (TensorDictBackend(options={"tdcompile.audit": True}), {}, {"tdcompile.audit": True}),
    "other": ("eager", {}, None),
}


@pytest.mark.parametrize("case", WRAPPED)
def test_options_of_reads_what_the_compile_asked_for(case):
    backend, how, expected = WRAPPED[case]
    mode, options = how.get("mode"), how.get("options")
    wrapper = torch._TorchCompileWrapper(backend, mode, options, None)
    found = options_of(wrapper, tdcompile_backend)
    assert found == expected
    if found:
        assert found is not options
