"""Arguments for random programs: a spec, and the Python source that makes fresh arguments of it.

Key names: :class:`Spec` (what the arguments look like), :func:`make_specs` (a base and variations).

Invariant: two runs of one spec make equal arguments with the same objects shared between them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

import tdcompile

if TYPE_CHECKING:
    from collections.abc import Callable

_DTYPES = ("float32", "float64", "int64", "float32")
_BATCHES = ((3,), (4,), (2, 3), (1,), (5,), ())
_EXTRA = ("c", "d", "z", "new", "m", "str")

_LEAVES = {
    "requires grad": ['a._entries["a"] = a._entries["a"].float().requires_grad_()'],
    "parameter": ['a._entries["a"] = torch.nn.Parameter(a._entries["a"].float())'],
    "transposed": ['a._entries["a"] = torch.stack([a._entries["a"]] * 2, -1)[..., 1]'],
    "view": ['a._entries["a"] = a._entries["b"].view(a._entries["b"].shape)'],
}


@dataclass(frozen=True)
class Spec:
    """The arguments ``(a, b, s, w)`` of a program.

    Attributes:
        batch: batch size of both tensordicts.
        keys: keys of `a` in order; ``"n"`` and ``"m"`` are nested, ``"str"`` holds a string.
        b_keys: keys of `b` in order.
        nested: keys of the nested tensordicts in order.
        dtype: of the leaves.
        shared: pairs ``(key, other)``: in `a`, `key` holds the object that `other` holds.
        b: how `b` comes: ``"own"``, ``"same"`` (it is `a`), ``"nested"`` (it is ``a["n"]``),
            ``"shares n"``, ``"shares a"``.
        features: trailing shape of the leaf ``"b"``.
        locked: which are locked.
        names: names of the batch dimensions are given.
        device: device of both, or None.
        leaf: how ``a["a"]`` comes: ``"plain"``, ``"requires grad"``, ``"parameter"``,
            ``"transposed"`` or ``"view"`` (of the memory of ``a["b"]``).
        seed: of the values.
    """

    batch: tuple[int, ...] = (3,)
    keys: tuple[str, ...] = ("a", "b", "n")
    b_keys: tuple[str, ...] = ("a", "b", "n")
    nested: tuple[str, ...] = ("x", "o")
    dtype: str = "float32"
    shared: tuple[tuple[str, str], ...] = ()
    b: str = "own"
    features: tuple[int, ...] = ()
    locked: str = ""
    names: bool = False
    device: str | None = None
    leaf: str = "plain"
    seed: int = 0

    @property
    def source(self) -> str:
        """Python source that binds ``a``, ``b``, ``s`` and ``w``."""
        rng = random.Random(self.seed)
        lines = self._tensordict("a", self.keys, rng)
        for key, other in self.shared:
            lines.append(f"a._entries[{key!r}] = a._entries[{other!r}]")
        lines += _LEAVES.get(self.leaf, [])
        if self.b == "same":
            lines.append("b = a")
        elif self.b == "nested":
            lines.append('b = a["n"]')
        else:
            lines += self._tensordict("b", self.b_keys, rng)
            if self.b.startswith("shares"):
                key = self.b.split()[1]
                lines.append(f"b._entries[{key!r}] = a._entries[{key!r}]")
        lines.append(f"s = torch.tensor({rng.choice([0.5, 1.5, -2.0])})")
        lines.append(f"w = {self._leaf(rng, (), 'float32')}")
        lines += [f"{name}.lock_()" for name in self.locked]
        return "\n".join(lines) + "\n"

    def _tensordict(self, name: str, keys: tuple[str, ...], rng: random.Random) -> list[str]:
        lines = []
        items = []
        for key in keys:
            if key in ("n", "m"):
                inner = ", ".join(f"{k!r}: {self._leaf(rng, (), self.dtype)}" for k in self.nested)
                lines.append(
                    f"{name}_{key} = TensorDict({{{inner}}}, {list(self.batch)}{self._rest})"
                )
                items.append(f"{key!r}: {name}_{key}")
            elif key == "str":
                items.append(f"{key!r}: {rng.choice(['hello', 'world'])!r}")
            else:
                features = self.features if key == "b" else ()
                items.append(f"{key!r}: {self._leaf(rng, features, self.dtype)}")
        lines.append(f"{name} = TensorDict({{{', '.join(items)}}}, {list(self.batch)}{self._rest})")
        return lines

    @property
    def _rest(self) -> str:
        rest = "" if self.device is None else f", device={self.device!r}"
        return rest + (f", names={[f't{i}' for i in range(len(self.batch))]}" if self.names else "")

    def _leaf(self, rng: random.Random, features: tuple[int, ...], dtype: str) -> str:
        shape = [*self.batch, *features]
        count = 1
        for size in shape:
            count *= size
        values = [rng.randint(-4, 6) / 2 for _ in range(count)]
        return f"torch.tensor({values}).reshape({shape}).to(torch.{dtype})"

    def build(self) -> tuple[Any, ...]:
        """Fresh arguments."""
        namespace: dict[str, Any] = {"torch": torch, "TensorDict": tdcompile.TensorDict}
        exec(self.source, namespace)
        return tuple(namespace[name] for name in ("a", "b", "s", "w"))


def _shuffled(keys: tuple[str, ...], rng: random.Random) -> tuple[str, ...]:
    return tuple(rng.sample(keys, len(keys)))


def _with_extra(keys: tuple[str, ...], rng: random.Random) -> tuple[str, ...]:
    extra = [key for key in rng.sample(_EXTRA, 2) if key not in keys]
    place = rng.randint(0, len(keys))
    return (*keys[:place], *extra, *keys[place:])


def _extra_nested(spec: Spec, rng: random.Random) -> Spec:
    return replace(spec, nested=(*spec.nested, rng.choice(["y", "w"])))


def _extra_in_both(spec: Spec, rng: random.Random) -> Spec:
    keys = _with_extra(spec.keys, rng)
    return replace(spec, keys=keys, b_keys=tuple(k for k in keys if k != "str"))


def _missing(spec: Spec, rng: random.Random) -> Spec:
    gone = rng.choice(["a", "b", "n"])
    return replace(
        spec,
        keys=tuple(key for key in spec.keys if key != gone),
        b_keys=tuple(key for key in spec.b_keys if key != gone),
        b="own",
        leaf="plain",
        shared=(),
    )


def _share(spec: Spec, rng: random.Random) -> Spec:
    pair = rng.choice([("b", "a"), ("m", "n"), ("a", "b"), ("c", "a")])
    if pair[1] not in spec.keys or "str" in pair:
        return spec
    return replace(spec, shared=(pair,))


#: Variations of a spec; each program is fed with some of them.
VARIATIONS: dict[str, Callable[[Spec, random.Random], Spec]] = {
    "values": lambda spec, rng: replace(spec, seed=rng.randint(1, 1000)),
    "extra keys": lambda spec, rng: replace(spec, keys=_with_extra(spec.keys, rng)),
    "extra keys in b": lambda spec, rng: replace(spec, b_keys=_with_extra(spec.b_keys, rng)),
    "extra keys in both": _extra_in_both,
    "extra nested key": _extra_nested,
    "key order": lambda spec, rng: replace(spec, keys=_shuffled(spec.keys, rng)),
    "nested key order": lambda spec, rng: replace(spec, nested=spec.nested[::-1]),
    "missing key": _missing,
    "missing nested key": lambda spec, rng: replace(spec, nested=("x",)),
    "shared": _share,
    "same": lambda spec, rng: replace(spec, b="same"),
    "one in the other": lambda spec, rng: replace(spec, b="nested") if "n" in spec.keys else spec,
    "shares a nested tensordict": lambda spec, rng: (
        replace(spec, b="shares n") if "n" in spec.keys else spec
    ),
    "shares a leaf": lambda spec, rng: replace(spec, b="shares a") if "a" in spec.keys else spec,
    "dtype": lambda spec, rng: replace(spec, dtype=rng.choice(_DTYPES)),
    "batch size": lambda spec, rng: replace(spec, batch=rng.choice(_BATCHES)),
    "features": lambda spec, rng: replace(spec, features=(2,)),
    "locked": lambda spec, rng: replace(spec, locked=rng.choice(["a", "b", "ab"])),
    "names": lambda spec, rng: replace(spec, names=True),
    "kind of leaf": lambda spec, rng: (
        replace(spec, leaf=rng.choice(list(_LEAVES))) if {"a", "b"} <= {*spec.keys} else spec
    ),
    "device": lambda spec, rng: replace(spec, device="cpu"),
}


def make_specs(seed: int, count: int = 6) -> list[Spec]:
    """A base, variations of it by one or two properties, and the base again."""
    rng = random.Random(f"inputs {seed}")
    base = Spec()
    if rng.random() < 0.4:
        base = VARIATIONS[rng.choice(list(VARIATIONS))](base, rng)
    specs = [base]
    while len(specs) < count - 1:
        spec = base
        for _ in range(rng.choice([1, 1, 2])):
            spec = VARIATIONS[rng.choice(list(VARIATIONS))](spec, rng)
        specs.append(spec)
    return [*specs, replace(base, seed=rng.randint(1, 1000))]
