"""Graph breaks of ours: one table of categories, each with an action for the user.

Key names: :data:`CATEGORIES`, :func:`break_graph`, :func:`skip_frame`.

Invariant: every break goes through here, its category is a constant, and its first hint is an
action.
"""

from __future__ import annotations

from typing import Any, NoReturn

from tdcompile._compat import dynamo as seam

__all__ = ["CATEGORIES", "break_graph", "skip_frame"]

#: category -> (explanation, hints)
CATEGORIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "tdcompile: keys renamed while iterating": (
        "A loop over the entries removed one key and added another; which keys it meets then"
        " depends on the memory layout of the dictionary.",
        ("Loop over list(td.keys()) instead.",),
    ),
    "tdcompile: tensordict under construction": (
        "A function got a tensordict whose constructor has not finished, so it has no state to"
        " track; the function runs eagerly.",
        ("Compile the function that builds the tensordict, not a part of its constructor.",),
    ),
    "tdcompile: copy of a tensordict in itself": (
        "A tensordict that holds itself has no end of nested copies.",
        ("Delete the entry that leads back before the copy.",),
    ),
    "tdcompile: values picked by a tensor": (
        "A stack of values that are no tensors is indexed by a tensor, whose numbers a trace does"
        " not see.",
        ("Exclude the non-tensor entries before indexing, or index by integers and slices.",),
    ),
    "tdcompile: copy of a non-tensor entry that was written": (
        "A copy of a non-tensor entry is looked at after the entry itself was written to; the copy"
        " has the values of before, which the trace did not keep.",
        ("Read the copy before writing to the original.",),
    ),
    "tdcompile: late look into a copied lazy stack": (
        "A copy holds a lazy stack that was not looked at before a tensordict was edited, and the"
        " edited one may be an element of it.",
        ("Read the lazy stack before the copy is made, or copy it outside the function.",),
    ),
    "tdcompile: nested tensordict of a subclass": (
        "Locks and shallow copies reach into nested tensordicts; a subclass has no tracker, so what"
        " the call does to it is not known in the trace.",
        ("Nest plain tensordicts, or call lock_() and copy() outside the compiled function.",),
    ),
    "tdcompile: memory of a tensordict": (
        "The call writes or reads files, moves leaves to shared memory or looks at addresses, which"
        " a graph of tensor operations cannot hold; the graph ends before the call and another one"
        " starts behind it.",
        (
            "Make the call outside the compiled function, or compile without fullgraph=True: only"
            " this call runs eagerly.",
        ),
    ),
    "tdcompile: unlock of a held tensordict": (
        "Whether unlock_() is allowed depends on the locked tensordicts that hold this one, which a"
        " trace does not see.",
        ("Unlock the root of the tree, or call unlock_() outside the compiled function.",),
    ),
}


def break_graph(category: str, context: Any) -> NoReturn:
    """Stop tracing here; what follows runs eagerly or in another graph."""
    explanation, hints = CATEGORIES[category]
    seam.graph_break(category, str(context), explanation, hints)


def skip_frame(category: str, context: Any) -> NoReturn:
    """Run the frame eagerly."""
    explanation, hints = CATEGORIES[category]
    seam.skip_frame(category, str(context), explanation, hints)
