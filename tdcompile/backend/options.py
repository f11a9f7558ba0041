"""What a caller may ask of the backend, and the check of it.

Key names: :class:`CompileSettings` (options, checked and split), :func:`parse_options`,
:func:`list_options`, :func:`list_mode_options`.

Invariant: one dictionary is the only source of truth. Keys that begin with ``tdcompile.`` are
ours, all others are Inductor's; an unknown name is an error that lists the near ones; the caller's
dictionary is never changed.

``torch.compile`` refuses ``mode`` together with ``options``; ``"tdcompile.mode"`` is the way to
give both.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tdcompile._compat import inductor
from tdcompile.backend.passes import PASS_NAMES
from tdcompile.errors import UnknownOptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PREFIX = "tdcompile."


@dataclass(frozen=True)
class CompileSettings:
    """Options after the check.

    Args:
        mode: Inductor mode, or None.
        audit: Every dropped guard of this compile is checked again at run time.
        passes: Names of our FX passes to run, in the order in which they run.
        inductor: Inductor's options; they win over the mode's.
    """

    mode: str | None = None
    audit: bool = False
    passes: tuple[str, ...] = PASS_NAMES
    inductor: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Option:
    field: str
    check: Callable[[Any], bool]
    legal: str
    help: str


def _is_pass_list(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(name in PASS_NAMES for name in value)


def _is_mode(value: Any) -> bool:
    return value is None or value in inductor.list_mode_options()


# One line an option of ours; list_options() and the errors are made from it.
_OPTIONS: dict[str, _Option] = {
    "tdcompile.audit": _Option(
        "audit",
        lambda value: isinstance(value, bool),
        "True or False",
        "check every dropped guard again at run time",
    ),
    "tdcompile.mode": _Option(
        "mode",
        _is_mode,
        "a name of list_mode_options()",
        "the Inductor mode, where options are given too",
    ),
    "tdcompile.passes": _Option(
        "passes",
        _is_pass_list,
        f"a tuple with any of {PASS_NAMES}",
        "the FX passes to run before Inductor",
    ),
}


def list_options() -> dict[str, str]:
    """Return every legal option and what it does; Inductor's are documented by Inductor.

    Example:
        >>> list_options()["tdcompile.audit"]
        'check every dropped guard again at run time'
    """
    ours = {name: option.help for name, option in _OPTIONS.items()}
    return ours | {name: f"torch._inductor.config.{name}" for name in inductor.list_options()}


def list_mode_options(mode: str | None = None) -> dict[str, Any]:
    """Return the Inductor options that a mode sets.

    Args:
        mode: A mode; all of them by default.

    Returns:
        ``{option: value}``, or ``{mode: {option: value}}`` for all of them.

    Raises:
        UnknownOptionError: The mode is unknown.
    """
    modes = inductor.list_mode_options()
    if mode is None:
        return modes
    if mode not in modes:
        raise UnknownOptionError(_unknown("mode", mode, list(modes)))
    return dict(modes[mode])


def parse_options(
    mode: str | None = None, options: Mapping[str, Any] | None = None
) -> CompileSettings:
    """Check and split what a caller asks for.

    Args:
        mode: As in ``torch.compile(mode=...)``; ``"tdcompile.mode"`` wins over it.
        options: As in ``torch.compile(options=...)``; it is not changed.

    Returns:
        The settings.

    Raises:
        UnknownOptionError: A name is unknown (the message lists near ones), or one of our options
            has an illegal value (the message lists the legal ones).
    """
    if mode is not None:
        list_mode_options(mode)
    ours: dict[str, Any] = {"mode": mode}
    theirs: dict[str, Any] = {}
    known: set[str] | None = None
    for name, value in (options or {}).items():
        if name.startswith(_PREFIX):
            option = _OPTIONS.get(name)
            if option is None:
                raise UnknownOptionError(_unknown("option", name, list(_OPTIONS)))
            if not option.check(value):
                raise UnknownOptionError(f"option {name!r}: expected {option.legal}, got {value!r}")
            ours[option.field] = tuple(value) if isinstance(value, list) else value
            continue
        known = set(inductor.list_options()) if known is None else known
        # Inductor takes dashes for underscores too.
        if name.replace("-", "_") not in known:
            raise UnknownOptionError(_unknown("option", name, [*_OPTIONS, *sorted(known)]))
        theirs[name.replace("-", "_")] = value
    # Passes run in the order of the table, whatever the order of the names.
    chosen = ours.get("passes", PASS_NAMES)
    ours["passes"] = tuple(name for name in PASS_NAMES if name in chosen)
    return CompileSettings(inductor=theirs, **ours)


def _unknown(what: str, name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=5, cutoff=0.5)
    if not near:
        tail = name.rsplit(".", 1)[-1]
        near = [candidate for candidate in known if tail and tail in candidate][:5]
    text = f"expected a known {what}, got {name!r}; "
    text += f"near names: {', '.join(near)}" if near else "no name is near it"
    return f"{text}. tdcompile.backend.list_{'mode_' if what == 'mode' else ''}options() lists all."
