from __future__ import annotations

import pytest
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

from tdcompile._compat.slots import HOOKS, HookMixin, bind_hooks, upstream_names
from tdcompile._compat.version import torch_version

CALLED = [hook for hook in HOOKS if upstream_names(hook)]
# A name that moved in 2.14, as the releases on the other side of the move have it.
OTHER_RELEASE = (2, 14) if torch_version() < (2, 14) else (2, 13)


@pytest.mark.parametrize("hook", CALLED)
def test_every_hook_exists_on_the_installed_base_class(hook):
    assert [name for name in upstream_names(hook) if not hasattr(VariableTracker, name)] == []


@pytest.mark.parametrize(
    ("hook", "old", "new"),
    [
        ("getattr_hook", ("var_getattr",), ("tp_getattro_impl",)),
        ("length_hook", ("mp_length", "sq_length"), ("mp_length_impl", "sq_length_impl")),
        ("power_hook", (), ("nb_power_impl",)),
        ("add_hook", ("nb_add_impl",), ("nb_add_impl",)),
    ],
)
def test_upstream_names_follow_the_release(hook, old, new):
    assert upstream_names(hook, (2, 13, 0)) == old
    assert upstream_names(hook, (2, 14, 1)) == new
    assert upstream_names(hook, (2, 15, 0)) == new


def test_mixin_binds_the_installed_name():
    class Tracker(HookMixin, UserDefinedObjectVariable):
        def getattr_hook(self, tx, name):
            return "ours"

    (upstream,) = upstream_names("getattr_hook")
    assert getattr(Tracker, upstream) is Tracker.getattr_hook
    assert getattr(Tracker, upstream)(None, None, "x") == "ours"


def test_mixin_super_reaches_the_next_class_and_subclasses_bind_anew():
    (upstream,) = upstream_names("getattr_hook")
    # VariableTracker's metaclass realises lazily; the base stands in for a stock tracker.
    Stock = type("Stock", (), {upstream: lambda self, tx, name: [name]})

    class First(HookMixin, Stock):
        def getattr_hook(self, tx, name):
            return ["first", *super().getattr_hook(tx, name)]

    class Second(First):
        def getattr_hook(self, tx, name):
            return ["second", *super().getattr_hook(tx, name)]

    assert getattr(First(), upstream)(None, "x") == ["first", "x"]
    assert getattr(Second(), upstream)(None, "x") == ["second", "first", "x"]


def test_decorator_binds_without_the_mixin():
    @bind_hooks
    class Tracker(UserDefinedObjectVariable):
        def bool_hook(self, tx):
            return None

    (upstream,) = upstream_names("bool_hook")
    assert vars(Tracker)[upstream] is Tracker.bool_hook


def test_hook_that_no_base_class_calls_raises():
    with pytest.raises(TypeError, match=r"repr_hook: expected a base class with .* never run"):

        class Tracker(HookMixin):
            def repr_hook(self, tx):
                return None


def test_unknown_hook_raises_with_near_names():
    with pytest.raises(TypeError, match=r"getatr_hook: no such hook.*near names: getattr_hook"):

        class Tracker(HookMixin, VariableTracker):
            def getatr_hook(self, tx, name):
                return None


def test_upstream_name_of_another_release_raises():
    (dead,) = upstream_names("getattr_hook", OTHER_RELEASE)
    with pytest.raises(TypeError, match=rf"{dead}: .* define getattr_hook instead"):
        type("Tracker", (HookMixin, VariableTracker), {dead: lambda self, tx, name: None})


def test_wrong_parameters_raise():
    with pytest.raises(
        TypeError, match=r"getattr_hook: expected the parameters \(self, tx, name\)"
    ):

        class Tracker(HookMixin, VariableTracker):
            def getattr_hook(self, name):
                return None


def test_extra_parameter_with_default_is_accepted():
    class Tracker(HookMixin, VariableTracker):
        def getattr_hook(self, tx, name, depth=0):
            return depth

    assert Tracker.getattr_hook(None, None, "x") == 0
