"""Programs over lazy stacks, for both packages and for eager and compiled code.

Key names: :data:`PROGRAMS` (name -> expression over ``td`` and the names of :func:`scope`),
:data:`UPDATES` (name -> statement that changes ``td``), :func:`build` (a lazy stack of either
package), :func:`outcome`, :func:`same`.

A result is compared slice by slice along the stack dimension, so that a lazy stack on one side may
be a dense tensordict on the other; batch size, names, keys, values and dtypes have to agree.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

KINDS = ("same", "shapes", "keys", "nested", "of_stacks")
"""Elements that are alike; that differ in trailing shapes; in keys too; a dense tensordict with a
lazy stack in it; a lazy stack of lazy stacks."""


def build(package: Any, kind: str, stack_dim: int) -> Any:
    """Make a lazy stack ``(2, 3)`` with another dimension of size 4 (the second one of 2)."""
    make, lazy = package.TensorDict, package.LazyStackedTensorDict
    elements = []
    for i in range(4):
        more = 0 if kind in ("same", "of_stacks") else i
        x = torch.arange(6.0 * (1 + more)).reshape(2, 3, 1 + more) + 10 * i
        entries = {
            "a": torch.arange(6).reshape(2, 3) + i,
            "b": torch.linspace(0.5, 2, 12 + 6 * more).reshape(2, 3, 2 + more) + i,
            "n": make({"x": x}, [2, 3]),
        }
        if kind == "keys":
            entries[f"only{i}"] = torch.full((2, 3), float(i))
        elements.append(make(entries, [2, 3]))
    if kind == "of_stacks":
        inner = [lazy(*elements[:2], stack_dim=1), lazy(*elements[2:], stack_dim=1)]
        return lazy(*inner, stack_dim=stack_dim)
    stack = lazy(*elements, stack_dim=stack_dim)
    if kind != "nested":
        return stack
    return make({"l": stack, "t": torch.ones(stack.batch_size)}, stack.batch_size)


def scope(package: Any, td: Any) -> dict[str, Any]:
    """Names that a program may use."""
    size = td.batch_size
    count = size.numel()
    return {
        "td": td,
        "torch": torch,
        "TensorDict": package.TensorDict,
        "lazy_stack": package.lazy_stack,
        "maybe_dense_stack": package.maybe_dense_stack,
        "ones": torch.ones(size),
        "steps": torch.arange(count).reshape(size),
        "mask": (torch.arange(count) % 3 == 0).reshape(size),
        "row_mask": torch.arange(size[0]) % 2 == 0,
        "n": size[0],
        "size": size,
    }


LEAFWISE = {
    "exp": "td.exp()",
    "neg": "-td",
    "add number": "td + 1",
    "number minus": "1 - td",
    "add self": "td + td",
    "times tensor": "td * steps",
    "tensor times": "steps * td",
    "times row": "td * torch.arange(size[-1])",
    "compare": "td == td + 1",
    "less": "td < 2",
    "clamp": "td.clamp(0, 1)",
    "pow": "td ** 2",
    "torch add": "torch.add(td, td, alpha=2)",
    "lerp": "td.float().lerp(td.float() + 1, 0.5)",
    "where number": "td.where(mask, 0)",
    "where td": "td.where(mask, td + 1)",
    "masked_fill": "td.masked_fill(mask, 1)",
    "apply": "td.apply(lambda x: x + 1)",
    "apply two": "td.apply(lambda x, y: x + y, td)",
    "named_apply": "td.named_apply(lambda key, x: x * len(key))",
    "double": "td.double()",
    "to": "td.to(torch.float64)",
    "bool": "td.bool()",
    "zeros_like": "torch.zeros_like(td)",
    "full_like": "torch.full_like(td, 2)",
    "detach": "td.detach()",
    "two steps": "td.exp().log()",
}

READING = {
    "clone": "td.clone()",
    "copy": "td.copy()",
    "batch_size": "td.batch_size, td.batch_dims, td.numel(), len(td)",
    "keys": "sorted(td.keys()), sorted(map(str, td.keys(True, True)))",
    "contains": "'a' in td, 'zz' in td, ('n', 'x') in td.keys(True)",
    "get missing": "td.get('zz'), td.get('zz', 3)",
    "is_empty": "td.is_empty(), td.is_locked, td.device",
    "param_count": "td.param_count()",
    "bytes": "td.bytes()",
    "filter": "td.filter_non_tensor_data()",
    "empty": "td.empty()",
}

SHAPES = {
    **{f"unbind {d}": f"td.unbind({d})" for d in (0, 1, 2, -1)},
    **{f"split {d}": f"td.split(1, {d})" for d in (0, 1, -1)},
    **{f"chunk {d}": f"td.chunk(2, {d})" for d in (0, 1, -1)},
    **{f"unsqueeze {d}": f"td.unsqueeze({d})" for d in (0, 1, 2, -1)},
    **{f"squeeze {d}": f"td.unsqueeze({d}).squeeze({d})" for d in (0, 1, -1)},
    "squeeze all": "td.unsqueeze(0).unsqueeze(-1).squeeze()",
    "permute": "td.permute([*range(1, td.batch_dims), 0])",
    "transpose": "td.transpose(0, 1)",
    "transpose last": "td.transpose(-1, 0)",
    "movedim": "td.movedim(0, -1)",
    "flatten": "td.flatten()",
    "flatten first": "td.flatten(0, 1)",
    "flatten last": "td.flatten(1, -1)",
    "unflatten": "td.unflatten(0, (1, -1))",
    "unflatten last": "td.unflatten(-1, (-1, 1))",
    "view": "td.view(-1)",
    "view same": "td.view(*size)",
    "reshape": "td.reshape(n, -1)",
    "expand": "td.expand(5, *size)",
    "expand one": "td.unsqueeze(1).expand(n, 3, *size[1:])",
    "repeat": "td.repeat(2, *(1 for _ in size[1:]))",
    "repeat all": "td.repeat([1 + i for i in range(td.batch_dims)])",
    "repeat_interleave": "td.repeat_interleave(2, 0)",
    "repeat_interleave last": "td.repeat_interleave(2, -1)",
    "split sizes": "td.split([1, n - 1], 0)",
    "tensor_split": "td.tensor_split(2, 1)",
    "cat": "torch.cat([td, td + 1], 0)",
    "cat one": "torch.cat([td, td + 1], 1)",
    "cat last": "torch.cat([td, td + 1], -1)",
    "stack": "torch.stack([td, td + 1], 0)",
    "stack one": "torch.stack([td, td + 1], 1)",
    "stack last": "torch.stack([td, td + 1], -1)",
    "lazy_stack": "lazy_stack([td, td + 1], 1)",
    "maybe_dense_stack": "maybe_dense_stack([td, td + 1], 0)",
    "to_lazystack": "td.to_lazystack(1)",
    "to_lazystack last": "td.to_lazystack(-1)",
}

DENSE_SHAPES = {
    # The tensordict package makes these dense first, so elements have to be alike there.
    "flip": "td.flip(0)",
    "flip two": "td.flip((1, 0))",
    "roll": "td.roll(1, 0)",
    "roll two": "td.roll((1, 2), (0, 1))",
    "narrow": "td.narrow(0, 1, 1)",
    "narrow last": "td.narrow(-1, 0, 2)",
    "gather": "td.gather(1, steps % size[1])",
    "gather first": "td.gather(0, steps % n)",
    "broadcast_to": "td.broadcast_to((3, *size))",
    "tile": "td.tile((2, 1))",
    "rot90": "td.rot90()",
    "sum": "td.sum(0)",
    "sum keep": "td.sum(1, keepdim=True)",
    "sum last": "td.sum(-1)",
    "sum two": "td.sum((0, 1))",
    "sum all": "td.sum()",
    "amax": "td.amax(0)",
    "max": "td.max(1).values",
    "cummax": "td.cummax(0).indices",
    "all": "td.bool().all(0)",
    "logsumexp": "td.float().logsumexp(1)",
    "to_tensordict": "td.to_tensordict()",
    "contiguous": "td.contiguous()",
    "masked_select": "td.masked_select(mask)",
    "items": "[(key, td.get(key)) for key in td.keys()]",
}

INDEXING = {
    "int": "td[0]",
    "int negative": "td[-1]",
    "int second": "td[:, 1]",
    "int last": "td[..., 0]",
    "two ints": "td[1, 0]",
    "slice": "td[:1]",
    "slice step": "td[::2]",
    "slice second": "td[:, 1:]",
    "slice empty": "td[1:1]",
    "ellipsis": "td[...]",
    "none": "td[None]",
    "none second": "td[:, None]",
    "none int": "td[None, 0]",
    "true": "td[True]",
}

POSITIONS = {
    "list": "td[[1, 0]]",
    "range": "td[range(2)]",
    "tensor": "td[torch.tensor([1, 0, 1])]",
    "tensor two dims": "td[torch.tensor([[0, 1], [1, 0]])]",
    "tensor second": "td[:, torch.tensor([1, 0])]",
    "scalar tensor": "td[torch.tensor(1)]",
    "tensor pair": "td[torch.tensor([0, 1]), torch.tensor([1, 0])]",
    "tensors apart": "td[[0, 1], :, [1, 0]]",
    "tensors apart later": "td[None, [0, 1], :, [1, 0]]",
    "tensor and int": "td[[0, 1], 0]",
    "mask row": "td[row_mask]",
    "mask all": "td[mask]",
    "mask none": "td[torch.zeros(n, dtype=torch.bool)]",
}

UPDATES = {
    "set": "td['z'] = ones",
    "set nested": "td['q', 'z'] = ones",
    "set in nested": "td['n', 'z'] = ones * 2",
    "set td": "td['m'] = TensorDict({'y': steps}, size)",
    "set dict": "td['m'] = {'y': steps}",
    "set again": "td['z'] = ones; td['z'] = steps",
    "set_": "td['z'] = ones; td.set_('z', ones * 3)",
    "update": "td.update({'z': ones, 'n': {'y': steps}})",
    "update self": "td.update(td + 1)",
    "update_": "td.update_(td + 1)",
    "iadd": "td += 1",
    "imul tensor": "td *= steps",
    "add_": "td.add_(td.clone())",
    "zero_": "td.zero_()",
    "apply_": "td.apply_(lambda x: x * 2)",
    "masked_fill_": "td.masked_fill_(mask, 1)",
    "copy_": "td.copy_(td * 2)",
    "index number": "td[0] = 0",
    "index td": "td[0] = td[1] * 2",
    "index second": "td[:, 0] = 7",
    "index last": "td[..., 1] = td[..., 0].clone()",
    "index slice": "td[:1] = td[1:2] + 1",
    "create_nested": "td.create_nested('c')",
    "setdefault": "td.setdefault('z', ones); td.setdefault('z', steps)",
    "update_at_": "td.update_at_(td[1] * 2, 0)",
}

KEY_UPDATES = {
    "del": "td['z'] = ones; del td['z']",
    "pop": "td['z'] = ones; assert td.pop('z').shape == size",
    "rename": "td['z'] = ones; td.rename_key_('z', 'y')",
    "rename nested": "td['q', 'z'] = ones; td.rename_key_(('q', 'z'), 'y')",
    "clear": "td.clear()",
    "select in place": "td['z'] = ones; td.select('z', inplace=True)",
    "exclude in place": "td['z'] = ones; td.exclude('z', inplace=True)",
    "index list": "td[[1, 0]] = td[[0, 1]].clone()",
    "index mask": "td[row_mask] = 5",
    "index mask td": "td[mask] = td[mask] * 2",
    "index pair": "td[[0, 1], [1, 0]] = 5",
    "index apart": "td[[0, 1], :, [1, 0]] = 5",
    "index new key": "td[0] = TensorDict({'new': ones[0]}, size[1:])",
}


def outcome(package: Any, kind: str, stack_dim: int, program: str, updates: bool) -> Any:
    """Run a program; what it gives, or what becomes of ``td``, or the exception."""
    td = build(package, kind, stack_dim)
    names = scope(package, td)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if updates:
                exec(program, names)
                return td
            return eval(program, names)
        except Exception as error:
            return error


def difference(ours: Any, theirs: Any, where: str = "td") -> str | None:
    """Tell how two results differ, or ``None``."""
    if isinstance(theirs, torch.Tensor):
        if not isinstance(ours, torch.Tensor) or ours.dtype != theirs.dtype:
            return f"{where}: {ours!r} for {theirs!r}"
        if ours.shape != theirs.shape or not torch.equal(ours, theirs):
            return f"{where}: {ours!r} for {theirs!r}"
        return None
    if isinstance(theirs, (tuple, list)) and not isinstance(theirs, torch.Size):
        if len(ours) != len(theirs):
            return f"{where}: {len(ours)} results for {len(theirs)}"
        found = [
            difference(one, other, f"{where}[{i}]")
            for i, (one, other) in enumerate(zip(ours, theirs, strict=True))
        ]
        return next((text for text in found if text), None)
    if not hasattr(theirs, "batch_size"):
        return None if ours == theirs else f"{where}: {ours!r} for {theirs!r}"
    if ours.batch_size != theirs.batch_size or list(ours.names) != list(theirs.names):
        return f"{where}: {ours} for {theirs}"
    for td in (theirs, ours):
        if hasattr(td, "stack_dim"):
            parts = zip(ours.unbind(td.stack_dim), theirs.unbind(td.stack_dim), strict=True)
            found = [difference(*pair, f"{where}.{i}") for i, pair in enumerate(parts)]
            return next((text for text in found if text), None)
    keys, expected = list(ours.keys()), list(theirs.keys())
    if keys != expected:
        return f"{where}: keys {keys} for {expected}"
    found = [difference(ours.get(key), theirs.get(key), f"{where}.{key}") for key in keys]
    return next((text for text in found if text), None)
