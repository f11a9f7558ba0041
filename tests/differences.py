"""Where our tensordict differs on purpose from the ``tensordict`` package: small programs, as data.

Key names: :data:`DIFFERENCES` (the rows), :func:`outcome` (what a row's program gives),
:data:`PREAMBLE` (the names that each program starts with), :func:`page` (the Markdown page).

Invariant: ``tensordict/test_differences.py`` runs every row on both packages, and
``docs/differences.md`` is made from the rows by ``python tests/pages.py``.
"""

from __future__ import annotations

import tempfile
import textwrap
import warnings
from dataclasses import dataclass
from typing import Any

import tensordict as reference
import torch

import tdcompile

__all__ = ["DIFFERENCES", "PREAMBLE", "TOPICS", "Difference", "outcome", "page"]

PACKAGES = {"reference": reference, "tdcompile": tdcompile}

PREAMBLE = '''\
import copy
import os
import tempfile

import torch
from torch.utils import _pytree as pytree

import tdcompile as package  # or: import tensordict as package

TensorDict, NonTensorData = package.TensorDict, package.NonTensorData

path = tempfile.mkdtemp()
t = torch.tensor([1.0, 2.0, 3.0])
mask = torch.tensor([True, False, True])
td = TensorDict({"a": torch.ones(3, 2), "b": torch.arange(3.0)}, batch_size=[3])
ints = TensorDict({"a": torch.ones(3, 2, dtype=int), "b": torch.arange(3)}, batch_size=[3])
named = TensorDict({"b": torch.arange(3.0)}, batch_size=[3], names=["time"])
nest = TensorDict({"b": torch.arange(3.0), "n": {"x": torch.ones(3, 2)}}, batch_size=[3])
text = TensorDict({"b": torch.arange(3.0), "s": "word"}, batch_size=[3])
wide = TensorDict({"a": torch.ones(3, 4)}, batch_size=[3, 4])
single = TensorDict({"a": torch.zeros(2), "b": torch.tensor(9.0)}, batch_size=[])
empty = TensorDict({}, batch_size=[3, 4])
inner = TensorDict({"x": torch.ones(3, 2)}, batch_size=[3, 2], names=["p", "q"])
deep = TensorDict({"n": inner}, batch_size=[3], names=["p"])


def attempt(function, *args, **kwargs):
    """Call, and go on if it raises."""
    try:
        function(*args, **kwargs)
    except Exception:
        pass


def zero_and_raise(td):
    """Write through a context, and leave it by an exception."""
    with td.flatten_keys(".") as flat:
        flat["b"] = torch.zeros(3)
        raise ValueError
'''

# A folder that goes when the program has ended takes its place.
_MAKE_PATH = "path = tempfile.mkdtemp()"


@dataclass(frozen=True)
class Difference:
    """One row.

    Attributes:
        topic: heading that it stands under.
        code: a program over the names of :data:`PREAMBLE`; its last line is an expression.
        reference: what the reference gives, as :func:`show` prints it.
        tdcompile: what tdcompile gives.
        why: the rule that tdcompile follows.
    """

    topic: str
    code: str
    reference: str
    tdcompile: str
    why: str


def show(value: Any) -> str:
    """Print a result: tensors as lists, batch sizes as lists, the rest by ``repr``."""
    if isinstance(value, torch.Tensor):
        return str(value.tolist())
    if isinstance(value, torch.Size):
        return str(list(value))
    if isinstance(value, tuple):
        return f"({', '.join(show(item) for item in value)})"
    return repr(value)


def outcome(code: str, package: Any) -> str:
    """Run a program on a package; what it gives, or the name of the exception that it raises."""
    *statements, last = code.split("\n")
    with tempfile.TemporaryDirectory() as path, warnings.catch_warnings():
        scope: dict[str, Any] = {"package": package, "path": path}
        warnings.simplefilter("ignore")
        exec(PREAMBLE.replace("import tdcompile as package", "pass").replace(_MAKE_PATH, ""), scope)
        try:
            exec("\n".join(statements), scope)
            return show(eval(last, scope))
        except Exception as error:
            return f"raises {type(error).__name__}"


def _rows(topic: str, *rows: tuple[str, str, str, str]) -> list[Difference]:
    return [Difference(topic, *row) for row in rows]


# Classes that several rows begin with.
_FIELDS = """\
class P(package.TensorClass):
    x: torch.Tensor
    y: torch.Tensor = None
"""
_KEYS = """\
class T(package.TypedTensorDict):
    x: torch.Tensor
"""

DIFFERENCES: list[Difference] = [
    *_rows(
        "Classes with fields",
        (
            _FIELDS + '"x" in P(t, batch_size=[3])',
            "False",
            "True",
            "`in` asks for a key, as for every tensordict",
        ),
        (
            _FIELDS + 'list(P(t).rename_key_("x", "z").keys())',
            "['z']",
            "raises UnknownFieldError",
            "no method adds a key that is no field",
        ),
        (
            _FIELDS + 'list(P(t).set_non_tensor("z", 1).keys())',
            "['x', 'z']",
            "raises UnknownFieldError",
            "no method adds a key that is no field",
        ),
        (
            _FIELDS
            + ('td = TensorDict({"x": t}, batch_size=[3])\nP.from_tensordict(td).x = -t\ntd["x"]'),
            "[-1.0, -2.0, -3.0]",
            "[1.0, 2.0, 3.0]",
            "an instance has its own entries, and the tensors that were there",
        ),
        (
            "@package.tensorclass\n"
            "class P:\n"
            "    x: torch.Tensor\n"
            "isinstance(P(t), package.TensorClass)",
            "False",
            "True",
            "every tensorclass is a `TensorClass`",
        ),
        (
            "class P:\n    x: torch.Tensor\npackage.tensorclass(P) is P",
            "True",
            "False",
            "the decorator makes a new class of the same name; `super()` in its methods means that",
        ),
        (
            "class P(package.TensorClass):\n"
            "    x: torch.Tensor\n"
            "    def __init__(self, size):\n"
            "        super().__init__(torch.zeros(size), batch_size=[size])\n"
            "class Q(P):\n"
            "    def __init__(self):\n"
            "        super().__init__(2)\n"
            "Q().x",
            "raises NotImplementedError",
            "[0.0, 0.0]",
            "a constructor may call that of its base",
        ),
        (
            "import dataclasses\n"
            "class P(package.TensorClass):\n"
            "    x: torch.Tensor\n"
            "    y: torch.Tensor = dataclasses.field(default=None, kw_only=True)\n"
            "P(t, t).y",
            "[1.0, 2.0, 3.0]",
            "raises TypeError",
            "options of `dataclasses.field` hold",
        ),
        (
            _FIELDS + "len(torch.unbind(P(t, batch_size=[3])))",
            "raises TypeError",
            "3",
            "defaults are those of torch",
        ),
        (
            _FIELDS + "P(t, batch_size=[3]).tolist()[0]",
            "{'x': tensor(1.)}",
            "{'x': tensor(1.), 'y': None}",
            "as by `to_dict`: a field without a value is `None`",
        ),
        (
            _FIELDS + ("stack = package.lazy_stack([P(t), P(t)])\n(stack.x, isinstance(stack, P))"),
            "([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]], True)",
            "([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]], False)",
            "a lazy stack of tensorclasses reads as one of them; its class is that of lazy stacks",
        ),
        (
            _KEYS + ("a = T(x=t)\na.z = 1\nlist(a.keys())"),
            "['x']",
            "raises AttributeError",
            "an attribute that is no key cannot be set",
        ),
        (
            "class T(package.TypedTensorDict):\n"
            "    x: torch.Tensor = torch.ones(2)\n"
            "list(T().keys())",
            "[]",
            "['x']",
            "a default fills the key",
        ),
        (
            _KEYS + "type(T(x=t) == T(x=t)).__name__",
            "'TensorDict'",
            "'T'",
            "operations keep the class",
        ),
        (
            _KEYS + "isinstance(T(x=t), TensorDict)",
            "False",
            "True",
            "it is a dense tensordict",
        ),
    ),
    *_rows(
        "Files and memory",
        (
            'nest.save(path)\nos.remove(path + "/b.memmap")\nlist(TensorDict.load(path).keys())',
            "['n']",
            "raises DamagedFileError",
            "a file that the metadata names and that is missing is an error, not a missing entry",
        ),
        (
            'nest.save(path)\nos.truncate(path + "/b.memmap", 4)\nTensorDict.load(path)["b"]',
            "[0.0, 0.0, 0.0]",
            "raises DamagedFileError",
            "a file that was cut short is an error; it is not filled up with zeros",
        ),
        (
            'TensorDict({"shape": t, "a": t}).save(path)\nsorted(TensorDict.load(path).keys())',
            "['a']",
            "['a', 'shape']",
            "no key is lost because the metadata uses the name",
        ),
        (
            'td.set_non_tensor("v", (1, 2))\ntd.save(path)\nTensorDict.load(path)["v"]',
            "[1, 2]",
            "(1, 2)",
            "a value comes back of the type that it had",
        ),
        (
            'td.set_non_tensor("v", 1j)\ntd.save(path)\nTensorDict.load(path)["v"]',
            "1j",
            "raises UnsafeFileError",
            "pickles are written and read only with allow_pickle=True",
        ),
        (
            'TensorDict({"n": {"x": t}, "a": t}).save(path)\nlist(TensorDict.load(path).keys())',
            "['a', 'n']",
            "['n', 'a']",
            "keys come back in their order",
        ),
        (
            'old = nest.memmap(path)\nnest.clone().zero_().memmap(path)\nold["b"]',
            "[0.0, 0.0, 0.0]",
            "[0.0, 1.0, 2.0]",
            "files are replaced, not written over: who maps the old ones keeps them",
        ),
        (
            'nest.save(path + "/x.tdz")\ndata = open(path + "/x.tdz", "rb").read()\n'
            "place = data.index(nest['b'].numpy().tobytes())\n"
            'end = open(path + "/x.tdz", "r+b")\nend.seek(place)\nend.write(b"?")\nend.close()\n'
            'TensorDict.load(path + "/x.tdz")["b"][1:]',
            "[1.0, 2.0]",
            "raises DamagedFileError",
            "the checksums of an archive are compared, unless verify=False",
        ),
        (
            'nest.memmap(path)\nnest.expand(9, 3).contiguous().memmap_like(path)["b"].shape',
            "[9, 3]",
            "raises DamagedFileError",
            "a file that is too short for a buffer is not made longer",
        ),
        (
            'c = t[:1].to(torch.complex128)\nTensorDict(a=t[:1], c=c).consolidate()["c"]',
            "raises RuntimeError",
            "[(1+0j)]",
            "leaves of every dtype are aligned to it",
        ),
        (
            "(nest.consolidate().clone().is_consolidated(), nest.consolidate().clone().is_locked)",
            "(False, False)",
            "(True, False)",
            "a clone is one copy of the block, and stays consolidated until an entry is replaced",
        ),
        (
            'nest.consolidate().consolidate(device="meta").device',
            "None",
            "device(type='meta')",
            "what is asked for is done, also for a consolidated tensordict",
        ),
        (
            "(nest.memmap()[:2].is_memmap(), nest.memmap()[:2].is_locked)",
            "(True, True)",
            "(False, False)",
            "a part has no folder of its own and may be changed; its leaves still map the files",
        ),
        (
            'text.memmap_(path)\ntext.update_({"s": NonTensorData("new", [3])})\n'
            'TensorDict.load(path)["s"]',
            "'new'",
            "'word'",
            "a value reaches the file when the tensordict is saved again, by memmap_()",
        ),
        (
            'nest.memmap().make_memmap_from_storage("c", t.untyped_storage(), [3])\n'
            'nest.memmap(path).make_memmap_from_storage("c", t.untyped_storage(), [3])',
            "[1.0, 2.0, 3.0]",
            "raises StorageError",
            "an entry that would be lost on loading is refused",
        ),
    ),
    *_rows(
        "Keys and writing",
        (
            'attempt(td.update, {"a": torch.zeros(3, 2), "b": torch.ones(5)})\ntd["a"].sum()',
            "0.0",
            "6.0",
            "a call that raises has changed nothing; `update_` too",
        ),
        (
            'nest.set_("n", TensorDict({"x": torch.zeros(3, 2), "z": t}, [3]))\n'
            'list(nest["n"].keys())',
            "['x']",
            "raises KeyPathError",
            "`set_` writes in place only; a key that is not there is told, not dropped",
        ),
        (
            'nest.update_({"n": {"x": torch.zeros(3, 2), "z": t}})\nlist(nest["n"].keys())',
            "['x']",
            "raises KeyPathError",
            "as for `set_`",
        ),
        (
            'nest.update({"m": {"u": t, "w": t}}, keys_to_update=[("m", "u")])\n'
            'list(nest["m"].keys())',
            "['u', 'w']",
            "['u']",
            "`keys_to_update` names what is written, also below a nested tensordict that is new",
        ),
        (
            'text["s", "k"] = t\ntext["s"]',
            "'word'",
            "raises KeyThroughLeafError",
            "a non-tensor entry is a leaf: a path through it is refused as one through a tensor",
        ),
        (
            'package.unravel_key(("a", 3))',
            "()",
            "raises InvalidKeyError",
            "what is no key is refused",
        ),
        (
            "package.unravel_key(())",
            "()",
            "raises InvalidKeyError",
            "the empty tuple names no entry",
        ),
        (
            '[nest.set(("n", str(i)), t) for i, _ in enumerate(nest.keys(True))]\n'
            'list(nest["n"].keys())',
            "raises RuntimeError",
            "['x', '0', '1', '2']",
            "a nested view iterates over the keys that were there when the loop began",
        ),
        (
            'nest.keys(True, True) == {"b", ("n", "x")}',
            "False",
            "True",
            "a view with nested keys compares as a set, as the view of a `dict` does",
        ),
        (
            'nest.keys(True, True) & {"b"}',
            "raises TypeError",
            "{'b'}",
            "such a view has the operations of a set",
        ),
        (
            "TensorDict({}, batch_size=[2, -3]).batch_size",
            "[2, -3]",
            "raises ValueError",
            "no tensor has a negative size",
        ),
        (
            'x = TensorDict({"b": torch.ones(3, 2), "s": "word"}, [3]).auto_batch_size_()\n'
            "x.batch_size",
            "[3]",
            "[3, 2]",
            "a non-tensor entry has no shape of its own, so it bounds no batch size",
        ),
        (
            'attempt(zero_and_raise, nest)\nnest["b"].sum()',
            "3.0",
            "0.0",
            "the context writes back also when it is left by an exception",
        ),
    ),
    *_rows(
        "Arithmetic",
        (
            '(t ** td)["b"]',
            "raises NotImplementedError",
            "[1.0, 2.0, 9.0]",
            "each operator has its reflected form",
        ),
        ('(2 ** td)["b"]', "raises NotImplementedError", "[1.0, 2.0, 4.0]", "as above"),
        ('(t % (td + 1))["b"]', "raises TypeError", "[0.0, 0.0, 0.0]", "as above"),
        (
            '(ints & torch.tensor([1, 2, 3]))["a"]',
            "raises RuntimeError",
            "[[1, 1], [0, 0], [1, 1]]",
            "a tensor is aligned with the batch dimensions, for `&` as for `+`",
        ),
        (
            'x = TensorDict({"a": torch.ones(2, 2)}, [2]) - TensorDict({"a":'
            " torch.tensor([1.0, 5.0])}, [2])\n"
            'x["a"]',
            "[[0.0, -4.0], [0.0, -4.0]]",
            "[[0.0, 0.0], [-4.0, -4.0]]",
            "leaves of different rank share their batch dimensions; these are aligned, not"
            " the last ones",
        ),
        (
            'td.clamp(min=td, max=torch.tensor(1.0))["b"]',
            "raises ValueError",
            "[0.0, 1.0, 1.0]",
            "each bound is a number, a tensor or a tensordict on its own",
        ),
        (
            "td.clamp(td, 2)",
            "raises ValueError",
            "raises TypeError",
            "torch has no clamp between a tensor and a number; its own error is raised",
        ),
        (
            "td.lock_()\ntd.clamp(min=0.5).is_locked, td.clamp(0.5, 1).is_locked",
            "(True, False)",
            "(False, False)",
            "the result of `clamp` is not locked, whichever bound is given",
        ),
        (
            'td.add(td.select("a"), default=0.5)["b"]',
            "raises TypeError",
            "[0.5, 1.5, 2.5]",
            "a number stands for the leaf that is missing on one side",
        ),
        (
            'td < "x"',
            "False",
            "raises TypeError",
            "a comparison that has no answer raises, as for tensors",
        ),
        (
            '(text == 1)["s"]',
            "TensorDict(batch_size=[3], fields={})",
            "'word'",
            "a non-tensor entry passes through a comparison with a number or a tensor",
        ),
        (
            'torch.concat([td, td])["b"].shape',
            "raises TypeError",
            "[6]",
            "an alias of a torch function is that function",
        ),
        (
            "torch.cat([td, td], -2).batch_size",
            "[6]",
            "raises TensorDictIndexError",
            "dimensions are batch dimensions; the reference warns, and goes on with a"
            " dimension of the leaves",
        ),
        (
            "torch.stack([td, td], -3).batch_size",
            "[2, 3]",
            "raises TensorDictIndexError",
            "as above; `a` and `b` of the reference's result have the shapes `(3, 2, 2)` and"
            " `(3, 2)`",
        ),
    ),
    *_rows(
        "Reductions",
        (
            'torch.prod(td)["b"], torch.max(td)["b"], torch.all(td)',
            "raises TypeError",
            "(0.0, 2.0, False)",
            "a torch function for each reduction: `all`, `amax`, `amin`, `any`, `max`,"
            " `min`, `prod` too",
        ),
        ("wide.prod((0, 1)).batch_size", "[4]", "[]", "a tuple reduces all of its dimensions"),
        ("wide.amax((0, 1)).batch_size", "[4]", "[]", "as above; `amin` and `quantile` too"),
        (
            "wide.max((0, 1))[0].batch_size",
            "[4]",
            "raises TypeError",
            "`max` and `min` give indices, which exist for one dimension at a time",
        ),
    ),
    *_rows(
        "Indexing and shapes",
        (
            "wide[((0, 1, 2), (1, 0, 1))].batch_size",
            "[]",
            "[3]",
            "a sequence of integers is an index tensor; the leaf has the shape `(3,)` in both",
        ),
        (
            "empty[torch.tensor([7])].batch_size",
            "[1, 4]",
            "raises IndexError",
            "a tensordict without leaves is checked as one with leaves",
        ),
        (
            "empty.repeat_interleave(torch.tensor([1, 2]), dim=0).batch_size",
            "[3, 4]",
            "raises TensorDictShapeError",
            "as above",
        ),
        (
            'td[1:2] = single\ntd["b"]',
            "raises RuntimeError",
            "[0.0, 9.0, 2.0]",
            "a value whose batch size broadcasts to the indexed part is written",
        ),
        (
            'td[1] = td[:1]\ntd["b"]',
            "[0.0, 0.0, 2.0]",
            "raises TensorDictShapeError",
            "a value with more batch dimensions than the indexed part does not broadcast to it",
        ),
        (
            "wide.gather(0, torch.tensor([0, 1])).batch_size",
            "[2]",
            "raises TensorDictIndexError",
            "an index has one dimension for each batch dimension, as in `torch.gather`",
        ),
        (
            'TensorDict({"a": torch.ones(1)}, [1]).squeeze()["a"]',
            "raises TypeError",
            "1.0",
            "`squeeze()` of a batch of one element",
        ),
        (
            'TensorDict({"a": torch.ones(1, 3, 1)}, [1, 3, 1]).squeeze((0, 2)).batch_size',
            "raises TypeError",
            "[3]",
            "`squeeze` takes a tuple of dimensions, as in torch",
        ),
        (
            'TensorDict({"a": torch.tensor(1.0)}, []).repeat()["a"]',
            "raises TypeError",
            "1.0",
            "no batch dimension, no number of repeats: a copy",
        ),
        (
            "len(td.unbind())",
            "raises TypeError",
            "3",
            "the dimension is 0 if none is given, as in torch",
        ),
        (
            'x = TensorDict({"n": {"x": torch.ones(2, 3, 2)}}, [2, 3])\n'
            'deep.expand_as(x)["n"].batch_size',
            "[2, 3]",
            "[2, 3, 2]",
            "a nested tensordict keeps the batch dimensions that it has beyond its parent's",
        ),
        (
            "deep.expand_as(empty.view(4, 3)).batch_size",
            "raises KeyError",
            "[4, 3]",
            "only the batch size of the other one matters",
        ),
    ),
    *_rows(
        "Names",
        (
            "(named == 1).names",
            "[None]",
            "['time']",
            "a comparison keeps names, as arithmetic does",
        ),
        (
            "TensorDict({}, [3], names=[1]).names",
            "[1]",
            "raises TypeError",
            "a name is a string or None",
        ),
        (
            "wide.refine_names(..., ...).names",
            "[None, None]",
            "raises ValueError",
            "an ellipsis stands for the dimensions that the others leave, so there is one at most",
        ),
        (
            'deep.reshape(3, 1)["n"].names',
            "[None, None, None]",
            "[None, None, 'q']",
            "a nested tensordict keeps the names of the dimensions that it has beyond its parent's;"
            " `view`, `tile`, `broadcast_to` and `expand_as` too",
        ),
        ('deep.amax(0)["n"].names', "[]", "['q']", "as above; `amin` too"),
        (
            'x = TensorDict({"x": torch.ones(1, 3, 2)}, [1, 3, 2], names=["p", "q", "r"])\n'
            'TensorDict({"n": x}, [1, 3]).squeeze()["n"].names',
            "[None, None]",
            "['q', 'r']",
            "as above",
        ),
    ),
    *_rows(
        "Copies and pytree",
        (
            'x = copy.deepcopy(TensorDict({"n": nest, "m": nest}, [3]))\nx["n"] is x["m"]',
            "False",
            "True",
            "a deep copy keeps what was shared shared, for leaves too",
        ),
        (
            'list(text.separates("b").keys())',
            "['s', 'b']",
            "['b']",
            "the result has the keys that were asked for",
        ),
        (
            "pytree.tree_map(lambda leaf: leaf[:2], named).names",
            "[None]",
            "['time']",
            "names stay where the number of batch dimensions does",
        ),
        (
            "pytree.tree_map(lambda leaf: leaf[None, :2], named).batch_size",
            "[1]",
            "[1, 2]",
            "the batch dimensions of the result follow from the ranks of its leaves",
        ),
        (
            "pytree.tree_map(lambda leaf: None, named) is None",
            "True",
            "False",
            "the structure of a tree is kept whatever its leaves become",
        ),
    ),
    *_rows(
        "Padding, merging, comparing",
        (
            "list(package.pad_sequence([nest, nest]).keys())",
            "['n', 'b']",
            "['b', 'n']",
            "the keys keep their order",
        ),
        (
            "package.pad_sequence([named, named]).names",
            "[None, None]",
            "[None, 'time']",
            "the names that all samples have are kept, as by `torch.stack`",
        ),
        (
            'package.assert_close(TensorDict(a=t), TensorDict(a="word"))',
            "raises AttributeError",
            "raises AssertionError",
            "entries that differ in kind, or in shape, are not close",
        ),
        (
            "package.merge_tensordicts(TensorDict(a=t), TensorDict(a={'x': t}))",
            "raises AttributeError",
            "raises KeyMismatchError",
            "the error names the key",
        ),
    ),
    *_rows(
        "Conversions",
        (
            'rows = __import__("numpy").array([("x",), ("y",)], dtype=[("s", "U3")])\n'
            'str(TensorDict.from_struct_array(rows)[1]["s"])',
            "\"['x' 'y']\"",
            "'y'",
            "a text of a record belongs to its row, so that indexing takes it along",
        ),
        (
            'rows = TensorDict({"n": TensorDict({"x": torch.ones(1, 1)}, [1, 1])}, [1])\n'
            "TensorDict(b=rows).tolist(tolist_first=True)",
            "{'b': [{'n': {'x': tensor([1.])}}]}",
            "{'b': [{'n': [{'x': tensor(1.)}]}]}",
            "`tolist_first` holds at every level",
        ),
        (
            'made = TensorDict.from_pytree({("u", "v"): t})\nlist(made.to_pytree())',
            "['u']",
            "[('u', 'v')]",
            "a pytree comes back as it was, whatever the keys of its dictionaries are",
        ),
        (
            'TensorDict.from_pytree({"_pytree_type": t}).to_pytree()',
            "{}",
            "{'_pytree_type': tensor([1., 2., 3.])}",
            "as above",
        ),
        (
            'Pair = __import__("collections").namedtuple("Pair", "a b")\n'
            "TensorDict.from_pytree(Pair(t, [1, 2])).to_pytree().b",
            "[1, 2]",
            "[tensor(1), tensor(2)]",
            "the fields of a named tuple are containers, too: a list is no tensor",
        ),
        (
            'list(TensorDict({"a.b": t, "a": {"b": {"c": t}}}).state_dict())',
            "['a.b', 'a.b.c']",
            "raises KeyError",
            "a flat key that stands for a leaf and for a level cannot be loaded again",
        ),
    ),
    *_rows(
        "Non-tensor data",
        (
            'text[0] = 5.0\ntext["b"], text[0]["s"], text[1]["s"]',
            "([5.0, 1.0, 2.0], 5.0, 'word')",
            "([5.0, 1.0, 2.0], 'word', 'word')",
            "a number or a tensor that is written to a part is for tensors; other entries stay",
        ),
        (
            'TensorDict({"s": "word"}, [3], device="cpu").get("s").device',
            "device(type='cpu')",
            "None",
            "a value that is no tensor is on no device",
        ),
        (
            'text.lock_().get("s").is_locked',
            "True",
            "raises AttributeError",
            "it has no entries, so nothing to lock",
        ),
    ),
    *_rows(
        "Lazy stacks",
        (
            "stack = package.lazy_stack([single, TensorDict(a=torch.ones(2))])\n"
            "attempt(stack[1].lock_)\nattempt(stack.set, 'z', torch.zeros(2))\n"
            "list(stack[0].keys())",
            "['a', 'b', 'z']",
            "['a', 'b']",
            "a write that fails for one element changes none",
        ),
        (
            "stack = package.lazy_stack([single, TensorDict(a=torch.ones(2))])\n"
            "stack.clear()\nlist(stack[0].keys())",
            "['b']",
            "[]",
            "clear() leaves no entry in any element",
        ),
        (
            "parts = [wide[:, 0].exclude('a').set('k', t), td]\n"
            "package.lazy_stack(parts)[:, 0] = 7\nparts[0]['k']",
            "[1.0, 2.0, 3.0]",
            "[7.0, 2.0, 3.0]",
            "a number that is written to a part of the batch goes to every leaf of the elements",
        ),
        (
            "stack = package.lazy_stack([td.select('b'), nest])\n"
            "list(stack.flatten_keys()[1].keys())",
            "raises RuntimeError",
            "['b', 'n.x']",
            "what needs no stacked entry is done element by element, also where keys differ",
        ),
        (
            "parts = [TensorDict({'a': torch.ones(3, n)}, [3]) for n in (1, 2)]\n"
            "package.lazy_stack(parts).sum(1)[1]['a']",
            "raises RuntimeError",
            "[3.0, 3.0]",
            "a reduction over other dimensions than the stacked one needs no stacked entry either",
        ),
        (
            "torch.vmap(lambda td: td + 1)(package.lazy_stack([td, td])).batch_size",
            "[2, 2, 3]",
            "raises TensorDictShapeError",
            "elements are the leaves that vmap sees; make the stack dense to map over it",
        ),
    ),
    *_rows(
        "Data loading",
        (
            'tds = [TensorDict({"a": torch.ones(n), "b": torch.tensor(n)}) for n in (1, 2)]\n'
            'list(package.collate(tds, pad_keys={"a": 0}).keys())',
            "['b', 'a']",
            "['a', 'b']",
            "an entry that is padded keeps its place among the keys",
        ),
        (
            "torch.utils.data.default_collate([td, td]).batch_size",
            "[2, 3]",
            "raises TypeError",
            "importing tdcompile changes nothing in torch: pass `collate_fn=tdcompile.collate`",
        ),
    ),
    *_rows(
        "Errors",
        ('td["z"]', "raises KeyError", "raises KeyPathError", "a `KeyError` that lists the keys"),
        (
            'td["b"] = torch.ones(5)\ntd["b"]',
            "raises RuntimeError",
            "raises TensorDictShapeError",
            "a `RuntimeError` and a `ValueError` that names the key path",
        ),
        (
            'td.lock_().set("z", t)',
            "raises RuntimeError",
            "raises LockedError",
            "a `RuntimeError` that says what is allowed while locked",
        ),
        (
            "wide.permute(0, 0)",
            "raises ValueError",
            "raises TensorDictIndexError",
            "an `IndexError`, a `ValueError` and a `RuntimeError`",
        ),
        (
            "wide.all(5)",
            "raises RuntimeError",
            "raises TensorDictIndexError",
            "as above: one class for every dimension that is not there",
        ),
        (
            "td.get(3)",
            "raises KeyError",
            "raises InvalidKeyError",
            "a `KeyError`, a `TypeError` and a `RuntimeError`",
        ),
    ),
]

TOPICS = tuple(dict.fromkeys(row.topic for row in DIFFERENCES))

_HEAD = """\
<!-- made by: python tests/pages.py -->

# Differences from the tensordict package

`tdcompile.TensorDict` does what `tensordict.TensorDict` of version {version} does. Where that is
not one rule, or contradicts itself or torch, it follows a rule; this page lists these places.
Each row is a program that the tests run on both packages. Names that tdcompile does not have raise
`AttributeError` and are not listed.

Every program starts with these names:

```python
{preamble}```

A tensor and a batch size are printed as lists.
"""

_NOTES = {
    "Errors": (
        "An error of tdcompile is a subclass of the one that the reference raises, unless a row"
        " above says otherwise. Its message says what was expected, what was found, at which key"
        " path, and what to do. The classes are in `tdcompile.errors`; the rows show some."
    ),
}


def _cell(lines: str) -> str:
    return "<br>".join(f"`{line}`" for line in lines.split("\n"))


def page() -> str:
    """The text of ``docs/differences.md``."""
    parts = [_HEAD.format(version=reference.__version__, preamble=PREAMBLE)]
    for topic in TOPICS:
        parts.append(f"\n## {topic}\n")
        if topic in _NOTES:
            parts.append(textwrap.fill(_NOTES[topic], 100) + "\n")
        parts.append("| program | the reference | tdcompile | rule |\n|---|---|---|---|")
        for row in DIFFERENCES:
            if row.topic == topic:
                cells = (_cell(row.code), _cell(row.reference), _cell(row.tdcompile), row.why)
                parts.append(f"| {' | '.join(cells)} |")
    return "\n".join(parts) + "\n"
