"""Merge nodes that take the same view of the same tensor.

A leaf-wise operation between a tensordict and a tensor aligns the tensor with every leaf: with 50
leaves of one rank the graph has 50 equal ``reshape`` nodes. They cost nothing at run time, but each
is traced again by AOTAutograd and lowered again by Inductor.

Key name: :class:`MergeViews`.
"""

from __future__ import annotations

import operator
import types
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from typing_extensions import override

from tdcompile.backend.passes.base import GraphPass

if TYPE_CHECKING:
    from collections.abc import Callable

_VIEW_METHODS = frozenset(
    [
        "expand",
        "expand_as",
        "movedim",
        "moveaxis",
        "permute",
        "reshape",
        "swapaxes",
        "swapdims",
        "t",
        "transpose",
        "unflatten",
        "unsqueeze",
        "view",
        "view_as",
        "squeeze",
        "flatten",
        "narrow",
        "select",
    ]
)

_VIEW_FUNCTIONS: frozenset[Callable[..., Any]] = frozenset(
    getattr(torch, name) for name in _VIEW_METHODS if hasattr(torch, name)
)

# In Dynamo's graphs these types of callee are plain torch or Python functions; a higher-order
# operator or a custom operator is an object of another type, and may do anything to its operands.
_PLAIN_CALLEES = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
)

_IN_PLACE_OPERATORS = frozenset(
    getattr(operator, name)
    for name in (
        [
            "iadd",
            "iand",
            "iconcat",
            "ifloordiv",
            "ilshift",
            "imatmul",
            "imod",
            "imul",
            "ior",
            "ipow",
            "irshift",
            "isub",
            "itruediv",
            "ixor",
            "setitem",
            "delitem",
        ]
    )
)

# Their names end in an underscore for Python's sake only.
_UNDERSCORED_OPERATORS = frozenset([operator.and_, operator.or_, operator.not_, operator.is_])

_OBSERVING_METHODS = frozenset(["backward", "register_hook", "retain_grad"])


class MergeViews(GraphPass):
    """Keep the first of several equal view nodes, and let the others' users read it.

    Sound when: nothing in the graph writes to a tensor, changes its metadata, switches a mode
    (grad, autocast, inference) or is opaque (a module, a higher-order or custom operator), and the
    merged nodes are no output of the graph, so nobody can tell one tensor from two. A graph where
    that is not plain is left alone.

    Unsound when: a graph writes in place, for example ``a = x.reshape(-1); a.add_(1);
    b = x.reshape(-1)`` with an ``x`` that is not contiguous, where ``a`` is a copy.
    """

    name = "merge_views"
    stage = "graph"

    @override
    def __call__(self, graph: fx.Graph) -> int:
        nodes = list(graph.nodes)
        if not all(_is_plain(node) for node in nodes):
            return 0
        outputs = {
            node for output in nodes if output.op == "output" for node in output.all_input_nodes
        }
        first: dict[object, fx.Node] = {}
        merged = 0
        for node in nodes:
            if node in outputs or not _is_view(node):
                continue
            # Operands were merged before their users are looked at, so chains of views merge too.
            same = (node.op, node.target, _frozen(node.args), _frozen(node.kwargs))
            kept = first.setdefault(same, node)
            if kept is not node:
                node.replace_all_uses_with(kept)
                graph.erase_node(node)
                merged += 1
        return merged


def _is_view(node: fx.Node) -> bool:
    if node.op == "call_method":
        return node.target in _VIEW_METHODS
    return node.op == "call_function" and node.target in _VIEW_FUNCTIONS


def _is_plain(node: fx.Node) -> bool:
    """Return whether a node only computes a new value from its operands."""
    if node.op in ("placeholder", "get_attr", "output"):
        return True
    if "out" in node.kwargs:
        return False
    if node.op == "call_method":
        name = str(node.target)
        return (
            not name.endswith("_") and not name.startswith("_") and name not in _OBSERVING_METHODS
        )
    if node.op != "call_function" or not isinstance(node.target, _PLAIN_CALLEES):
        return False
    if node.target in _IN_PLACE_OPERATORS or node.kwargs.get("inplace"):
        return False
    if node.target in _UNDERSCORED_OPERATORS:
        return True
    # A leading underscore marks switches of modes, a trailing one marks writes.
    name = getattr(node.target, "__name__", "_")
    return not name.startswith("_") and not name.endswith("_")


def _frozen(value: Any) -> object:
    """Return a hashable stand-in; equal stand-ins mean equal operands, of equal types."""
    if isinstance(value, fx.Node):
        return value
    if isinstance(value, (tuple, list)):
        return ("sequence", *(_frozen(item) for item in value))
    if isinstance(value, dict):
        return ("mapping", *((key, _frozen(item)) for key, item in value.items()))
    if isinstance(value, slice):
        return ("slice", _frozen(value.start), _frozen(value.stop), _frozen(value.step))
    try:
        hash(value)
    except TypeError:
        return ("identity", id(value))
    return (type(value), value)


PASS = MergeViews()
