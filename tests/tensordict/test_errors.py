"""Error classes: every one is documented, and is of the builtin kinds that programs catch."""

from __future__ import annotations

import inspect
import pickle

import pytest

from tdcompile import errors

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and value.__module__ == errors.__name__
]

KINDS = {
    errors.TensorDictShapeError: (RuntimeError, ValueError),
    errors.KeyPathError: (KeyError,),
    errors.InvalidKeyError: (KeyError, TypeError, RuntimeError),
    errors.KeyThroughLeafError: (KeyError, ValueError),
    errors.LockedError: (RuntimeError,),
}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_error_class_names_cause_and_fix(cls):
    if cls is not errors.TdcompileError:
        assert issubclass(cls, (errors.TdcompileError, Warning))
        assert "Cause:" in cls.__doc__
        assert "Fix:" in cls.__doc__


@pytest.mark.parametrize(("cls", "kinds"), KINDS.items(), ids=lambda v: getattr(v, "__name__", ""))
def test_error_class_has_builtin_kinds(cls, kinds):
    for kind in kinds:
        assert issubclass(cls, kind)


def test_key_error_prints_its_message_plainly():
    assert str(errors.KeyPathError("expected 'a'")) == "expected 'a'"


@pytest.mark.parametrize("cls", KINDS, ids=lambda cls: cls.__name__)
def test_error_pickles(cls):
    error = pickle.loads(pickle.dumps(cls("text")))
    assert type(error) is cls
    assert str(error) == "text"
