"""``tdcompile`` in the place of the ``tensordict`` module, for test files that import the latter.

Key names: :func:`install` (the import hook), :class:`Placeholder` (stands for a name that
``tdcompile`` does not have), :class:`MissingName` (what using one raises), ``ADAPTERS`` (private
names that test files use as helpers, written with public names), ``uses`` (what was missed).

Invariant: every import from ``tensordict`` and below works; a name that is not there raises when it
is used by a test, never while a test file is imported.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import sys
import weakref
from types import FunctionType, ModuleType
from typing import Any

__all__ = ["ADAPTERS", "MissingName", "Placeholder", "install", "uses"]

# Every use of a missing name, in order; a test that swallows the error is still found out.
uses: list[str] = []


class MissingName(Exception):
    """A name of the ``tensordict`` package that ``tdcompile`` does not have was used."""

    def __init__(self, name: str) -> None:
        uses.append(name)
        super().__init__(f"tdcompile has no {name}")
        self.name = name

    def __reduce__(self) -> Any:
        return (MissingName, (self.name,))


def _importing() -> bool:
    """Tell whether a module is being imported: its frame is on the stack."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "<module>" and "__file__" in frame.f_globals:
            name = frame.f_globals.get("__name__")
            if name not in ("__main__", "__mp_main__", "__channelexec__"):
                return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


class _PlaceholderType(type):
    """Makes the classes that stand for missing names.

    A class, so that ``isinstance(x, Name)``, ``class A(Name)``, ``Name | None`` and ``Name[str]``
    are harmless.
    """

    _path: str

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any], **_: Any) -> Any:
        return super().__new__(cls, name, bases, body)

    def __init__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any], **_: Any) -> None:
        super().__init__(name, bases, body)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if not _importing():
            raise MissingName(cls._path)
        if len(args) == 1 and not kwargs:
            return _decorated(args[0], cls._path)
        return cls

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") or name in ("_pytestfixturefunction", "pytestmark"):
            raise AttributeError(name)
        if not _importing():
            raise MissingName(f"{cls._path}.{name}")
        return placeholder(f"{cls._path}.{name}")

    def __getitem__(cls, _: Any) -> Any:
        return cls

    def __iter__(cls) -> Any:
        if not _importing():
            raise MissingName(cls._path)
        return iter(())


class Placeholder(metaclass=_PlaceholderType):
    """The base of all placeholders."""

    _path = ""


def placeholder(path: str) -> type:
    """Make the class that stands for the missing name at ``path``."""
    return _PlaceholderType(path.rpartition(".")[2], (Placeholder,), {"_path": path})


def _decorated(target: Any, path: str) -> Any:
    """What a missing decorator makes of a class or function: the same, and its use raises."""
    if isinstance(target, FunctionType):

        @functools.wraps(target)  # pytest reads the parameters of a test
        def missing(*_: Any, **__: Any) -> Any:
            raise MissingName(path)

        return missing
    if isinstance(target, type) and not isinstance(target, _PlaceholderType):
        try:
            body = {"_path": path, "__module__": target.__module__}
            return _PlaceholderType(target.__name__, (Placeholder, target), body)
        except TypeError:  # the bases of the class do not go with a plain metaclass
            return placeholder(path)
    return placeholder(path)


# --------------------------------------------------------------------------------------
# What test files take from private modules as helpers of their own


def _stack(tds: Any, dim: int = 0, *, contiguous: bool = False, **kwargs: Any) -> Any:
    import torch

    out = torch.stack(list(tds), dim, **{k: v for k, v in kwargs.items() if k == "out"})
    return out.contiguous() if contiguous else out


def _check_recursive_properties(td: Any, **_: Any) -> bool:
    """Check that entries agree with the tensordict that holds them."""
    import torch

    import tdcompile

    size = td.batch_size
    for key in td.keys():  # noqa: SIM118  (a lazy stack iterates over its elements)
        value = td.get(key)
        where = f"at {key!r}"
        if isinstance(value, tdcompile.UnbatchedTensor):
            assert value.batch_size == size, f"batch size {value.batch_size} in {size} {where}"
        elif isinstance(value, torch.Tensor):
            assert value.shape[: len(size)] == size, f"shape {value.shape} in {size} {where}"
            assert td.device is None or value.device == td.device, f"device {where}"
        elif tdcompile.is_tensor_collection(value):
            assert value.batch_size[: len(size)] == size, f"{value.batch_size} in {size} {where}"
            if isinstance(value, tdcompile.TensorDictBase):
                assert td.device is None or value.device == td.device, f"device {where}"
                assert value.is_locked or not td.is_locked, f"lock {where}"
                _check_recursive_properties(value)
    return True


def _is_leaf_kind(value: Any) -> bool:
    from tdcompile.tensordict.nontensor.data import LeafKind

    return isinstance(value, LeafKind)


def _public(path: str) -> Any:
    """An adapter that is another, public name."""
    return lambda: lookup("tensordict", path)


def _encode_key(key: str) -> str:
    return importlib.import_module("tdcompile.tensordict.storage.paths").encode_key(key)  # type: ignore[no-any-return]


# Name -> a function that gives what stands for it.
ADAPTERS: dict[str, Any] = {
    "_pass_through": lambda: _is_leaf_kind,
    "_stack": lambda: _stack,
    "_check_recursive_properties": lambda: _check_recursive_properties,
    "_encode_key_for_filesystem": lambda: _encode_key,
    "_is_leaf_nontensor": _public("is_leaf_nontensor"),
    "_default_is_leaf": _public("default_is_leaf"),
    "_unravel_key_to_tuple": _public("unravel_key_to_tuple"),
    "_is_tensor_collection": _public("is_tensor_collection"),
    "_GENERIC_NESTED_ERR": lambda: "expected a key",
    "_has_h5": lambda: False,
    "_has_h5py": lambda: False,
    "_has_redis": lambda: False,
    "__version__": _public("__version__"),
}


def _has_names(td: Any) -> bool:
    return any(name is not None for name in td.names)


def _has_non_tensor(td: Any) -> bool:
    import tdcompile

    return any(map(tdcompile.is_non_tensor, td.values(True, True, is_leaf=_any_entry)))


def _any_entry(kind: type) -> bool:
    import tdcompile

    return not issubclass(kind, tdcompile.TensorDictBase)


def _values_list(td: Any, *args: Any, **kwargs: Any) -> list[Any]:
    return list(td.values(*args, **kwargs))


def _fast_apply(
    td: Any,
    function: Any,
    *others: Any,
    named: bool = False,
    nested_keys: bool = False,
    checked: bool = False,
    num_threads: int = 0,
    **kwargs: Any,
) -> Any:
    if named:
        return td.named_apply(function, *others, nested_keys=nested_keys, **kwargs)
    return td.apply(function, *others, **kwargs)


# Methods without a public counterpart that the shared fixtures and checks call.
METHODS: dict[str, Any] = {
    "_has_names": _has_names,
    "_has_non_tensor": property(_has_non_tensor),
    "_check_batch_size": _check_recursive_properties,
    "_check_device": _check_recursive_properties,
    "_values_list": _values_list,
    "_fast_apply": _fast_apply,
}

# Tensordicts that stand for the one inside a tensorclass, by the id of the tensorclass: as long as
# a test holds one, it gets the same object.
_inner: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def _tensordict(tc: Any) -> Any:
    """A plain tensordict over the entries of a tensorclass, which is one itself."""
    import tdcompile

    td = _inner.get(id(tc))
    if td is None or td._entries is not tc._entries:
        td = tdcompile.TensorDict._from_entries(tc._entries, tc._batch_size, tc._device, tc._names)
        td._is_locked = tc._is_locked
        _inner[id(tc)] = td
    return td


# What the test files of tensorclasses look at.
TENSORCLASS_ATTRIBUTES: dict[str, Any] = {
    "_tensordict": property(_tensordict),
    "_non_tensordict": property(lambda _: {}),
}


# --------------------------------------------------------------------------------------
# The modules

_ABSENT = object()


def _candidates(module: str) -> list[str]:
    """The modules of ``tdcompile`` where a name of a module of ``tensordict`` may be."""
    tail = module.partition(".")[2]
    names = [f"tdcompile.{tail}", f"tdcompile.tensordict.{tail}"] if tail else []
    names += ["tdcompile", "tdcompile.tensordict"]
    parts = tail.split(".")
    if parts[0] == "nn":
        names += ["tdcompile.nn"]
    return names


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and name.startswith(error.name):
            return None
        raise


def lookup(module: str, name: str) -> Any:
    """What ``tdcompile`` has for ``module.name``, or a placeholder."""
    if name not in ADAPTERS or name == "__version__":
        for candidate in _candidates(module):
            home = _import(candidate)
            value = getattr(home, name, _ABSENT) if home is not None else _ABSENT
            if value is not _ABSENT and not isinstance(value, ModuleType):
                return value
    if name in ADAPTERS:
        return ADAPTERS[name]()
    if name.startswith("__"):
        raise AttributeError(name)
    return placeholder(f"{module}.{name}")


class _StandIn(ModuleType):
    """A module of ``tensordict`` with the public names of ``tdcompile``."""

    def __getattr__(self, name: str) -> Any:
        if name == "__path__":
            raise AttributeError(name)
        return lookup(self.__name__, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        elif isinstance(value, _StandIn):
            # The import system binds submodules; a class or function of that name goes first.
            found = lookup(self.__name__, name)
            if isinstance(found, _PlaceholderType) and name not in _FUNCTIONS:
                super().__setattr__(name, value)
        else:
            raise MissingName(f"{self.__name__}.{name}")

    def __delattr__(self, name: str) -> None:
        raise MissingName(f"{self.__name__}.{name}")


# Functions of the package that have the name of one of its modules.
_FUNCTIONS = frozenset({"tensorclass"})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name == "tensordict" or name.startswith("tensordict."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        return _StandIn(spec.name, "tdcompile in the place of this module")

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == "tensordict":
            import tdcompile

            methods = tdcompile.tensordict.base.TensorDictMethods  # tensorclasses have them, too
            for name, method in METHODS.items():
                if not hasattr(methods, name):
                    setattr(methods, name, method)
            for name, attribute in TENSORCLASS_ATTRIBUTES.items():
                setattr(tdcompile.tensordict.TensorClass, name, attribute)
            tdcompile.TensorDict._tensordict = property(lambda td: td._entries)
            tdcompile.TensorDict._is_memmap = property(lambda td: td.is_memmap())


def install() -> None:
    """Serve ``tensordict`` and everything below it from ``tdcompile`` in this process."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
