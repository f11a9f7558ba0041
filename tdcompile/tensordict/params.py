"""``TensorDictParams``: a tensordict whose leaves are the parameters and buffers of a module.

Key names: :class:`TensorDictParams`, ``WRITES`` (what changes entries), ``VALUE_WRITES`` (what
changes values, outside of autograd), ``KEPT`` (whose results are ``TensorDictParams``, too).

Invariant: the parameters and buffers are read off the tensordict that is held, each time they are
asked for; there is no second list of them that could be out of date. What is not written here is
answered by the held tensordict (``_install_delegates``), so every operation is that of its class.
"""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, NoReturn, Self

import torch
from torch import Tensor, nn

from tdcompile.tensordict.base import TensorDictBase, TensorDictMethods
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.contexts import WRITE_BACK
from tdcompile.tensordict.dense import TensorDict
from tdcompile.tensordict.keys import NO_DEFAULT
from tdcompile.tensordict.pytree import register_pytree

__all__ = ["TensorDictParams"]

# Leaves of other dtypes become buffers: the choice of the tensordict package.
_TRAINED_DTYPES = (torch.float16, torch.float32, torch.float64)
# Attributes that belong to one object in one process.
_TRANSIENT = ("_last_op", "_lock_parents", "_memory", "_open_ops")
# Attributes of a tensordict; nn.Module need not look at what is assigned to them.
_STATE = ("_is_locked", "_last_op", "_lock_parents", "_memory", "_open_ops")


class TensorDictParams(TensorDictBase, nn.Module):
    """A tensordict that is an ``nn.Module``: its leaves are parameters and buffers.

    An attribute of a module that is a ``TensorDictParams`` is seen by ``parameters()``,
    ``state_dict()`` and ``to()`` of the module; entries go by their nested key joined with
    ``"."``. Operations give plain tensordicts; ``clone``, ``copy`` and ``to`` give a
    ``TensorDictParams``.

    Leaves that are written become parameters (float16, float32, float64) or buffers (any other
    dtype). Values change in place under ``torch.no_grad()`` in ``set_``, ``update_``, ``copy_``,
    ``zero_`` and ``fill_``; arithmetic in place goes to ``params.data``.

    Args:
        parameters: the tensordict to hold, without a copy: its leaves are turned into parameters
            and buffers in place. A mapping becomes a tensordict first.
        no_convert: ``True`` makes a buffer of each tensor that is neither parameter nor buffer,
            ``"skip"`` leaves such tensors as they are.
        lock: lock the held tensordict against writes that do not go through this object.
        **kwargs: the entries, instead of `parameters`.

    Raises:
        TypeError: if there are both `parameters` and `kwargs`.
        RuntimeError: if a lazy stack is among the entries.

    Example:
        >>> params = TensorDictParams({"net": {"w": torch.ones(3)}, "step": 0})
        >>> [name for name, _ in params.named_parameters()], list(params.state_dict())
        (['net.w'], ['net.w', 'step'])
    """

    _holder: _Holder
    no_convert: Any

    def __init__(
        self, parameters: Any = None, *, no_convert: Any = False, lock: bool = False, **kwargs: Any
    ) -> None:
        if parameters is None:
            parameters = kwargs
        elif kwargs:
            raise TypeError(
                "expected the entries either as one tensordict or as keyword arguments, found "
                f"both: move {sorted(kwargs)} into the tensordict"
            )
        if isinstance(parameters, TensorDictParams):
            parameters = parameters._param_td.copy()
        elif not isinstance(parameters, TensorCollection):
            parameters = TensorDict(parameters)
        super().__init__()
        keep = object.__setattr__
        keep(self, "_holder", _Holder(parameters))
        keep(self, "no_convert", no_convert)
        keep(self, "_is_locked", False)
        keep(self, "_lock_content", lock)
        keep(self, "_get_post_hooks", [])
        _convert(parameters, no_convert)
        if lock:
            parameters.lock_()

    @classmethod
    def _from_entries(
        cls, entries: Any, batch_size: Any, device: Any = None, names: Any = None
    ) -> Any:
        """Make the result of an operation: a plain tensordict."""
        return TensorDict._from_entries(entries, batch_size, device, names)

    def _wrap(self, td: Any, no_convert: Any = NO_DEFAULT) -> TensorDictParams:
        """Return a ``TensorDictParams`` like this one that holds `td`."""
        cls: Any = type(self)
        choice = self.no_convert if no_convert is NO_DEFAULT else no_convert
        result: TensorDictParams = cls.__new__(cls)
        TensorDictParams.__init__(result, td, no_convert=choice)
        return result

    # -- the held tensordict -------------------------------------------------------------------

    @property
    def _param_td(self) -> Any:
        return self._holder.td

    def __getattr__(self, name: str) -> Any:
        """Return an entry as an attribute; a nested tensordict comes as a view of the same kind.

        Raises:
            AttributeError: if there is no such entry.
        """
        modules: Any = self.__dict__.get("_modules") or {}
        if name in modules:
            return modules[name]
        holder = self.__dict__.get("_holder")
        value = None if holder is None else holder.td._entries.get(name)
        if value is None:
            raise AttributeError(f"expected an attribute or an entry, found no {name!r}")
        if isinstance(value, TensorCollection) and not isinstance(value, nn.Module):
            return self._wrap(value, "skip")
        return value if isinstance(value, (Tensor, nn.Module)) else self._param_td[name]

    def __setattr__(self, name: str, value: Any) -> None:
        """Store a parameter, a buffer or a module as an entry, anything else as an attribute."""
        if name in _STATE or isinstance(getattr(type(self), name, None), property):
            object.__setattr__(self, name, value)
        elif isinstance(value, (nn.Parameter, nn.Buffer, nn.Module)):
            nn.Module.__setattr__(self, name, value)
        elif "_holder" in self.__dict__ and name in self._param_td:
            raise TypeError(
                f"expected a parameter or a buffer for the entry {name!r}, found "
                f"{type(value).__name__}: write params[{name!r}] = value to convert it"
            )
        else:
            object.__setattr__(self, name, value)

    @property
    def _parameters(self) -> Any:
        return _Members(self._param_td, True)

    @_parameters.setter
    def _parameters(self, members: Any) -> None:
        self.__dict__["_parameters"] = _no_members(members)

    @property
    def _buffers(self) -> Any:
        return _Members(self._param_td, False)

    @_buffers.setter
    def _buffers(self, members: Any) -> None:
        self.__dict__["_buffers"] = _no_members(members)

    def _write(self, entries: dict[str, Any]) -> None:
        self._param_td._write(entries)
        _convert(self._param_td, self.no_convert)

    def register_get_post_hook(self, hook: Callable[[Any, Any], Any]) -> None:
        """Call ``hook(params, leaf)`` after each read of a leaf by key or through a view.

        What it returns is read instead, unless that is ``None``. Hooks run in order; operations
        such as ``params + 1`` and ``parameters()`` do not read through them.

        Example:
            >>> params = TensorDictParams(w=torch.ones(3))
            >>> params.register_get_post_hook(lambda params, leaf: leaf.detach())
            >>> params["w"].requires_grad
            False
        """
        self._get_post_hooks.append(hook)

    def _hooked(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            for hook in self._get_post_hooks:
                result = hook(self, value)
                if result is not None:
                    value = result
        return value

    def get(self, key: Any, default: Any = NO_DEFAULT, **form: Any) -> Any:  # noqa: D102
        value = self._param_td.get(key, default, **form)
        return self._hooked(value) if self._get_post_hooks else value

    def __getitem__(self, index: Any) -> Any:
        value = self._param_td[index]
        if value is self._param_td:
            return self
        return self._hooked(value) if self._get_post_hooks and _is_key(index) else value

    def items(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        items = self._param_td.items(*args, **kwargs)
        if self._get_post_hooks:
            return {key: self._hooked(value) for key, value in items}.items()
        return items

    def values(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        values = self._param_td.values(*args, **kwargs)
        if self._get_post_hooks:
            return dict(enumerate(self._hooked(value) for value in values)).values()
        return values

    # -- locks ---------------------------------------------------------------------------------

    def _lock_children(self) -> list[Any]:
        return [self._param_td]

    def unlock_(self) -> Self:
        """Unlock, and return the same object; a tensordict held with ``lock=True`` stays locked.

        Raises:
            LockedError: if a tensordict is locked that holds this one or one nested in it.
        """
        super().unlock_()
        held = self._param_td
        if self._lock_content:
            held.lock_()
        elif held._is_locked:
            held.unlock_()
        return self

    # -- copies --------------------------------------------------------------------------------

    def __copy__(self) -> Self:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy everything; what is shared inside stays shared, and the copy is not locked."""
        state = {key: value for key, value in self.__dict__.items() if key not in _TRANSIENT}
        state["_is_locked"] = False
        cls: Any = type(self)
        result: Self = cls.__new__(cls)
        memo[id(self)] = result
        result.__dict__.update(copy.deepcopy(state, memo))
        if self._lock_content:
            result._param_td.lock_()
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        state = {key: value for key, value in self.__dict__.items() if key not in _TRANSIENT}
        return _unpickle, (type(self), state)

    # -- the module ----------------------------------------------------------------------------

    __hash__ = nn.Module.__hash__  # type: ignore[assignment]  # a module is hashed by identity

    def __repr__(self) -> str:
        return f"{type(self).__name__}(params={self._param_td!r})"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        nn.Module._apply(self, fn, recurse)  # type: ignore[no-untyped-call]
        _read_device(self._param_td)
        return self

    def state_dict(
        self,
        destination: Any = None,
        prefix: str = "",
        keep_vars: bool = False,
        flatten: bool = True,
    ) -> Any:
        """Return the leaves by dotted name, as ``nn.Module.state_dict`` does.

        Args:
            destination: an ``OrderedDict`` to write to.
            prefix: put before each name.
            keep_vars: return the leaves themselves; otherwise they are detached (same storage).
            flatten: with ``False``, nested tensordicts become nested dictionaries.

        Returns:
            The dictionary; batch size and device of each level are in its ``_metadata``.

        Example:
            >>> list(TensorDictParams({"net": {"w": torch.ones(3)}}).state_dict(prefix="p."))
            ['p.net.w']
        """
        for hook in self._state_dict_pre_hooks.values():
            hook(self, prefix, keep_vars)
        destination = self._param_td.state_dict(destination, prefix, keep_vars, flatten)
        for name in self._non_persistent_buffers_set:
            destination.pop(prefix + name, None)
        for name, module in self._modules.items():
            if module is not None:
                module.state_dict(
                    destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars
                )
        for hook in self._state_dict_hooks.values():
            hook(self, destination, prefix, destination._metadata[prefix[:-1]])
        return destination

    def load_state_dict(
        self,
        state_dict: Mapping[str, Any],
        strict: bool = True,
        assign: bool = False,
        from_flatten: bool | None = None,
    ) -> Self:
        """Load what :meth:`state_dict` returned, and return the same object.

        Arguments and errors as for a tensordict; with `assign`, the tensors of the state dict
        become parameters and buffers.
        """
        td = self._param_td
        if from_flatten is None:
            # Names are dotted for a module, with metadata or without.
            from_flatten = not any(isinstance(value, Mapping) for value in state_dict.values())
        before = td.copy() if assign else None
        with td.unlock_() if td._is_locked and not self._is_locked else contextlib.nullcontext():
            td.load_state_dict(state_dict, strict, assign, from_flatten)
        if before is not None:
            _keep_kinds(td, before, {})
        _convert(td, self.no_convert)
        return self

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        for hook in self._load_state_dict_pre_hooks.values():
            hook(
                state_dict,
                prefix,
                local_metadata,
                strict,
                missing_keys,
                unexpected_keys,
                error_msgs,
            )
        assign = bool(local_metadata.get("assign_to_params_buffers", False))
        found: list[tuple[_Members, str, Tensor, Tensor]] = []
        errors: list[str] = []
        known: set[str] = set()
        for members in (self._parameters, self._buffers):
            for name, leaf in members.items():
                key = prefix + name
                known.add(key)
                if key not in state_dict:
                    if strict and name not in self._non_persistent_buffers_set:
                        missing_keys.append(key)
                    continue
                value = state_dict[key]
                if not isinstance(value, Tensor) or value.shape != leaf.shape:
                    shape = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
                    errors.append(f"expected shape {list(leaf.shape)} for {key!r}, found {shape}")
                else:
                    found.append((members, name, leaf, value))
        below = tuple(f"{prefix}{name}." for name in self._modules)
        if strict:
            unexpected_keys.extend(
                key
                for key in state_dict
                if key.startswith(prefix) and key not in known and not key.startswith(below)
            )
        error_msgs.extend(errors)
        if errors:
            return
        with torch.no_grad():
            for members, name, leaf, value in found:
                if assign:
                    members[name] = _like(leaf, value)
                else:
                    leaf.copy_(value)

    # -- construction --------------------------------------------------------------------------

    @classmethod
    def from_dict(cls, *args: Any, **kwargs: Any) -> Any:
        """Return the ``TensorDictParams`` of ``TensorDict.from_dict``; arguments as there."""
        return cls(TensorDict.from_dict(*args, **kwargs))


class _Holder:
    """What keeps the tensordict out of sight of those who map over attributes as over pytrees.

    ``torch.export`` puts such a copy of the attributes of a module in their place.
    """

    __slots__ = ("td",)

    def __init__(self, td: Any) -> None:
        self.td = td


class _Members(dict[str, Any]):
    """Parameters or buffers by dotted name, as ``nn.Module`` looks at them; writes go through."""

    __slots__ = ("_of_buffers", "_td")

    def __init__(self, td: Any, of_parameters: bool) -> None:
        super().__init__()
        self._td = td
        self._of_buffers = not of_parameters
        _collect_tensors(td, "", of_parameters, self)

    def __setitem__(self, name: str, value: Any) -> None:
        if value is None:
            if name in self:
                del self[name]
            return
        node, key = self._find(name)
        old = node._entries.get(key)
        # nn.Buffer detaches, which must not happen to what is swapped in for a call.
        if (
            self._of_buffers
            and (old is None or isinstance(old, nn.Buffer))
            and not value.requires_grad
            and not isinstance(value, (nn.Buffer, nn.Parameter))
        ):
            value = nn.Buffer(value)
        # Whoever writes here swaps a tensor of a module: the lock is for the keys of a tensordict.
        node._entries[key] = value
        dict.__setitem__(self, name, value)

    def _find(self, name: str) -> tuple[Any, str]:
        """Return the tensordict that holds the tensor of that name, or is to, and the key."""
        return _find_tensor(self._td, name) or (self._td, name)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        node, key = self._find(name)
        del node._entries[key]

    def pop(self, name: str, *default: Any) -> Any:
        if name not in self and default:
            return default[0]
        value = self[name]
        del self[name]
        return value

    update = MutableMapping.update
    setdefault = MutableMapping.setdefault
    popitem = MutableMapping.popitem
    clear = MutableMapping.clear


def _collect_tensors(td: Any, prefix: str, of_parameters: bool, out: dict[str, Any]) -> None:
    """Write parameters, or the other tensors, by dotted name to `out`, depth first in key order."""
    for name, value in td._entries.items():
        if isinstance(value, Tensor):
            if isinstance(value, nn.Parameter) is of_parameters:
                dict.__setitem__(out, prefix + name, value)
        elif isinstance(value, TensorCollection):
            _collect_tensors(value, f"{prefix}{name}.", of_parameters, out)


def _find_tensor(td: Any, name: str) -> tuple[Any, str] | None:
    """Return holder and key of the tensor at a dotted name; a key may have dots itself."""
    if isinstance(td._entries.get(name), Tensor):
        return td, name
    for key, value in td._entries.items():
        if isinstance(value, TensorCollection) and name.startswith(f"{key}."):
            found = _find_tensor(value, name[len(key) + 1 :])
            if found is not None:
                return found
    return None


def _no_members(members: Any) -> Any:
    # nn.Module.__init__ offers an empty dictionary, and its methods ask whether there is one.
    if members:
        raise AttributeError(
            "expected the parameters and buffers of a TensorDictParams to be its leaves, found an "
            f"assignment of {sorted(members)}: write the entries instead"
        )
    return members


def _convert(td: Any, no_convert: Any) -> None:
    """Turn the tensors of `td` into parameters and buffers, in place."""
    if isinstance(getattr(type(td), "_entries", None), property):
        if isinstance(td, TensorDictParams):
            return
        raise RuntimeError(
            f"Using a {type(td).__name__} within a TensorDictParams isn't permitted: expected "
            "tensordicts that hold their leaves; make it dense first"
        )
    for name, value in td._entries.items():
        if isinstance(value, TensorCollection):
            _convert(value, no_convert)
        elif (
            isinstance(value, Tensor)
            and no_convert != "skip"
            and not isinstance(value, (nn.Parameter, nn.Buffer))
        ):
            trained = not no_convert and value.dtype in _TRAINED_DTYPES
            # The same key gets another object: the dictionary keeps its size in the loop.
            td._entries[name] = nn.Parameter(value) if trained else nn.Buffer(value)


def _like(leaf: Tensor, value: Tensor) -> Tensor:
    """Return `value` as a parameter or buffer as `leaf` is one."""
    if value is leaf:
        return leaf
    if isinstance(leaf, nn.Parameter):
        trains = leaf.requires_grad and (value.is_floating_point() or value.is_complex())
        return nn.Parameter(value.detach(), requires_grad=trains)
    return nn.Buffer(value.detach()) if isinstance(leaf, nn.Buffer) else value


def _keep_kinds(td: Any, like: Any, memo: dict[int, Tensor]) -> None:
    """Make parameters and buffers of the tensors in `td` where they are in `like`, in place.

    A tensor that stands at two keys of `like` stands at both in `td`.
    """
    for name, value in td._entries.items():
        leaf = like._entries.get(name)
        if isinstance(value, Tensor) and isinstance(leaf, Tensor):
            if id(leaf) not in memo:
                memo[id(leaf)] = _like(leaf, value)
            td._entries[name] = memo[id(leaf)]
        elif isinstance(value, TensorCollection) and isinstance(leaf, TensorCollection):
            _keep_kinds(value, leaf, memo)


def _read_device(td: Any) -> None:
    """Correct the device of tensordicts whose leaves were moved."""
    for value in td._entries.values():
        if isinstance(value, Tensor) and td._device is not None:
            td._device = value.device
        elif isinstance(value, TensorCollection):
            _read_device(value)


def _is_key(index: Any) -> bool:
    return isinstance(index, str) or (
        isinstance(index, tuple) and len(index) > 0 and isinstance(index[0], (str, tuple))
    )


def _unpickle(cls: Any, state: dict[str, Any]) -> Any:
    result = cls.__new__(cls)
    is_locked = state.pop("_is_locked")
    result.__dict__.update(state, _is_locked=False)
    if is_locked:
        result.lock_()
    return result


# -- what the held tensordict answers ----------------------------------------------------------


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Methods that change entries: through a lock of the held tensordict alone, and tensors that were
# written become parameters and buffers.
WRITES = _words(
    "set __setitem__ update setdefault set_non_tensor create_nested cat_from_tensordict "
    "stack_from_tensordict cat_tensors stack_tensors __delitem__ del_ pop popitem clear "
    "rename_key_ select exclude flatten_keys unflatten_keys split_keys filter_empty_ "
    "auto_batch_size_ auto_device_ clear_device_ separates"
)
# Methods that write values into leaves that autograd watches.
VALUE_WRITES = _words("set_ set_at_ update_ update_at_ copy_ copy_at_ zero_ fill_ apply_ detach_")
# Methods whose result is a TensorDictParams if that of the held tensordict is a tensordict.
KEPT = _words("clone copy to cpu cuda rename replace from_dict_instance")
# What cannot be done with leaves that are parameters: name -> what to do instead.
REFUSED = {
    "memmap_": "Cannot build a memmap TensorDict in-place. Use memmap or memmap_like instead.",
    "map": "Cannot call map on a TensorDictParams object: call it on params.data",
    "map_iter": "Cannot call map_iter on a TensorDictParams object: call it on params.data",
    "pin_memory_": "Cannot pin_memory in-place with TensorDictParams: use params.pin_memory()",
}


def _delegate(name: str) -> Any:
    """Make the method of that name: the held tensordict's, on the terms of the tables above."""
    writes, kept, no_grad = name in WRITES, name in KEPT, name in VALUE_WRITES

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        td = self._param_td
        call = getattr(td, name)
        if no_grad:
            with torch.no_grad():
                result = call(*args, **kwargs)
        elif writes and td._is_locked and not self._is_locked:
            with td.unlock_():
                result = getattr(td, name)(*args, **kwargs)
        else:
            result = call(*args, **kwargs)
        if writes:
            _convert(td, self.no_convert)
            if name == "setdefault":
                return td.get(args[0] if args else kwargs["key"])
        if name in WRITE_BACK:
            _move_note(result, td, self)
        if result is td:
            return self
        if writes and isinstance(result, tuple):
            return tuple(self if item is td else item for item in result)
        if kept and type(result) is type(td):
            _keep_kinds(result, td, {})
            return self._wrap(result)
        return result

    return _named(method, name)


def _move_note(result: Any, td: Any, params: Any) -> None:
    """Have a ``with`` block over `result` written back to `params`, not to what it holds."""
    op = getattr(result, "_last_op", None)
    if op is not None and op[1] is not None and op[1]() is td:
        target = params if result is td else result
        target._last_op = (op[0], weakref.ref(params), op[2])


def _refuse(name: str, advice: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(advice)

    return _named(method, name)


def _named(method: Any, name: str) -> Any:
    method.__name__ = name
    method.__qualname__ = f"TensorDictParams.{name}"
    method.__doc__ = getattr(getattr(TensorDictMethods, name, None), "__doc__", None)
    return method


def _delegate_property(name: str, doc: str | None) -> property:
    def fget(self: Any) -> Any:
        return getattr(self._param_td, name)

    def fset(self: Any, value: Any) -> None:
        setattr(self._param_td, name, value)

    return property(fget, fset, doc=doc)


# Object protocol, and what concerns the object itself rather than its entries.
_OWN = _words(
    "__enter__ __exit__ __copy__ __deepcopy__ __reduce__ __repr__ __hash__ __init__ __bool__ "
    "__torch_function__ is_locked lock_ unlock_"
)


def _install_delegates() -> None:
    for name in ("_entries", "_batch_size", "_device", "_names"):
        setattr(TensorDictParams, name, _delegate_property(name, None))
    for name in dir(TensorDictMethods):
        public = not name.startswith("_") or (name.startswith("__") and name not in dir(object))
        if name in _OWN or name in TensorDictParams.__dict__ or not public:
            continue
        found = next(k.__dict__[name] for k in TensorDictMethods.__mro__ if name in k.__dict__)
        if isinstance(found, property):
            setattr(TensorDictParams, name, _delegate_property(name, found.__doc__))
        elif isinstance(found, classmethod):
            setattr(TensorDictParams, name, staticmethod(getattr(TensorDict, name)))
        elif callable(found):
            setattr(TensorDictParams, name, _delegate(name))
    # Comparison is among what `object` has, too.
    for name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
        setattr(TensorDictParams, name, _delegate(name))
    for name, advice in REFUSED.items():
        setattr(TensorDictParams, name, _refuse(name, advice))


_install_delegates()
register_pytree(TensorDictParams)
