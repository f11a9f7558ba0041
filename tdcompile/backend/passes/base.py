"""What an FX pass of the backend is.

Key names: :class:`GraphPass`, :data:`Stage`.

Invariant: a pass has an id that says what it does, over processes, so that compiled code may be
cached; the id changes with the source of the pass.
"""

from __future__ import annotations

import hashlib
import inspect
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from torch import fx

Stage = Literal["graph", "post_grad"]
"""When a pass runs: ``graph`` is Dynamo's graph before autograd (torch functions and tensor
methods); ``post_grad`` is the forward or the backward graph after it (ATen operators, no mutation
of intermediates)."""


class GraphPass(ABC):
    """A rewrite of an FX graph.

    A subclass states under ``Sound when`` why a rewritten graph computes the same.

    Attributes:
        name: The name in the option ``tdcompile.passes``.
        stage: When it runs.
    """

    name: ClassVar[str]
    stage: ClassVar[Stage]

    @abstractmethod
    def __call__(self, graph: fx.Graph) -> int:
        """Rewrite ``graph`` in place.

        Returns:
            How many nodes went away or changed; 0 means that the graph is as it was.
        """

    def uuid(self) -> str:
        """Return an id that two processes with the same source agree on."""
        source = Path(inspect.getfile(type(self))).read_bytes()
        return f"{self.name}:{hashlib.sha256(source).hexdigest()}"
