"""The backend object: FX passes, then Inductor.

Key names: :class:`TensorDictBackend`, :data:`tdcompile_backend`.

Invariant: two backends with equal settings are equal. Dynamo compares the backend of a compiled
frame with the one that is asked for; a new object that compared different would compile again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tdcompile._compat import inductor
from tdcompile._compat.guards import request_audit
from tdcompile.backend.options import parse_options
from tdcompile.backend.passes.manager import PassManager
from tdcompile.config import settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import fx


class TensorDictBackend:
    """Backend for ``torch.compile`` that knows graphs made from tensordicts.

    A graph that reaches it holds tensors only, whatever the traced code handled. With
    ``TDCOMPILE_DISABLE=1`` it is Inductor alone.

    Args:
        mode: An Inductor mode; ``torch.compile(mode=...)`` wins over it.
        options: Options as :func:`tdcompile.backend.list_options` has them; those of
            ``torch.compile(options=...)`` win over them, name by name. The dictionary is copied.

    Raises:
        UnknownOptionError: A name is unknown or a value of one of ours is illegal.

    Example:
        >>> backend = TensorDictBackend(options={"epilogue_fusion": False})
        >>> torch.compile(fn, backend=backend)     # doctest: +SKIP
    """

    # Dynamo prints it and sets it as the compiler's name.
    __name__ = "tdcompile"

    def __init__(self, mode: str | None = None, options: Mapping[str, Any] | None = None) -> None:
        if mode is not None or options:
            parse_options(mode, options)
        self.mode = mode
        self.options: dict[str, Any] = dict(options or {})

    def __repr__(self) -> str:
        return f"TensorDictBackend(mode={self.mode!r}, options={self.options!r})"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, TensorDictBackend)
            and self.mode == other.mode
            and self.options == other.options
        )

    def __hash__(self) -> int:
        # Values may be unhashable; equal options have equal names.
        return hash((self.mode, frozenset(self.options)))

    def __call__(
        self,
        graph_module: fx.GraphModule,
        example_inputs: Sequence[Any],
        *,
        mode: str | None = None,
        options: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> Callable[..., Any]:
        """Compile one graph; Dynamo calls this.

        Args:
            graph_module: Dynamo's graph. It is rewritten in place and then Inductor's.
            example_inputs: Its fake inputs.
            mode: What ``torch.compile(mode=...)`` got.
            options: What ``torch.compile(options=...)`` got; not changed.
            name: What ``torch.compile(name=...)`` got, on torch 2.15.

        Returns:
            The compiled callable.

        Raises:
            UnknownOptionError: As for the constructor. Dynamo shows it as the reason of its own
                ``BackendCompilerFailed``.
        """
        asked = parse_options(mode or self.mode, {**self.options, **(options or {})})
        if asked.audit:
            request_audit()
        manager = PassManager(() if settings().disable else asked.passes)
        if any(manager.run("graph", graph_module.graph).values()):
            graph_module.recompile()
        return inductor.compile_with_inductor(
            graph_module,
            example_inputs,
            mode=asked.mode,
            options=manager.inductor_options(asked.inductor),
            name=name,
        )


tdcompile_backend = TensorDictBackend()
"""The backend behind the name ``"tdcompile"``: no settings of its own, all are the caller's."""
