"""The audit: a dropped guard that would have fired raises, and the audit changes nothing else."""

from __future__ import annotations

import pytest
import torch

import tdcompile
from tdcompile import TensorDict
from tdcompile.errors import GuardAuditError


def _write(td):
    td["b"] = td["a"] + 1
    return td["b"]


def _input():
    return TensorDict({"a": torch.ones(3)}, batch_size=[3])


@pytest.fixture
def audited():
    torch._dynamo.reset()
    with tdcompile.install(strict=True):
        yield torch.compile(
            _write, backend="tdcompile", options={"tdcompile.audit": True}, fullgraph=True
        )
    tdcompile.uninstall()


def test_audit_assumption_holds_is_silent(audited):
    for _ in range(3):
        assert torch.equal(audited(_input()), torch.full((3,), 2.0))


def test_audit_library_function_replaced_raises(audited, monkeypatch):
    audited(_input())
    from tdcompile.tensordict import mapping

    original = mapping.names_an_entry
    monkeypatch.setattr(mapping, "names_an_entry", lambda index: original(index))
    # The key is no string: the method asks the function that was replaced.
    torch._dynamo.reset()

    def program(td):
        td["n", "b"] = td["a"] + 1
        return td["a"] * 2

    compiled = torch.compile(
        program, backend="tdcompile", options={"tdcompile.audit": True}, fullgraph=True
    )
    compiled(_input())
    monkeypatch.setattr(mapping, "names_an_entry", original)
    with pytest.raises(GuardAuditError, match=r"(?s)would have fired: .*library_globals"):
        compiled(_input())
    # The finding was told; the frame is as it was before it.
    with pytest.raises(GuardAuditError):
        compiled(_input())


def test_audit_off_library_function_replaced_is_right(monkeypatch):
    from tdcompile.tensordict import mapping

    torch._dynamo.reset()

    def program(td):
        td["n", "b"] = td["a"] + 1
        return td["n", "b"]

    with tdcompile.install(strict=True):
        compiled = torch.compile(program, backend="eager", fullgraph=True)
        compiled(_input())
        original = mapping.names_an_entry
        # Another function of the same behaviour: what the assumption allows.
        monkeypatch.setattr(mapping, "names_an_entry", lambda index: original(index))
        assert torch.equal(compiled(_input()), torch.full((3,), 2.0))
