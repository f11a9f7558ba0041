"""Every exception and warning class of the package, each with its cause and its fix.

Key names: :class:`TdcompileError` (base), :class:`TensorDictShapeError`,
:class:`TensorDictIndexError`, :class:`NameConflictError`, :class:`KeyPathError`,
:class:`InvalidKeyError`, :class:`UnknownFieldError`, :class:`KeyMismatchError`,
:class:`KeyThroughLeafError`, :class:`LockedError`, :class:`DistributedError`, :class:`WorkerError`,
:class:`StorageError`, :class:`DamagedFileError`, :class:`UnsafeFileError`,
:class:`UnsupportedTorchError`, :class:`ContractBreachError`, :class:`PatchConflictError`,
:class:`GuardAuditError`, :class:`UnknownOptionError`, :class:`TdcompileWarning`.

Invariant: a message says what was expected, what was found, at which key path, and what to do.
This module imports nothing, not even torch.
"""

from __future__ import annotations


class TdcompileError(Exception):
    """Base of every exception that this package raises on its own account."""


class TensorDictShapeError(TdcompileError, RuntimeError, ValueError):
    """A leaf or an operand does not fit the batch size.

    Cause: the leading dimensions of a value differ from ``td.batch_size``.
    Fix: reshape the value, or change ``td.batch_size`` first.

    It is a ``RuntimeError`` since torch raises that for shapes, and a ``ValueError`` by nature.
    """


class TensorDictIndexError(TdcompileError, IndexError, ValueError, RuntimeError):
    """An index or a dimension number does not fit the batch size.

    Cause: ``td[0, 0, 0]`` with two batch dimensions, or ``td.unbind(2)``; trailing dimensions of
    the leaves do not count.
    Fix: index leaves (``td["x"]``) beyond the batch size, or change ``td.batch_size`` first.

    It is an ``IndexError`` as in torch, and a ``ValueError`` and a ``RuntimeError`` since the
    tensordict package raises these for some of the same mistakes.
    """


class NameConflictError(TdcompileError, RuntimeError):
    """Two names were given to one dimension.

    Cause: ``td.refine_names("time")`` where the dimension is already called ``"step"``.
    Fix: ``td.rename_(step="time")``, or use the name that is there.
    """


class KeyPathError(TdcompileError, KeyError):
    """A key path is malformed, absent, or leads through something that is not a tensordict.

    Cause: ``td["a", "b"]`` where ``"a"`` is absent or a tensor.
    Fix: look at the keys that the message lists.
    """

    def __str__(self) -> str:
        # KeyError shows the repr of its argument; a message with quotes in it reads badly that way.
        return "".join(str(argument) for argument in self.args)


class InvalidKeyError(KeyPathError, TypeError, RuntimeError):
    """Something that is no key was used as one.

    Cause: ``td.get(3)``, ``td.set(("a", 3), x)``, ``td.set((), x)``.
    Fix: a key is a string or a non-empty, possibly nested tuple of strings.

    It is a ``KeyError`` and a ``TypeError``, and a ``RuntimeError`` for programs written against
    the ``tensordict`` package, which raises one of the three depending on the method.
    """


class UnknownFieldError(TdcompileError, AttributeError, ValueError):
    """A key was written to a tensorclass that declares no such field.

    Cause: ``tc.set("nmae", x)``, or an operation that gives other keys, such as ``flatten_keys``.
    Fix: declare the field, or go on with ``tc.to_tensordict()``.

    It is an ``AttributeError`` and a ``ValueError`` for programs written against the ``tensordict``
    package, which raises one of the two depending on the method.
    """


class KeyMismatchError(KeyPathError, RuntimeError):
    """Tensordicts that are combined, stacked or concatenated have different keys.

    Cause: one of them has a tensor under a key that another one lacks.
    Fix: ``select`` the common keys first, or pass ``default=`` where the operation has it.
    """


class KeyThroughLeafError(KeyPathError, ValueError):
    """A key path leads through an entry that is not a tensordict.

    Cause: ``td["a", "b"]`` where ``td["a"]`` is a tensor or a non-tensor value.
    Fix: shorten the path, or delete the entry in the way first.
    """


class LockedError(TdcompileError, RuntimeError):
    """A locked tensordict was asked to change an entry other than in place, or its key set.

    Cause: ``td.lock_()`` (on it or on a parent) came before the write.
    Fix: write in place (``td.set_``, ``td.update_``) or unlock the root first.
    """


class DistributedError(TdcompileError, RuntimeError):
    """Tensordicts of several ranks do not fit each other, or a transfer between ranks failed.

    Cause: the ranks hold other keys, shapes or dtypes; a leaf cannot be sent; a rank went away.
    Fix: the message names the rank and the key; ``td.init_remote`` sends a structure as well.
    """


class WorkerError(TdcompileError, RuntimeError):
    """A worker process of ``td.map`` ended, or raised what cannot be passed to the caller.

    Cause: the process was killed or could not start, or its exception cannot be pickled.
    Fix: the message has the exit code or the worker's traceback.
    """


class StorageError(TdcompileError, RuntimeError, ValueError):
    """A tensordict cannot be saved, mapped or loaded as asked.

    Cause: a file that is there already, an entry that no file can hold, an argument that does not
    fit where the tensordict is stored.
    Fix: the message says which; nothing was written or changed.

    It is a ``RuntimeError`` and a ``ValueError`` for programs written against the ``tensordict``
    package, which raises one of the two depending on the function.
    """


class DamagedFileError(StorageError):
    """A saved file is missing, cut short, or not what the metadata next to it says.

    Cause: an interrupted copy, a full disk, a flipped bit, another program.
    Fix: take the file that the message names from a backup; nothing was loaded.
    """


class UnsafeFileError(StorageError):
    """Loading or saving would run code from a file, or leave the folder that was named.

    Cause: pickled values, a link out of the folder, a path with ``..`` in an archive.
    Fix: pass ``allow_pickle=True`` for data that you trust; copy what links point to.
    """


class UnsupportedTorchError(TdcompileError, RuntimeError):
    """The installed torch is outside the supported range.

    Cause: a torch older or newer than the range in ``pyproject.toml``.
    Fix: install a supported torch; until then programs run with stock PyTorch.
    """


class ContractBreachError(TdcompileError, RuntimeError):
    """A private name of torch that the seam needs is absent or has another signature.

    Cause: a torch build that moved its internals.
    Fix: report the breaches that the message lists; until then programs run with stock PyTorch.
    """


class PatchConflictError(TdcompileError, RuntimeError):
    """An attribute that we are to patch or to restore is not what it should be.

    Cause: another library replaced the same attribute after us.
    Fix: uninstall in the reverse order of installation.
    """


class GuardAuditError(TdcompileError, AssertionError):
    """The audit found that a dropped guard would have fired.

    Cause: the written assumption of a narrowing pass does not hold in this program.
    Fix: keep the assumption, see ``docs/guards.md``, or report the program.
    """


class UnknownOptionError(TdcompileError, ValueError):
    """A backend option has a name or a value that nobody knows.

    Cause: a misspelt key in ``torch.compile(options=...)``.
    Fix: use one of the near names in the message, or look at ``tdcompile.backend.list_options()``.
    """


class TdcompileWarning(UserWarning):
    """The package declined to do something and the program goes on without it.

    Cause: the installed torch is not supported, or a private name has moved.
    Fix: the message says which; silence it by this class.
    """
