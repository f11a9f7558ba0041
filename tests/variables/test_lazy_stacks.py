"""Lazy stacks in a trace: one compilation for all lengths, and eager's result in every case."""

from __future__ import annotations

import pytest
import torch

import tdcompile
from tdcompile import LazyStackedTensorDict, NonTensorData, TensorDict


def element(**further):
    return TensorDict({"a": torch.randn(3, 2), "n": {"x": torch.randn(3)}, **further}, [3])


def stack(length, **kwargs):
    return LazyStackedTensorDict(*[element() for _ in range(length)], **kwargs)


def same(ours, theirs):
    if isinstance(theirs, (tuple, list)):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(theirs, torch.Tensor):
        return isinstance(ours, torch.Tensor) and torch.equal(ours, theirs)
    if isinstance(theirs, LazyStackedTensorDict):
        return (
            type(ours) is type(theirs)
            and ours.stack_dim == theirs.stack_dim
            and ours.batch_size == theirs.batch_size
            and ours.names == theirs.names
            and same(ours.tensordicts, theirs.tensordicts)
        )
    if isinstance(theirs, TensorDict):
        return (
            type(ours) is type(theirs)
            and ours.batch_size == theirs.batch_size
            and ours.is_locked == theirs.is_locked
            and list(ours.keys()) == list(theirs.keys())
            and all(same(ours.get(key), theirs.get(key)) for key in list(theirs.keys()))
        )
    if isinstance(theirs, NonTensorData):
        return ours.data == theirs.data and ours.batch_size == theirs.batch_size
    return ours == theirs


def run(program, make, lengths=(2, 3, 4, 5), fullgraph=True, **options):
    """Run a program eagerly and compiled on inputs of each length; return the number of graphs."""
    graphs = []

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph

    with tdcompile.install():
        torch.compiler.reset()
        compiled = torch.compile(program, backend=backend, fullgraph=fullgraph, **options)
        for length in lengths:
            torch.manual_seed(length)
            expected_inputs = make(length)
            torch.manual_seed(length)
            inputs = make(length)
            expected = program(*expected_inputs)
            assert same(compiled(*inputs), expected)
            assert same(inputs, expected_inputs)
    return len(graphs)


def read(s):
    return s["a"] * 2


def read_nested(s):
    return s["n", "x"] + s["n"]["x"]


def add_number(s):
    return s + 1


def chain(s):
    return (s * 2 + 1).exp()["a"]


def add_itself(s):
    return s + s


def add_tensor(s):
    return s * torch.ones(3)


def write(s):
    s["b"] = s["a"] * 2
    return s


def overwrite_and_read(s):
    read_before = s["a"]
    s["a"] = read_before * 2
    return read_before, s["a"]


def swap(s):
    a, x = s["a"], s["n", "x"]
    s["a"] = x
    s["b"] = a
    return s


def write_nested(s):
    nested = s["n"]
    nested["y"] = nested["x"] + 1
    return nested["y"]


def read_sizes(s):
    return s.batch_size, s.ndim, s["a"].sum()


def read_sizes_only(s):
    return s.batch_size, s["n", "x"].sum()


def write_into_what_was_read(s):
    first = s["a"]
    first.add_(1)
    return first, s["a"]


def ask_presence(s):
    return "a" in s, "z" in s, s["a"].sum()


STACKED = [
    read,
    read_nested,
    add_number,
    chain,
    add_itself,
    add_tensor,
    write,
    overwrite_and_read,
    swap,
    write_nested,
    read_sizes,
    write_into_what_was_read,
    ask_presence,
]


@pytest.mark.parametrize("dynamic", [None, True], ids=["automatic", "dynamic"])
@pytest.mark.parametrize("program", STACKED)
def test_lazy_stack_length_varies_compiles_once(program, dynamic):
    assert run(program, lambda length: (stack(length),), dynamic=dynamic) == 1


@pytest.mark.parametrize("program", [read, add_number, write])
def test_lazy_stack_of_length_one_costs_one_more(program):
    assert run(program, lambda length: (stack(length),), lengths=(1, 2, 3, 4)) == 2


@pytest.mark.parametrize("program", [read, add_number, write])
def test_lazy_stack_along_another_dimension_compiles_once(program):
    assert run(program, lambda length: (stack(length, stack_dim=1),)) == 1


def named(length):
    made = stack(length)
    made.names = ["time", "batch"]
    return (made,)


def test_lazy_stack_with_names_gives_them_to_the_result():
    assert run(add_number, named) == 1


def read_first(s):
    return s[0]["a"] + 1


def iterate(s):
    return [td["a"].sum() for td in s]


def add_in_place(s):
    return s.add_(1) is s, s["a"]


def write_then_take_first(s):
    s["a"] = s["a"] * 2
    return s[0]["a"] + 1, s["a"]


def result_then_take_first(s):
    return (s + 1)[0]["a"]


def lock(s):
    s.lock_()
    return s["a"], s.is_locked


def delete(s):
    del s["a"]
    return s, s["n", "x"] + 1


def use_the_list(s):
    s["b"] = s["a"]
    return s.tensordicts[0]["b"] + s["b"].sum()


THROUGH_ELEMENTS = [
    read_first,
    iterate,
    add_in_place,
    write_then_take_first,
    result_then_take_first,
    lock,
    delete,
    use_the_list,
]


@pytest.mark.parametrize("program", THROUGH_ELEMENTS)
def test_lazy_stack_through_elements_gives_eager_result(program):
    run(program, lambda length: (stack(length),), lengths=(2, 3, 2))


# ---- what may be shared, and changes between calls -----------------------------------------------


def write_element_then_read(s, td):
    td["a"] = torch.zeros(3, 2)
    return s["a"] * 2


def read_then_write_element(s, td):
    before = s["a"]
    td["a"] = torch.zeros(3, 2)
    return before, s["a"]


def write_stack_then_read_element(s, td):
    s["a"] = s["a"] * 2
    return td["a"] + 1


def add_to_element_leaf_then_read(s, td):
    td["a"].add_(1)
    return s["a"] * 2


def leafwise_after_element_write(s, td):
    td["n", "x"] = torch.zeros(3)
    return s + 1


@pytest.mark.parametrize("is_element", [(True, False, True), (False, True, False)])
@pytest.mark.parametrize(
    "program",
    [
        write_element_then_read,
        read_then_write_element,
        write_stack_then_read_element,
        add_to_element_leaf_then_read,
        leafwise_after_element_write,
    ],
)
def test_lazy_stack_and_a_tensordict_that_may_be_its_element(program, is_element):
    answers = iter([answer for answer in is_element for _ in range(2)])

    def make(length):
        made = stack(length)
        return made, made.tensordicts[1] if next(answers) else element()

    run(program, make, lengths=(2, 2, 2))


def write_leaf_then_read(s, leaf):
    leaf.add_(1)
    return s["a"] * 2


def store_then_write_leaf(s, value):
    s["b"] = value
    value.add_(1)
    return s["b"]


def test_leaf_of_an_element_written_in_place_is_seen():
    def make(length):
        made = stack(length)
        return made, made.tensordicts[0]["a"]

    run(write_leaf_then_read, make, lengths=(2, 2, 3))


def test_tensor_stored_in_a_stack_and_written_later_is_seen():
    run(store_then_write_leaf, lambda length: (stack(length), torch.randn(length, 3)))


def write_one_read_other(s, other):
    s["a"] = s["a"] * 2
    return other["a"]


def read_one_write_other(s, other):
    other["a"] = s["a"] * 2
    return s + 1


@pytest.mark.parametrize("program", [write_one_read_other, read_one_write_other])
@pytest.mark.parametrize("shared", [True, False])
def test_two_lazy_stacks_that_may_share_elements(program, shared):
    def make(length):
        made = stack(length)
        other = made.tensordicts[::-1] if shared else stack(length).tensordicts
        return made, LazyStackedTensorDict(*other)

    run(program, make, lengths=(2, 3, 2))


def heterogeneous(kind):
    made = stack(2)
    if kind == "shape":
        made.tensordicts[1]["a"] = torch.randn(3, 4)
    elif kind == "key":
        made.tensordicts[0]["z"] = torch.ones(3)
    elif kind == "dtype":
        made.tensordicts[0]["a"] = torch.ones(3, 2, dtype=torch.float64)
    elif kind == "locked":
        made.lock_()
    elif kind == "text":
        made.tensordicts[0]["s"] = "word"
        made.tensordicts[1]["s"] = "word"
    elif kind == "hook":
        made.hook_out = torch.neg
    return (made,)


@pytest.mark.parametrize("kind", ["shape", "key", "dtype", "locked", "text"])
@pytest.mark.parametrize("first", ["other", "alike"])
def test_leafwise_elements_stop_being_alike_gives_eager_result(kind, first):
    kinds = ["alike", kind, "alike", kind]
    order = iter([k for k in (kinds if first == "alike" else kinds[::-1]) for _ in range(2)])
    run(add_number, lambda _: heterogeneous(next(order)), lengths=(2, 2, 2, 2))


@pytest.mark.parametrize("program", [add_tensor, add_itself, read_sizes_only])
def test_elements_of_several_shapes_give_eager_result(program):
    run(program, lambda _: heterogeneous("shape"), lengths=(2,))


def test_hook_set_between_calls_is_called():
    order = iter([k for k in ("alike", "hook", "alike") for _ in range(2)])
    run(read, lambda _: heterogeneous(next(order)), lengths=(2, 2, 2))


# ---- where a stack stands ------------------------------------------------------------------------


def holder(length):
    made = TensorDict({"q": torch.randn(length, 3), "s": stack(length)}, [length, 3])
    return (made,)


def read_held(td):
    return td["s", "a"] + 1


def write_beside(td):
    td["z"] = td["s", "a"] + 1
    return td


def add_to_holder(td):
    return td + 1


def test_lazy_stack_in_a_tensordict_read_compiles_once():
    assert run(read_held, holder) == 1
    assert run(write_beside, holder) == 1


def test_lazy_stack_in_a_tensordict_takes_part_in_leafwise_operations():
    assert run(add_to_holder, holder) == 2


def break_between(s):
    made = s + 1
    torch._dynamo.graph_break()
    made["a"] = made["a"] * 2
    return made, s * 2


def test_lazy_stack_across_a_graph_break_gives_eager_result():
    run(break_between, lambda length: (stack(length),), lengths=(2, 3, 2), fullgraph=False)


# torch looks at the gradient of an input that is no leaf, and hides its own warning from users.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_lazy_stack_gradients_reach_the_elements(backend):
    with tdcompile.install():
        torch.compiler.reset()
        compiled = torch.compile(lambda s: (s * 3)["a"].sum(), backend=backend, fullgraph=True)
        for length in (2, 3):
            made = stack(length)
            for td in made.tensordicts:
                td["a"].requires_grad_()
            compiled(made).backward()
            for td in made.tensordicts:
                assert torch.equal(td["a"].grad, torch.full((3, 2), 3.0))


# ---- copies and locks of what holds a stack ------------------------------------------------------


def copy_holder(td):
    return td.copy(), td["q"] * 2


def edit_then_copy(td):
    td["s"].set("a", td["s", "a"] * 3)
    copied = td.copy()
    return copied, td


def copy_then_edit_the_copy(td):
    copied = td.copy()
    copied["s"].set("a", td["s", "a"] * 3)
    return copied, td


def edit_an_element_then_copy(td):
    td["s"].tensordicts[0]["a"] = torch.zeros(3, 2)
    return td.copy(), td


def lock_then_write(td):
    td.lock_()
    try:
        td["s"].set("z", td["q"])
    except RuntimeError:
        return "locked", td["q"] + 1
    return "written", td["q"] + 1


def lock_unlock_write(td):
    td.lock_()
    td.unlock_()
    td["s"].set("z", td["q"])
    return td


@pytest.mark.parametrize(
    "program",
    [
        copy_holder,
        edit_then_copy,
        copy_then_edit_the_copy,
        edit_an_element_then_copy,
        lock_then_write,
        lock_unlock_write,
    ],
)
def test_holder_of_a_lazy_stack_copied_or_locked_gives_eager_result(program):
    run(program, holder, lengths=(2, 3, 2))
