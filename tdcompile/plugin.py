"""The one switch: :func:`install` teaches Dynamo about tensordicts, :func:`uninstall` undoes it.

Key names: :func:`install`, :func:`uninstall`, :func:`is_installed`, :class:`Installation`.

Invariants: nothing happens at import; an installation is complete or has not happened; the last
undo gives back every table and attribute of Dynamo as it was and resets Dynamo, since compiled
frames hold what was installed; on a torch that we do not know, Dynamo is not touched, one warning
says why, and programs run with stock PyTorch.

Note [Who holds the installation]. Uses are counted: each :func:`install` is one, ended by its
handle or by :func:`uninstall`. ``torch.compile(fn, backend="tdcompile")`` installs by itself: the
entry point names ``tdcompile_backend`` of this module, a module ``__getattr__`` serves it, and
``torch.compile`` asks for it when it wraps ``fn``, before any trace. That use is held by the
process, whoever compiles, and :func:`uninstall` ends it. Afterwards functions that were compiled
before still run (stock tracing, then Inductor); the next ``torch.compile`` with the name installs
again.
"""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Any

from tdcompile.config import settings
from tdcompile.errors import ContractBreachError, TdcompileWarning, UnsupportedTorchError
from tdcompile.patching import PatchSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from tdcompile.backend.backend import TensorDictBackend

    tdcompile_backend: TensorDictBackend

__all__ = ["Installation", "install", "is_installed", "uninstall"]

BACKEND_NAME = "tdcompile"
BACKEND_TARGET = "tdcompile.plugin:tdcompile_backend"

_lock = threading.RLock()
_warned: set[str] = set()


class Installation:
    """One use of the plug-in; ends at :meth:`uninstall` or at the end of a ``with`` block.

    Attributes:
        is_active: Whether this use is in force. It is not after its end, and never was where
            ``install()`` declined.
    """

    def __init__(self, is_active: bool) -> None:
        self.is_active = is_active

    def __repr__(self) -> str:
        return f"<tdcompile installation, {'active' if self.is_active else 'not active'}>"

    def uninstall(self) -> None:
        """End this use; the last one to end restores Dynamo. A second call is harmless.

        Raises:
            PatchConflictError: Somebody replaced one of our values since; nothing has changed.
        """
        with _lock:
            if self.is_active:
                _state.release(self)

    def __enter__(self) -> Installation:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.uninstall()


class _State:
    """What is in force in this process; every method runs under the lock."""

    def __init__(self) -> None:
        self.uses: list[Installation] = []
        self.automatic: Installation | None = None
        self.patches: PatchSet | None = None
        self.end_kinds: Callable[[], None] = lambda: None
        self.backend_before: object = None

    def acquire(self) -> Installation:
        if not self.uses:
            patches = PatchSet.merged("tdcompile", _patch_sets())
            patches.apply()
            self.patches = patches
            self.end_kinds = _serve_kinds()
            self.backend_before = _announce_backend()
        use = Installation(is_active=True)
        self.uses.append(use)
        return use

    def release(self, use: Installation) -> None:
        if len(self.uses) == 1:
            assert self.patches is not None
            # First, since it may refuse; then nothing has changed.
            self.patches.undo()
            self.patches = None
            self.end_kinds()
            _forget_backend(self.backend_before)
            _reset_dynamo()
        self.uses.remove(use)
        use.is_active = False
        if use is self.automatic:
            self.automatic = None


_state = _State()


def install(*, strict: bool = False) -> Installation:
    """Teach Dynamo about tensordicts, for this process.

    Calls may nest: Dynamo is restored when the last use ends.

    Args:
        strict: Raise where ``install()`` would decline with a warning.

    Returns:
        A handle with ``uninstall()``, also usable in ``with``. With ``TDCOMPILE_DISABLE=1``, and
        where the installed torch is not supported, it is not active and Dynamo is as it was.

    Raises:
        PatchConflictError: Another library holds a place that we need; nothing has changed.
        UnsupportedTorchError: ``strict`` and torch is outside the supported range.
        ContractBreachError: ``strict`` and a private name that we need has moved.

    Example:
        >>> with install():
        ...     is_installed()
        True
    """
    with _lock:
        if settings().disable:
            return Installation(is_active=False)
        if not _state.uses:
            refusal = _refusal()
            if refusal is not None:
                if strict:
                    raise refusal
                _warn_once(str(refusal))
                return Installation(is_active=False)
        return _state.acquire()


def uninstall() -> None:
    """End the use of ``torch.compile(backend="tdcompile")``, and that of the latest ``install()``.

    Harmless when nothing is installed.

    Raises:
        PatchConflictError: Somebody replaced one of our values since; nothing has changed.
    """
    with _lock:
        explicit = [use for use in _state.uses if use is not _state.automatic]
        for use in (*explicit[-1:], _state.automatic):
            if use is not None:
                use.uninstall()


def is_installed() -> bool:
    """Return whether Dynamo knows about tensordicts now."""
    return bool(_state.uses)


def _install_for_backend() -> None:
    """Hold the plug-in for ``torch.compile(backend="tdcompile")``, once for the process."""
    with _lock:
        if not _state.uses:
            use = install()
            _state.automatic = use if use.is_active else None


def _refusal() -> UnsupportedTorchError | ContractBreachError | None:
    """Return why the installed torch will not do, or None."""
    from tdcompile._compat import contract, version

    found = ".".join(map(str, version.torch_version()))
    if not version.is_supported():
        return UnsupportedTorchError(
            f"tdcompile supports torch {version.supported_range()}, found {found}. Dynamo is left "
            f"as it is: tensordicts work, and compile as with stock PyTorch."
        )
    # Not the optional ones: some of them load Inductor, which a caller may never need.
    breaches = contract.verify(name for name in contract.CONTRACT if name.required)
    if breaches:
        lines = "\n".join(f"  {breach}" for breach in breaches)
        return ContractBreachError(
            f"torch {found} lacks private names that tdcompile needs. Dynamo is left as it is: "
            f"tensordicts work, and compile as with stock PyTorch. Please report:\n{lines}"
        )
    return None


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, TdcompileWarning, stacklevel=3)


def _patch_sets() -> Iterable[PatchSet]:
    from tdcompile.guards import policy
    from tdcompile.variables import registry

    return (*registry.patches(), *policy.patches())


def _serve_kinds() -> Callable[[], None]:
    from tdcompile.variables import registry

    return registry.serve_kinds()


def _announce_backend() -> object:
    from tdcompile._compat import backends

    return backends.announce(BACKEND_NAME, BACKEND_TARGET)


def _forget_backend(before: object) -> None:
    from tdcompile._compat import backends
    from tdcompile.backend.backend import tdcompile_backend

    backends.forget(BACKEND_NAME, tdcompile_backend, before)


def _reset_dynamo() -> None:
    from tdcompile._compat import dynamo

    dynamo.reset()


def __getattr__(name: str) -> Any:
    # Asked for by the entry point; see Note [Who holds the installation].
    if name == "tdcompile_backend":
        from tdcompile.backend.backend import tdcompile_backend

        _install_for_backend()
        return tdcompile_backend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
