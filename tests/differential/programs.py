"""Random straight-line programs over tensordicts, as Python source.

Key names: :class:`Program` (steps and a result), :func:`make_program` (one for each seed),
:data:`STEPS` (kind of step -> templates).

A program is ``program(a, b, s, w)``: two tensordicts, a 0-d tensor and a tensor of the batch size
of `a`. It has the registers ``p`` and ``q`` (tensordicts, at first `a` and `b`), ``v`` (a tensor)
and ``out`` (a list of what was read).

Invariant: a step needs no other step, so that a program which shows a fault can be shortened by
leaving out any of them.
"""

from __future__ import annotations

import copy
import itertools
import linecache
import random
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

import tdcompile

if TYPE_CHECKING:
    from collections.abc import Callable

#: What a placeholder of a template may stand for. An alternative may hold placeholders itself.
CHOICES: dict[str, tuple[str, ...]] = {
    "T": ("p", "p", "q", "a", "b"),
    "U": ("p", "q", "q", "a", "b"),
    "D": ("p", "p", "q"),
    "K": ('"a"', '"b"', '"a"', '"b"', '"c"', '"d"'),  # read: the last two may be absent
    "H": ('"a"', '"b"', '"n"'),  # there at first
    "W": ('"a"', '"b"', '"c"', '"new"', '"late"'),  # written
    "P": (
        '("n", "x")',
        '("n", "x")',
        '("n", "y")',
        '("n", "o")',
        '("m", "k")',
        '("n", "deep", "z")',
    ),
    "V": (
        "{T}.get({H}) * 1",
        '{T}["a"] + 1',
        '{T}["a"]',
        '{T}["b"]',
        '{T}["n", "x"]',
        "torch.ones({T}.batch_size)",
        "torch.full({T}.shape, 2.0)",
        "w",
        "v",
        "{T}.get({K}, w)",
    ),
    "L": ('{T}["a"]', '{T}["n", "x"]', "w", "torch.ones({T}.batch_size)", '{T}["b"] * 2'),
    "C": ("2", "0.5", "-1", "3"),
    "O": ("+", "-", "*", "/"),
    "I": ("+", "-", "*"),
    "Q": ("==", "!=", "<", ">="),
    "R": ("sum", "mean", "amax", "prod"),
    "F": ("exp", "neg", "abs", "sqrt", "tanh", "floor", "sigmoid", "isnan"),
}

#: Kind of step -> templates; a kind is drawn first, then one of its templates.
STEPS: dict[str, tuple[str, ...]] = {
    "read": (
        "out.append({T}[{H}])",
        "out.append({T}[{K}])",
        "out.append({T}.get({H}))",
        'v = {T}["a"]',
        'v = v + {T}["b"]',
    ),
    "nested read": (
        'out.append({T}["n", "x"])',
        'out.append({T}["n"]["x"])',
        'out.append({T}.get("n").get("x"))',
        'out.append({T}["n"])',
        'v = {T}["n", "x"]',
    ),
    "in": (
        "out.append({W} in {T})",
        "out.append({W} in {T}.keys())",
        "out.append({P} in {T}.keys(True))",
        "out.append({P} in {T})",
        "out.append({W} not in {T}.keys())",
    ),
    "keys": (
        "out.append(list({T}.keys()))",
        "out.append(list({T}.keys(True)))",
        "out.append(list({T}.keys(True, True)))",
        "out.append(sorted({T}.keys()))",
        "out.append([k for k in {T}.keys() if k != {H}])",
        "out.append({T}.sorted_keys)",
    ),
    "get with default": (
        "out.append({T}.get({W}, None))",
        "out.append({T}.get({W}, s))",
        "out.append({T}.get({P}, 5))",
        "out.append({T}.get({P}, default=w))",
        "v = {T}.get({W}, w)",
    ),
    "set": (
        "{T}[{W}] = {V}",
        "{T}[{W}] = {V}",
        "{T}.set({W}, {V})",
        "out.append({T}.set({W}, {V}) is {T})",
        '{T}["str"] = "value"',
        "{T}[{W}] = 1.5",
    ),
    "nested set": (
        "{T}[{P}] = {V}",
        "{T}.set({P}, {V})",
        '{T}["n"]["y"] = {V}',
        '{T}["n"].set("x", {V})',
        '{T}["fresh"] = {{"k": {L}}}',
    ),
    "update": (
        '{T}.update({{"a": {L}, "new": {L}}})',
        '{T}.update({{"n": {{"x": {L}, "y": {L}}}}})',
        "{T}.update({U})",
        "{T}.update({U}, clone=True)",
        '{T}.update({U}.select("a", ("n", "x"), strict=False))',
        "{T}.update(late={L})",
        '{T}.update({U}, keys_to_update=["b"])',
        "{T}.update({U}, inplace=True)",
    ),
    "update in place": (
        '{T}.update_({{"a": {L}}})',
        '{T}.update_({{"n": {{"x": {L}}}}})',
        '{T}.update_({U}.select("a"))',
        '{T}.set_("a", {L})',
        '{T}.set_(("n", "x"), {L})',
        '{T}.set("a", {L}, inplace=True)',
        "{T}.copy_({U})",
    ),
    "del": (
        "del {T}[{H}]",
        "del {T}[{K}]",
        'del {T}["n", "x"]',
        "{T}.del_({H})",
        'del {T}["n"]["x"]',
    ),
    "pop": (
        "out.append({T}.pop({H}))",
        "out.append({T}.pop({W}, None))",
        "out.append({T}.pop({P}, s))",
        "{T}.pop({H}, None)",
        "v = {T}.pop({W}, w)",
        "out.append({T}.popitem())",
    ),
    "setdefault": (
        "out.append({T}.setdefault({W}, {L}))",
        "{T}.setdefault({P}, {L})",
        "v = {T}.setdefault({K}, w)",
    ),
    "rename": (
        "{T}.rename_key_({H}, {W})",
        "{T}.rename_key_({H}, {W}, safe=True)",
        '{T}.rename_key_(("n", "x"), "flat")',
        '{T}.rename_key_("a", ("n", "a"))',
        '{T}.rename_key_("a", "b").rename_key_("b", "a")',
    ),
    "swap": (
        '{T}["a"], {T}["b"] = {T}["b"], {T}["a"]',
        '{T}["a"], {U}["a"] = {U}["a"], {T}["a"]',
        '{T}["a"], {T}["n", "x"] = {T}["n", "x"], {T}["a"]',
        "p, q = q, p",
    ),
    "select": (
        '{D} = {T}.select("a", "n")',
        '{D} = {T}.select("b", "a", "c", strict=False)',
        '{D} = {T}.select("b", ("n", "x"), strict=False)',
        '{T}.select("a", "b", strict=False, inplace=True)',
        "out.append({T}.select({H}))",
    ),
    "exclude": (
        "{D} = {T}.exclude({W})",
        "{D} = {T}.exclude({H}, {P})",
        "{T}.exclude({W}, inplace=True)",
        'out.append({T}.exclude("n"))',
        "out.append({T}.exclude({P}))",
    ),
    "replace": (
        "{D} = {T}.replace({{{W}: {L}}})",
        '{D} = {T}.replace({{"n": {{"x": {L}}}}})',
        "{D} = {T}.replace(a={L})",
    ),
    "copy": (
        "{D} = {T}.copy()",
        "{D} = {T}.clone()",
        "{D} = {T}.clone(False)",
        "{D} = {T}.clone(recurse=False)",
        "out.append({T}.copy())",
        "out.append({T}.empty())",
        "{D} = {T}.to_tensordict()",
        "out.append({T}.empty(recurse=True))",
    ),
    "tensordict and tensordict": (
        "{D} = {T} {O} {U}",
        "out.append({T} {O} {U})",
        "{D} = {T}.add({U})",
        "out.append({T}.maximum({U}))",
        "out.append(torch.add({T}, {U}))",
    ),
    "tensordict and number": (
        "{D} = {T} {O} {C}",
        "{D} = {C} {I} {T}",
        "out.append({C} - {T})",
        "{D} = {T}.mul({C})",
        "out.append({T} ** 2)",
        "out.append({T}.clamp(-1, {C}))",
        "out.append({C} / {T})",
    ),
    "tensordict and tensor": (
        "{D} = {T} {O} s",
        "{D} = s {I} {T}",
        "{D} = {T} * w",
        "out.append(w {I} {T})",
        "out.append({T} + {T}['a'])",
        "out.append(torch.mul({T}, s))",
    ),
    "in place": (
        "{T} += {U}",
        "{T} *= {C}",
        "{T} -= s",
        "{T}.add_({C})",
        "{T}.mul_({U})",
        "{T}.zero_()",
        '{T}["a"].add_({C})',
        '{T}["a"] += {C}',
        '{T}["n", "x"] *= 2',
        '{T}["n"] *= {C}',
        "{T}.exp_()",
        "{T}.fill_({H}, {C})",
    ),
    "unary": (
        "{D} = {T}.{F}()",
        "out.append({T}.{F}())",
        "out.append(-{T})",
        "out.append(abs({T}))",
        "out.append(torch.exp({T}))",
        "out.append({T}.logical_not())",
    ),
    "comparison": (
        "out.append({T} {Q} {U})",
        "out.append({T} {Q} {C})",
        "out.append({T} {Q} s)",
        "out.append(({T} == {U}).all())",
        "out.append({T} is {U})",
        'out.append({T}["a"] is {U}["a"])',
        'out.append({T}["n"] is {U}["n"])',
        'out.append({T}["a"] is {T}["b"])',
    ),
    "index": (
        "out.append({T}[0])",
        "out.append({T}[:2])",
        "out.append({T}[torch.tensor([0, 1])])",
        "out.append({T}[..., None])",
        "out.append({T}[None])",
        "out.append({T}[w > 0])",
        "{D} = {T}[1:]",
        "out.append({T}[-1]['a'])",
    ),
    "write index": (
        "{T}[0] = {U}[0]",
        "{T}[:1] = 0",
        "{T}[torch.tensor([0])] = {U}[:1]",
        '{T}["a"][0] = 7',
        "{T}.set_at_('a', 0.0, 0)",
    ),
    "shape": (
        "out.append({T}.view(-1))",
        "out.append({T}.unsqueeze(0))",
        "out.append({T}.unsqueeze(-1).squeeze(-1))",
        "out.append({T}.expand(2, *{T}.batch_size))",
        "out.append({T}.reshape(-1))",
        "out.append({T}.flatten())",
        "out.append({T}.unsqueeze(0).permute(*reversed(range({T}.ndim + 1))))",
        "out.append({T}.unbind(0))",
        "out.append({T}.split(1))",
        "out.append({T}.unsqueeze(0).transpose(0, 1))",
        "{D} = {T}.unsqueeze(0)",
    ),
    "stack": (
        "out.append(torch.stack([{T}, {U}]))",
        "out.append(torch.cat([{T}, {U}]))",
        "out.append(torch.stack([{T}, {T}], dim=-1))",
        "{D} = torch.cat([{T}, {U}], dim=0)",
        "out.append(TensorDict.stack([{T}, {U}], 0))",
    ),
    "apply": (
        "{D} = {T}.apply(lambda x: x + 1)",
        "out.append({T}.apply(lambda x, y: x + y, {U}))",
        "out.append({T}.named_apply(lambda k, x: x * 2 if k == 'a' else x))",
        "{T}.apply_(lambda x: x.mul_(2))",
        "out.append({T}.apply(lambda x: x))",
    ),
    "construct": (
        '{D} = TensorDict({{"a": {L}, "b": {L}, "n": {T}["n"]}}, batch_size={T}.batch_size)',
        'out.append(TensorDict({{"k": v}}, batch_size=[]))',
        "out.append(TensorDict({{}}, batch_size={T}.batch_size, device={T}.device))",
        'out.append(TensorDict({{"one": {T}, "two": {U}}}))',
        "{D} = TensorDict({T}, batch_size={T}.batch_size, names={T}.names)",
        "{D} = TensorDict(dict({T}.items()), {T}.batch_size)",
        'out.append(TensorDict({{("r", "s"): {L}}}, batch_size={T}.batch_size, lock=True))',
    ),
    "store a tensordict": (
        '{T}["sub"] = {U}',
        '{T}["m"] = {U}["n"]',
        '{T}.set("sub", {U}.copy())',
        '{T}["n"] = {U}.select("a", "b")',
        '{T}["n", "in"] = {U}["n"]',
        '{T}["both"] = TensorDict({{"l": {L}}}, {T}.batch_size)',
    ),
    "metadata": (
        "out.append(({T}.batch_size, {T}.device, {T}.names, {T}.is_locked))",
        "out.append(len({T}))",
        "out.append(len({T}.keys()))",
        "out.append({T}.batch_size[0] * 2)",
        "v = v * {T}.batch_size[0]",
        "out.append({T}.numel())",
        "out.append({T}.is_empty())",
        "out.append(({T}.shape, {T}.ndim, {T}.dim()))",
    ),
    "iterate": (
        "out.append([(k, x) for k, x in {T}.items()])",
        "for k, x in {T}.items(): out.append(k)",
        "out.append(list({T}.values()))",
        "out.append([x for x in {T}.values(True, True)])",
        "out.append({{k: x for k, x in {T}.items(True)}})",
        "for k in list({T}.keys()): {T}[k] = {U}[k]",
        "for x in {T}.unbind(0): out.append(x['a'])",
        "out.append([x for x in {T}])",
    ),
    "flatten keys": (
        "out.append({T}.flatten_keys())",
        '{D} = {T}.flatten_keys("/")',
        "out.append({T}.flatten_keys().unflatten_keys())",
    ),
    "to dict": ("out.append({T}.to_dict())", "out.append(dict({T}.items()))"),
    "reduce": (
        "out.append({T}.{R}(0))",
        "out.append({T}.{R}(dim=-1))",
        "out.append({T}.sum())",
        "out.append({T}.mean(0, keepdim=True))",
        "out.append({T}.any())",
    ),
    "cast": (
        "out.append({T}.double())",
        "{D} = {T}.float()",
        "out.append({T}.to(torch.float64))",
        "out.append({T}.int())",
        "out.append({T}.bool())",
        'out.append({T}.to("cpu"))',
        "out.append({T}.detach())",
        "out.append({T}.contiguous())",
    ),
    "lock": (
        "{T}.lock_()",
        "{T}.unlock_()",
        "{D} = {T}.copy().lock_()",
        "with {T}.unlock_(): {T}[{W}] = {V}",
        "{T}.is_locked = True",
    ),
    "branch": (
        'if {W} in {T}.keys(): {T}["late"] = {L}',
        "if {T}.is_locked: out.append('locked')",
        "if {T} is {U}: out.append('same')",
        "if {T}.device is None: out.append('no device')",
        "if {T}.batch_size[0] > 3: {T}['new'] = {L}",
    ),
    "catch": (
        "try: out.append({T}[{K}])\n    except KeyError: out.append('absent')",
        "try: {T}[{W}] = {V}\n    except RuntimeError as e: out.append(type(e).__name__)",
        "try: del {T}[{K}]\n    except KeyError: out.append('absent')",
    ),
    "names": (
        "{T}.names = ['t'] + [None] * ({T}.ndim - 1)",
        "out.append({T}.names)",
        "{D} = {T}.copy().refine_names('t', ...)",
    ),
    "alias": (
        "p = q",
        "q = p",
        "p = a",
        "q = b",
        "out.append(p)",
        "out += [p, p]",
        "out.append({T}['n'])",
    ),
    "break": ("torch._dynamo.graph_break()",),
    "batch size": (
        "{T}.batch_size = []",
        "{T}.batch_size = {T}.batch_size[:1]",
        '{T}["n"].batch_size = []',
        "{T}.auto_batch_size_()",
        "{T}.auto_batch_size_(1)",
        "out.append(torch.zeros({T}.batch_size[-1] + 1))",
        "out.append({T}.batch_size == {U}.batch_size)",
    ),
    "keep a view": (
        "k = {T}.keys(); {T}[{W}] = {V}; out.append(list(k))",
        "k = {T}.items(); {T}.pop({W}, None); out.append([x for x, _ in k])",
        "k = {T}.values(); {T}['a'] = {L}; out.append(list(k))",
        "k = {T}.keys(True); {T}[{P}] = {V}; out.append(list(k))",
        "k = {T}.keys(); {T}[{W}] = {V}; out.append((len(k), {W} in k))",
        "k = {T}.copy(); {T}[{P}] = {V}; out.append(k)",
        "k = {T}['n']; {T}['n'] = {U}['n']; k['late'] = w; out.append(k)",
        "k = {T}.pop('n'); k['late'] = w; {T}['back'] = k",
    ),
    "sets of keys": (
        "out.append({T}.keys() == {U}.keys())",
        "out.append(sorted(set({T}.keys()) & set({U}.keys())))",
        "out.append(sorted(set({T}.keys()) - set({U}.keys())))",
        "out.append([k for k in {T}.keys() if k in {U}.keys()])",
        "out.append(dict(zip({T}.keys(), {T}.values())))",
        "out.append(max({T}.keys()))",
        "for k in {T}.keys(): {T}[k + '2'] = w",
        "for k, x in {T}.items(): {T}[k] = x",
        "for k in [k for k in {T}.keys() if k not in {U}.keys()]: del {T}[k]",
    ),
    "python": (
        "out.append(isinstance({T}, TensorDict))",
        "out.append(type({T}) is TensorDict)",
        "out.append(hasattr({T}, 'batch_size') and not hasattr({T}, 'nothing'))",
        "out.append(getattr({T}, 'nothing', 7))",
        "out.append((lambda td: td.set('called', w))({T}))",
        "out.append([td['a'] for td in ({T}, {U})])",
        "out.append({T} if {T}.ndim else {U})",
        "out.append({{'td': {T}}}['td'] is {T})",
        "out.append({T} in [{U}] if {T} is {U} else None)",
        "out.append(copy.copy({T}))",
        "{D} = copy.deepcopy({T})",
    ),
    "raise": (
        "if 'c' in {T}.keys(): raise ValueError('c is there')",
        "if {T} is {U} and {T}.is_locked: raise KeyError('locked')",
        "assert {W} not in {T}.keys(), {W}",
    ),
    "no grad": (
        "with torch.no_grad(): {D} = {T} * 2",
        "with torch.no_grad(): {T}['a'] = {L}",
        "with torch.no_grad(): {T} *= {C}",
        "out.append({T}.requires_grad)",
        "out.append({T}.data)",
        "{T}.detach_()",
    ),
    "rebuild": (
        "out.append(torch.zeros_like({T}))",
        "out.append(torch.ones_like({T}))",
        "out.append(TensorDict.from_dict({{'a': {L}, 'n': {{'x': {L}}}}}))",
        "out.append(TensorDict.fromkeys(['a', 'b'], 1))",
        "out.append(torch.where(w > 0, {T}, {U}))",
        "out.append({T}.where(w > 0, {U}))",
        "out.append({T}.masked_fill(w > 0, 1.0))",
        "out.append({T}.gather(0, torch.zeros(1, dtype=torch.int64)))",
        "out.append({T}.repeat(2))",
        "out.append({T}.roll(1, 0))",
        "out.append({T}.chunk(2))",
        "out.append({T}.split_keys(['a'], strict=False))",
    ),
    "restructure": (
        "{T}.clear()",
        "{T}.create_nested('n')",
        "{T}.create_nested(('m', 'k'))",
        "{T}.filter_empty_()",
        "{T}.flatten_keys(inplace=True)",
        "{T}.exclude({P}, inplace=True)",
        "{T}['n'].clear()",
        "{T}['empty'] = {T}.empty()",
        "{D} = {T}.select()",
        "{T}.update({T}['n'])",
        "{T}['n'].update({T}.select('a', strict=False))",
    ),
    "string": (
        'out.append({T}.get("str", None))',
        'out.append({T}["str"] if "str" in {T}.keys() else None)',
        '{T}["m", "str"] = "nested"',
        "out.append({T}.get_non_tensor('str', 'none'))",
        "{T}['list'] = ['x', 'y']",
        "{T}['nothing'] = None",
        "{T}.set_non_tensor('obj', (1, 'x'))",
        '{T}["str"] = {T}["str"] + "!" if "str" in {T}.keys() else "made"',
    ),
}

RESULTS = (
    "out, p, q",
    "out, p, q",
    "out",
    "p",
    "out, p, p, a",
    '{"p": p, "q": q, "out": out}',
    "out, [p, q], (a, b), v",
    'out, TensorDict({"p": p, "v": s})',
    "None",
)

#: Kinds that a plain run draws less often: nearly every program would have one.
RARE = ("break", "catch", "lock", "names", "raise", "batch size", "restructure")

_PLACEHOLDER = re.compile(r"\{([A-Z])\}")
_numbers = itertools.count()


@dataclass(frozen=True)
class Program:
    """The source of a program: its steps, one a line, and what it returns."""

    steps: tuple[str, ...]
    result: str

    @property
    def source(self) -> str:
        # Dynamo runs a frame without a tensor operation eagerly, so there is one.
        lines = ["p, q, v, out = a, b, s, []", "s + 1", *self.steps, f"return {self.result}"]
        return "def program(a, b, s, w):\n" + "".join(f"    {line}\n" for line in lines)

    def build(self) -> Callable[..., Any]:
        """A function with this source, a new one each time (so that it compiles on its own)."""
        filename = f"<program {next(_numbers)}>"
        linecache.cache[filename] = (len(self.source), None, self.source.splitlines(True), filename)
        namespace: dict[str, Any] = {
            "copy": copy,
            "torch": torch,
            "TensorDict": tdcompile.TensorDict,
        }
        exec(compile(self.source, filename, "exec"), namespace)
        return namespace["program"]  # type: ignore[no-any-return]

    def without(self, index: int) -> Program:
        return replace(self, steps=self.steps[:index] + self.steps[index + 1 :])


def fill(template: str, rng: random.Random) -> str:
    """Replace each placeholder by one of its choices."""

    def choose(match: re.Match[str]) -> str:
        return fill(rng.choice(CHOICES[match[1]]), rng)

    # Doubled braces are literal ones and hide nothing from the pattern: no placeholder is doubled.
    return _PLACEHOLDER.sub(choose, template).replace("{{", "{").replace("}}", "}")


def make_program(seed: int, kinds: tuple[str, ...] | None = None, max_steps: int = 6) -> Program:
    """The program of a seed; with `kinds` its steps are of these kinds only."""
    rng = random.Random(seed)
    pool = kinds or tuple(kind for kind in STEPS if kind not in RARE or rng.random() < 0.3)
    steps = tuple(
        fill(rng.choice(STEPS[rng.choice(pool)]), rng) for _ in range(rng.randint(1, max_steps))
    )
    return Program(steps, rng.choice(RESULTS))
