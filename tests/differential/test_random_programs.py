"""Random programs agree with eager, whatever they are fed with.

``DIFFERENTIAL_PROGRAMS=2000`` runs that many random programs instead of the few of a
usual run; ``DIFFERENTIAL_FIRST`` is the first seed, ``DIFFERENTIAL_BACKEND``
the backend. A failure prints a script that shows it on its own.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.differential.compare import (
    Case,
    compare_calls,
    disagreement,
    minimise,
    reproducer,
)
from tests.differential.inputs import VARIATIONS, Spec, make_specs
from tests.differential.programs import STEPS, Program, make_program

if TYPE_CHECKING:
    from tdcompile import TensorDict

_FIRST = int(os.environ.get("DIFFERENTIAL_FIRST", "0"))
_PROGRAMS = int(os.environ.get("DIFFERENTIAL_PROGRAMS", "10"))
_BACKEND = os.environ.get("DIFFERENTIAL_BACKEND", "eager")


def check(case: Case) -> None:
    found = disagreement(case)
    if found is not None:
        # Shortening compiles many times; it is worth it once there is something to look at.
        small = minimise(case, lambda smaller: disagreement(smaller) is not None)
        pytest.fail(reproducer(small, disagreement(small) or found))


def case_of(seed: int, *, inputs: int = 6, **kwargs: Any) -> Case:
    kinds = kwargs.pop("kinds", None)
    program = make_program(seed, kinds, max_steps=kwargs.pop("max_steps", 6))
    return Case(program, tuple(make_specs(seed, inputs)), **kwargs)


@pytest.mark.parametrize("seed", range(40))
def test_program_run_twice_agrees_with_itself(seed):
    assert disagreement(case_of(seed, backend=None)) is None


@pytest.mark.parametrize("kind", STEPS)
def test_step_compiled_agrees_with_eager(kind):
    seed = list(STEPS).index(kind)
    check(case_of(seed, inputs=4, kinds=(kind, kind, "set", "read"), max_steps=4))


@pytest.mark.parametrize("seed", range(_FIRST, _FIRST + _PROGRAMS))
def test_program_compiled_agrees_with_eager(seed):
    check(case_of(seed, backend=_BACKEND))


@pytest.mark.parametrize("seed", range(5000, 5003))
@pytest.mark.parametrize("dynamic", [True, False])
def test_program_with_other_shapes_agrees_with_eager(seed, dynamic):
    case = case_of(seed, dynamic=dynamic)
    batches: tuple[tuple[int, ...], ...] = ((3,), (4,), (1,), (2, 3), (3,))
    check(replace(case, specs=tuple(Spec(batch=batch, seed=seed) for batch in batches)))


@pytest.mark.parametrize("seed", range(6000, 6003))
def test_program_compiled_by_aot_agrees_with_eager(seed):
    check(case_of(seed, backend="aot_eager", inputs=4))


def test_program_compiled_by_inductor_agrees_with_eager():
    check(
        case_of(
            7000, backend="inductor", inputs=3, kinds=("set", "in place", "tensordict and number")
        )
    )


@pytest.mark.parametrize("variation", VARIATIONS)
def test_inputs_of_a_variation_differ_from_the_base(variation):
    base = Spec()
    changed = {VARIATIONS[variation](base, random.Random(seed)).source for seed in range(6)}
    assert changed != {base.source}


def _rename(td: TensorDict) -> TensorDict:
    td.names = ["t"]
    return td


@pytest.mark.parametrize(
    "tamper",
    [
        pytest.param(lambda td: td.copy(), id="another object"),
        pytest.param(lambda td: td.set("a", td["a"].clone()), id="another leaf"),
        pytest.param(lambda td: td.set("a", td["a"].view(-1)), id="a view of the leaf"),
        pytest.param(lambda td: td.set("n", td["n"].copy()), id="another nested tensordict"),
        pytest.param(lambda td: td.set("n", td["n"].lock_()), id="a nested lock"),
        pytest.param(lambda td: td.set("a", td["b"]), id="one leaf twice"),
        pytest.param(lambda td: td.set("z", torch.ones(3)), id="one key more"),
        pytest.param(lambda td: td.set("a", td.pop("a")), id="key order"),
        pytest.param(lambda td: td.set("a", td["a"].add_(1)), id="values"),
        pytest.param(lambda td: td.set("a", td["a"].double()), id="dtype"),
        pytest.param(lambda td: td.lock_(), id="lock"),
        pytest.param(_rename, id="names"),
        pytest.param(lambda td: td.auto_device_(), id="device"),
        pytest.param(lambda td: td.set("n", td["n"]), id="nothing"),
        pytest.param(lambda td: td.set("a", td["zz"]), id="an exception"),
    ],
)
def test_comparison_sees_a_difference(tamper, request):
    """The harness itself: what it would miss, no test on top of it could find."""
    expected = "nothing" in request.node.callspec.id

    def program(a, b, s, w):
        return a

    found = compare_calls(program, lambda a, b, s, w: tamper(a), Spec())
    assert (found is None) == expected


def test_comparison_sees_a_lock_that_holds_a_nested_tensordict():
    def program(a, b, s, w):
        a.lock_()

    def compiled(a, b, s, w):
        a._is_locked = a["n"]._is_locked = True

    assert compare_calls(program, compiled, Spec()) is not None


def test_minimise_leaves_what_shows_the_fault():
    program = Program(('out.append(p["a"])', 'p["late"] = w', "q = p"), "out, p, q")
    case = Case(program, (Spec(), Spec(seed=1, names=True)))
    small = minimise(case, lambda c: any("late" in step for step in c.program.steps))
    assert small.program.steps == ('p["late"] = w',)
    assert small.specs == (Spec(),)
