"""Parameters and buffers of a module as a tensordict, and back.

Key names: :class:`ModulesMixin` (``from_module``, ``from_modules``, ``to_module``).

Invariant: ``to_module`` plans every write first and then writes, so a call that fails leaves the
module as it was; a block over ``to_module`` puts the very same tensors back, also after an
exception.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tdcompile.errors import KeyPathError, TensorDictShapeError
from tdcompile.tensordict.collection import TensorCollection, is_leaf_nontensor
from tdcompile.tensordict.keys import format_key
from tdcompile.tensordict.nontensor.data import NonTensorData
from tdcompile.tensordict.state import TensorDictState

if TYPE_CHECKING:
    from collections.abc import Callable

# A write to a module: the dictionary, the name in it, the new value, the old one (for a copy in
# place: the tensor and its old value).
_Write = tuple[dict[str, Any], str, Any, Any]


class ModulesMixin(TensorDictState):
    """Tensordicts of the parameters and buffers of modules."""

    __slots__ = ()

    if TYPE_CHECKING:
        _last_op: Any

    @classmethod
    def from_module(
        cls,
        module: nn.Module,
        as_module: bool = False,
        lock: bool = False,
        use_state_dict: bool = False,
        filter_empty: bool = True,
    ) -> Any:
        """Return a tensordict of the parameters and buffers of a module (no copy).

        Submodules are nested tensordicts: ``module.layers[0].weight`` is the entry
        ``("layers", "0", "weight")``. A submodule that stands at two places is one tensordict at
        two keys; a ``TensorDictParams`` within the module is an entry as it is.

        Args:
            module: the module.
            as_module: return a ``TensorDictParams``.
            lock: lock the result.
            use_state_dict: take the tensors of ``module.state_dict()``, whose hooks run: without
                gradients, same storage, without non-persistent buffers.
            filter_empty: leave out submodules without tensors; otherwise they are empty
                tensordicts.

        Example:
            >>> td = TensorDict.from_module(torch.nn.Linear(2, 3))
            >>> {key: tuple(value.shape) for key, value in td.items()}
            {'weight': (3, 2), 'bias': (3,)}
        """
        from tdcompile.tensordict.dense import TensorDict

        if use_state_dict:
            td = _read_state_dict(module)
        else:
            td = _read(module, {}, filter_empty, TensorDict._from_entries)
        if as_module:
            from tdcompile.tensordict.params import TensorDictParams

            td = TensorDictParams(td, no_convert=True)
        if lock:
            td.lock_()
        return td

    @classmethod
    def from_modules(
        cls,
        *modules: nn.Module,
        as_module: bool = False,
        lock: bool = True,
        use_state_dict: bool = False,
        lazy_stack: bool = False,
        expand_identical: bool = False,
    ) -> Any:
        """Return the parameters and buffers of modules of one structure, stacked in dimension 0.

        Args:
            *modules: the modules; at least one.
            as_module: return a ``TensorDictParams``.
            lock: lock the result.
            use_state_dict: as in :meth:`from_module`.
            lazy_stack: return a lazy stack of the parameters of the modules themselves, which
                then receive the gradients; otherwise the result has parameters of its own.
            expand_identical: expand a tensor that is the same object in every module, instead of
                stacking copies of it.

        Returns:
            A tensordict with batch size ``(len(modules),)``.

        Raises:
            ValueError: if there is no module.
            RuntimeError: with both `lazy_stack` and `as_module`; if keys or shapes differ; with
                `lazy_stack`, if a parameter is not initialised yet.

        Example:
            >>> modules = [torch.nn.Linear(2, 3) for _ in range(4)]
            >>> TensorDict.from_modules(*modules)["weight"].shape
            torch.Size([4, 3, 2])
        """
        if lazy_stack and as_module:
            raise RuntimeError(
                "Using a LazyStackedTensorDict within a TensorDictParams isn't permitted: expected "
                "as_module or lazy_stack, found both"
            )
        if not modules:
            raise ValueError("expected at least one module to stack, found none")
        tds = [cls.from_module(module, use_state_dict=use_state_dict) for module in modules]
        if lazy_stack:
            for td in tds:
                for value in td.values(True, True):
                    if nn.parameter.is_lazy(value):
                        raise RuntimeError(
                            "lazy_stack=True is not compatible with lazy modules: run them first"
                        )
            kind: Any = cls
            result: Any = kind.lazy_stack(tds)
        else:
            result = _stack(tds, (), expand_identical)
            if as_module:
                from tdcompile.tensordict.params import TensorDictParams

                result = TensorDictParams(result, no_convert=True)
        if lock:
            result.lock_()
        return result

    def to_module(
        self,
        module: nn.Module,
        *,
        inplace: bool | None = None,
        return_swap: bool = True,
        swap_dest: Any = None,
        use_state_dict: bool = False,
        non_blocking: bool = False,
        preserve_module_state: bool = True,
        memo: Any = None,
    ) -> Any:
        """Write the entries to the parameters and buffers of a module of the same structure.

        As a context manager, the module has these values within the block, and its own tensors
        again after it, also after an exception.

        Args:
            module: the module; an entry may be missing here, but not there.
            inplace: copy the values into the module's tensors, which stay the same objects.
            return_swap: return what the module had before.
            swap_dest: the tensordict to write that to.
            use_state_dict: go through ``module.load_state_dict``, whose hooks run.
            non_blocking: let in-place copies between devices run asynchronously.
            preserve_module_state: make a parameter, with the old ``requires_grad``, of a plain
                tensor that takes the place of a parameter; a tensor that requires gradients or is
                mapped by ``vmap`` is put there as it is. With ``False`` a plain tensor becomes an
                attribute, and the parameter is gone.
            memo: not accepted.

        Returns:
            What the module had before, to be written back by ``to_module``; ``swap_dest``; or
            ``None`` without `return_swap`. With `inplace`, copies of the old values.

        Raises:
            KeyPathError: if the module has no such parameter, buffer or submodule.
            RuntimeError: for `memo`, or `inplace` together with `use_state_dict`.

        Example:
            >>> module = torch.nn.Linear(2, 1)
            >>> params = TensorDict.from_module(module)
            >>> with (params.data * 0).to_module(module):
            ...     print(module(torch.ones(2)).item())
            0.0
            >>> module.weight is params["weight"]
            True
        """
        from tdcompile.tensordict.dense import TensorDict

        if memo is not None:
            raise RuntimeError("memo cannot be passed to the public to_module: leave it out")
        writes: list[_Write] = []
        if use_state_dict:
            if inplace is not None:
                raise RuntimeError(
                    "inplace argument cannot be passed when use_state_dict=True: loading a state "
                    "dict decides that"
                )
            swap = _read_state_dict(module)
            _load_state_dict(self, module, writes)
        else:
            swap = _plan(
                self,
                module,
                preserve_module_state,
                bool(inplace),
                {},
                writes,
                (),
                TensorDict._from_entries,
            )
            if inplace:
                with torch.no_grad():
                    for _, _, new, old in writes:
                        old[0].copy_(new, non_blocking=non_blocking)
            else:
                for registry, name, new, _ in writes:
                    if new is _ABSENT:
                        del registry[name]
                    else:
                        registry[name] = new
        if not return_swap:
            return None
        if swap_dest is not None:
            _refill(swap_dest, swap)
            swap = swap_dest
        swap._last_op = ("to_module", None, (writes, bool(inplace)))
        return swap


def undo_to_module(swap: Any, source: Any, detail: tuple[list[_Write], bool]) -> None:
    """Give a module the tensors that it had before ``to_module``, at the end of a block."""
    writes, inplace = detail
    for registry, name, _, old in reversed(writes):
        if inplace:
            with torch.no_grad():
                old[0].copy_(old[1])
        elif old is _ABSENT:
            del registry[name]
        else:
            registry[name] = old


def _plan(
    td: Any,
    module: Any,
    preserve: bool,
    inplace: bool,
    memo: dict[int, Any],
    writes: list[_Write],
    path: tuple[str, ...],
    make: Callable[..., Any],
) -> Any:
    """Add the writes that give `module` the entries of `td`; return what it has there now.

    Args:
        td: the entries.
        module: a module, or a tensordict within a ``TensorDictParams``.
        preserve: make parameters of plain tensors.
        inplace: plan to copy values.
        memo: what was done for a module already, by its id: a shared one is written once.
        writes: the result.
        path: where `module` stands, for messages.
        make: makes a plain tensordict of entries and a batch size.
    """
    if id(module) in memo:
        return memo[id(module)]
    is_td = isinstance(module, TensorCollection)
    entries: dict[str, Any] = {}
    swap = memo[id(module)] = make(entries, module._batch_size if is_td else _NO_DIMS)
    params = module._entries if is_td else module._parameters
    for name, value in td._entries.items():
        if isinstance(value, Tensor):
            old = params.get(name)
            if isinstance(old, Tensor):
                registry = params
            else:
                registry, old = _find_leaf(module, name, path)
            if inplace:
                if value.shape != old.shape:
                    raise TensorDictShapeError(
                        f"expected shape {list(old.shape)} to copy to {format_key((*path, name))} "
                        f"of the module, found {list(value.shape)}: use inplace=False"
                    )
                entries[name] = old.detach().clone()
                writes.append((registry, name, value, (old, entries[name])))
                continue
            entries[name] = old
            if (
                isinstance(value, nn.Parameter)
                and isinstance(old, nn.Parameter)
                and (not preserve or value.requires_grad == old.requires_grad)
            ):
                writes.append((registry, name, value, old))
            else:
                _plan_leaf(module, registry, name, value, old, preserve, writes)
        elif isinstance(value, TensorCollection):
            child = _find_module(module, name, path)
            entries[name] = _plan(
                value, child, preserve, inplace, memo, writes, (*path, name), make
            )
        else:
            raise _absent(name, path, "a non-tensor value")
    return swap


def _plan_leaf(
    module: Any,
    registry: dict[str, Any],
    name: str,
    value: Tensor,
    old: Tensor,
    preserve: bool,
    writes: list[_Write],
) -> None:
    """Add the writes for a tensor of another kind than the one that is there."""
    is_parameter = isinstance(value, nn.Parameter)
    is_td = isinstance(module, TensorCollection)
    if preserve and (is_td or registry is not module.__dict__):
        trains = old.requires_grad
        if not (isinstance(old, nn.Parameter) if is_td else registry is module._parameters):
            value = nn.Buffer(value) if is_parameter else value
        # What autograd or vmap follows would be lost in a parameter of its own.
        elif (value.requires_grad != trains) if is_parameter else not is_followed(value):
            value = nn.Parameter(value, requires_grad=trains)
        wanted = registry
    elif is_td:
        wanted = registry
    elif is_parameter:
        wanted = module._parameters
    elif isinstance(old, nn.Parameter):
        wanted = module.__dict__
    elif registry is module.__dict__ and name in module._buffers:
        wanted = module._buffers
    else:
        wanted = registry
    if wanted is not registry:
        # A name that is registered keeps its place; without a tensor, nn.Module passes over it.
        gone = _ABSENT if registry is module.__dict__ else None
        writes.append((registry, name, gone, old))
        old = wanted.get(name, _ABSENT)
    writes.append((wanted, name, value, old))


def is_followed(value: Tensor) -> bool:
    """Tell whether autograd, or a transform such as ``vmap``, follows a tensor."""
    return value.requires_grad or torch.func.debug_unwrap(value) is not value


def _find_leaf(module: Any, name: str, path: tuple[str, ...]) -> tuple[dict[str, Any], Any]:
    """Return the dictionary that holds the tensor `name` of a module, and the tensor."""
    if isinstance(module, TensorCollection):
        registries: Any = (module._entries,)  # type: ignore[attr-defined]
    else:
        registries = (module._parameters, module._buffers, module.__dict__)
    for registry in registries:
        found = registry.get(name)
        if found is not None:
            if not isinstance(found, Tensor):
                break
            return registry, found
    raise _absent(name, path, "a tensor")


def _find_module(module: Any, name: str, path: tuple[str, ...]) -> Any:
    is_td = isinstance(module, TensorCollection)
    child = (module._entries if is_td else module._modules).get(name)
    if child is None or isinstance(child, Tensor):
        raise _absent(name, path, "a nested tensordict")
    if isinstance(child, TensorCollection) and isinstance(child, nn.Module):
        # A TensorDictParams has its tensors in the tensordict that it holds.
        return child._param_td
    return child


def _absent(name: str, path: tuple[str, ...], what: str) -> KeyPathError:
    return KeyPathError(
        f"expected the structure of the module, found {what} at {format_key((*path, name))}, where "
        "the module has none: compare with TensorDict.from_module(module)"
    )


def _refill(dest: Any, source: Any) -> None:
    """Store the entries of `source` in `dest`, locked or not."""
    if dest.is_locked:
        with dest.unlock_():
            dest.update(source)
    else:
        dest.update(source)


def _read(module: Any, memo: dict[int, Any], filter_empty: bool, make: Callable[..., Any]) -> Any:
    """Return the parameters and buffers of a module; a shared module gives one tensordict."""
    if id(module) in memo:
        return memo[id(module)]
    if isinstance(module, TensorCollection):
        # A TensorDictParams within a module is an entry itself.
        return module if memo else module.copy()
    entries: dict[str, Any] = {}
    memo[id(module)] = result = make(entries, _NO_DIMS)
    for registry in (module._parameters, module._buffers):
        for name, value in registry.items():
            if value is not None:
                entries[name] = value  # noqa: PERF403  # faster than a comprehension
    for name, child in module._modules.items():
        if child is not None:
            nested = _read(child, memo, filter_empty, make)
            if not filter_empty or len(nested._entries) > 0:
                entries[name] = nested
    return result


def _read_state_dict(module: nn.Module) -> Any:
    from tdcompile.tensordict.dense import TensorDict

    td = TensorDict()
    for name, value in module.state_dict().items():
        path = tuple(name.split("."))
        if isinstance(value, Tensor):
            td.set(path, value)
        else:
            td.set_non_tensor(path, value)
    return td


def _load_state_dict(td: Any, module: nn.Module, writes: list[_Write]) -> None:
    """Load `td` as a state dict, and note in `writes` what undoes it."""
    flat = {
        ".".join(key) if isinstance(key, tuple) else key: value
        for key, value in td.items(True, True, is_leaf=is_leaf_nontensor)
    }
    for name, value in flat.items():
        if isinstance(value, NonTensorData):
            flat[name] = value.data
    unlisted: list[_Write] = []
    for prefix, part in module.named_modules():
        for registry in (part._parameters, part._buffers):
            writes.extend((registry, name, None, value) for name, value in registry.items())
        for name in part._non_persistent_buffers_set:
            value = flat.pop(f"{prefix}.{name}" if prefix else name, None)
            if value is not None:
                unlisted.append((part._buffers, name, value, None))
    try:
        module.load_state_dict(flat, assign=True)
    except BaseException:
        # torch loads what fits before it reports what does not.
        undo_to_module(None, None, (writes, False))
        raise
    for registry, name, value, _ in unlisted:
        registry[name] = value


def _stack(tds: list[Any], path: tuple[str, ...], expand_identical: bool) -> Any:
    """Stack the tensordicts of modules in dimension 0, into parameters and buffers of their own."""
    from tdcompile.tensordict.dense import TensorDict

    first = tds[0]
    for td in tds:
        if set(td._entries) != set(first._entries):
            raise RuntimeError(
                f"expected modules of one structure, found the keys {list(first._entries)} and "
                f"{list(td._entries)} at {format_key(path) if path else 'the root'}: use "
                "lazy_stack=True for modules that differ"
            )
    entries: dict[str, Any] = {}
    for name, value in first._entries.items():
        values = [td._entries[name] for td in tds]
        if not isinstance(value, Tensor):
            entries[name] = _stack(values, (*path, name), expand_identical)
            continue
        if any(nn.parameter.is_lazy(other) for other in values):
            raise RuntimeError(
                f"expected initialised modules, found a lazy one at {format_key((*path, name))}: "
                "run the modules once first"
            )
        if expand_identical and all(other is value for other in values):
            entries[name] = value.expand(len(tds), *value.shape)
            continue
        for other in values:
            if other.shape != value.shape:
                raise RuntimeError(
                    f"expected modules of one structure, found the shapes {list(value.shape)} and "
                    f"{list(other.shape)} at {format_key((*path, name))}: use lazy_stack=True for "
                    "modules that differ"
                )
        stacked = torch.stack([other.detach() for other in values])
        trains = isinstance(value, nn.Parameter)
        entries[name] = (
            nn.Parameter(stacked, requires_grad=value.requires_grad)
            if trains
            else nn.Buffer(stacked)
        )
    return TensorDict._from_entries(entries, torch.Size((len(tds), *first._batch_size)))


_ABSENT = object()
_NO_DIMS = torch.Size(())
