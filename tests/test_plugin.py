from __future__ import annotations

import os
import subprocess
import sys
import types
import warnings

import pytest
import torch
from torch._dynamo.backends import registry as backend_registry

from tdcompile import plugin
from tdcompile._compat import contract, version
from tdcompile._compat.contract import PrivateName
from tdcompile.config import Settings
from tdcompile.errors import (
    ContractBreachError,
    PatchConflictError,
    TdcompileWarning,
    UnsupportedTorchError,
)
from tdcompile.patching import Patch, PatchSet

NAME = plugin.BACKEND_NAME


@pytest.fixture
def box():
    return types.SimpleNamespace(hook="stock")


@pytest.fixture(autouse=True)
def _only_a_box(box, monkeypatch):
    """Let the plug-in patch a box instead of Dynamo, and leave nothing installed."""
    while plugin.is_installed():
        plugin.uninstall()
    patch = Patch(target=box, name="hook", replacement="ours", reason="the test needs it")
    monkeypatch.setattr(plugin, "_patch_sets", lambda: [PatchSet("box", [patch])])
    monkeypatch.setattr(plugin, "_warned", set())
    yield
    while plugin.is_installed():
        plugin.uninstall()


def tables():
    torch._dynamo.list_backends()  # loads the stock backends, which are registered lazily
    return dict(backend_registry._BACKENDS), dict(backend_registry._COMPILER_FNS)


def wrap(fn=lambda x: x + 1):
    return torch.compile(fn, backend=NAME)


def test_install_and_uninstall_are_exact(box):
    before = tables()
    handle = plugin.install()
    assert box.hook == "ours"
    assert plugin.is_installed()
    assert handle.is_active
    handle.uninstall()
    assert box.hook == "stock"
    assert not plugin.is_installed()
    assert not handle.is_active
    assert tables() == before


def test_uninstall_twice_is_harmless(box):
    outer = plugin.install()
    inner = plugin.install()
    inner.uninstall()
    inner.uninstall()
    plugin_state_after_two = plugin.is_installed()
    outer.uninstall()
    plugin.uninstall()
    assert plugin_state_after_two
    assert box.hook == "stock"


def test_nested_installs_are_counted(box):
    with plugin.install():
        with plugin.install():
            pass
        assert box.hook == "ours"
    assert box.hook == "stock"


def test_uninstall_function_ends_the_latest_use(box):
    first = plugin.install()
    second = plugin.install()
    plugin.uninstall()
    assert (first.is_active, second.is_active, box.hook) == (True, False, "ours")
    plugin.uninstall()
    assert box.hook == "stock"


def test_exception_in_with_block_uninstalls(box):
    with pytest.raises(ValueError, match="body"), plugin.install():
        raise ValueError("body")
    assert box.hook == "stock"
    assert not plugin.is_installed()


def test_last_uninstall_resets_dynamo_once(monkeypatch):
    calls = []
    monkeypatch.setattr(plugin, "_reset_dynamo", lambda: calls.append(1))
    with plugin.install(), plugin.install():
        pass
    assert calls == [1]


def test_conflict_at_install_changes_nothing(monkeypatch, box):
    gone = Patch(target=box, name="gone", replacement=1, reason="the test needs it")
    monkeypatch.setattr(plugin, "_patch_sets", lambda: [PatchSet("gone", [gone])])
    before = tables()
    with pytest.raises(PatchConflictError):
        plugin.install()
    assert not plugin.is_installed()
    assert tables() == before


def test_conflict_at_uninstall_keeps_the_installation(box):
    handle = plugin.install()
    box.hook = "foreign"
    with pytest.raises(PatchConflictError, match="expected 'ours', found 'foreign'"):
        handle.uninstall()
    assert plugin.is_installed()
    assert handle.is_active
    box.hook = "ours"
    handle.uninstall()
    assert box.hook == "stock"


def test_backend_name_installs_when_the_function_is_wrapped(box):
    before = tables()
    with plugin.install():
        # The name is known now, also where the package has no installed metadata.
        assert NAME in backend_registry._BACKENDS
        wrap()
    assert box.hook == "stock"
    assert tables() == before


def test_backend_name_respects_uninstall_until_the_next_compile(box, monkeypatch):
    entry = backend_registry.EntryPoint(NAME, plugin.BACKEND_TARGET, "torch_dynamo_backends")
    monkeypatch.setitem(backend_registry._BACKENDS, NAME, entry)
    for _ in range(2):
        assert not plugin.is_installed()
        wrap()
        assert plugin.is_installed()
        assert box.hook == "ours"
        wrap()
        plugin.uninstall()
        assert not plugin.is_installed()
        assert box.hook == "stock"
        assert backend_registry._BACKENDS[NAME] is entry
        assert NAME not in backend_registry._COMPILER_FNS


def test_uninstall_ends_the_backends_use_and_the_explicit_one(box, monkeypatch):
    entry = backend_registry.EntryPoint(NAME, plugin.BACKEND_TARGET, "torch_dynamo_backends")
    monkeypatch.setitem(backend_registry._BACKENDS, NAME, entry)
    wrap()
    plugin.install()
    plugin.uninstall()
    assert not plugin.is_installed()
    assert box.hook == "stock"


def test_compiled_function_runs_after_uninstall():
    with plugin.install():
        compiled = wrap(lambda x: x * 2 + 1)
        assert compiled(torch.ones(2)).tolist() == [3, 3]
    assert compiled(torch.ones(2)).tolist() == [3, 3]
    assert not plugin.is_installed()


def test_foreign_backend_of_our_name_is_left_alone(monkeypatch):
    def foreign(gm, inputs):
        return gm

    with plugin.install():
        monkeypatch.setitem(backend_registry._COMPILER_FNS, NAME, foreign)
    assert backend_registry._COMPILER_FNS[NAME] is foreign
    monkeypatch.undo()
    backend_registry._BACKENDS.pop(NAME, None)


def test_disabled_by_environment_install_does_nothing(monkeypatch, box):
    monkeypatch.setattr(plugin, "settings", lambda: Settings(disable=True))
    before = tables()
    with plugin.install() as handle:
        assert not handle.is_active
        assert not plugin.is_installed()
        assert box.hook == "stock"
        assert tables() == before


def unsupported(monkeypatch):
    monkeypatch.setattr(version, "torch_version", lambda: (2, 99, 0))
    return UnsupportedTorchError, r"supports torch 2\.13 to 2\.15, found 2\.99\.0"


def breached(monkeypatch):
    bad = [
        PrivateName("torch._dynamo.gone", "function", needed_by="tdcompile.test"),
        PrivateName("torch._dynamo.also_gone", "class", needed_by="tdcompile.test"),
    ]
    monkeypatch.setattr(contract, "CONTRACT", [*contract.CONTRACT, *bad])
    return ContractBreachError, r"(?s)torch\._dynamo\.gone: .*torch\._dynamo\.also_gone: "


@pytest.mark.parametrize("refused", [unsupported, breached], ids=["version", "contract"])
def test_refusal_is_one_warning_and_leaves_dynamo_alone(monkeypatch, box, refused):
    _, text = refused(monkeypatch)
    before = tables()
    with pytest.warns(TdcompileWarning, match=text) as caught:
        handles = [plugin.install(), plugin.install()]
    assert len(caught) == 1
    assert not any(handle.is_active for handle in handles)
    assert not plugin.is_installed()
    assert box.hook == "stock"
    assert tables() == before
    assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item() == 2


@pytest.mark.parametrize("refused", [unsupported, breached], ids=["version", "contract"])
def test_refusal_strict_raises(monkeypatch, refused):
    kind, text = refused(monkeypatch)
    with pytest.raises(kind, match=text):
        plugin.install(strict=True)
    assert not plugin.is_installed()


@pytest.mark.parametrize("refused", [unsupported, breached], ids=["version", "contract"])
def test_refusal_backend_still_compiles(monkeypatch, refused):
    refused(monkeypatch)
    entry = backend_registry.EntryPoint(NAME, plugin.BACKEND_TARGET, "torch_dynamo_backends")
    monkeypatch.setitem(backend_registry._BACKENDS, NAME, entry)
    with pytest.warns(TdcompileWarning):
        compiled = wrap(lambda x: x * 3)
    assert compiled(torch.ones(2)).tolist() == [3, 3]
    assert not plugin.is_installed()
    backend_registry._COMPILER_FNS.pop(NAME)


def test_optional_breach_does_not_refuse(monkeypatch, box):
    bad = PrivateName("torch._dynamo.gone", "function", needed_by="tdcompile.test", required=False)
    monkeypatch.setattr(contract, "CONTRACT", [*contract.CONTRACT, bad])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with plugin.install():
            assert box.hook == "ours"


def test_module_has_no_other_attributes():
    with pytest.raises(AttributeError, match="no_such"):
        getattr(plugin, "no_such")  # noqa: B009


IMPORT_IS_LIGHT = """
import sys
import torch
before = set(sys.modules)
import tdcompile
import tdcompile.backend, tdcompile.plugin, tdcompile._compat
loaded = sorted(name for name in set(sys.modules) - before if name.startswith("torch."))
HEAVY = ("torch._dynamo", "torch._inductor", "torch._functorch")
heavy = [name for name in loaded if name.startswith(HEAVY)]
assert not heavy, heavy
assert not tdcompile.is_installed()
print("light")
"""


def run_python(code, **environ):
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_loads_neither_dynamo_nor_inductor():
    assert run_python(IMPORT_IS_LIGHT).strip() == "light"


REAL_ROUND_TRIP = """
import torch._dynamo
from torch._dynamo.backends import registry
from torch._dynamo.variables.builder import SourcelessBuilder, VariableBuilder
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.guards import CheckFunctionManager, GuardBuilder
from torch._dynamo.side_effects import SideEffects

CLASSES = (
    SourcelessBuilder, VariableBuilder, BuiltinVariable, CheckFunctionManager, GuardBuilder,
    SideEffects,
)

def tables():
    torch._dynamo.list_backends()  # loads the stock backends and the installed entry points
    found = {"backends": dict(registry._BACKENDS), "fns": dict(registry._COMPILER_FNS)}
    for flag in (True, False):
        with torch._dynamo.config.patch(trace_numpy=flag):
            found["types", flag] = dict(VariableBuilder._type_dispatch())
    found["ids"] = dict(VariableBuilder._id_dispatch())
    for cls in CLASSES:
        found[cls] = dict(vars(cls))
    return found

before = tables()
import tdcompile
for _ in range(2):
    with tdcompile.install():
        assert tdcompile.is_installed()
    after = tables()
    for key in before:
        assert after[key] == before[key], (key, set(after[key].items()) ^ set(before[key].items()))
print("exact")
"""


def test_real_patches_are_undone_exactly():
    assert run_python(REAL_ROUND_TRIP).strip() == "exact"
