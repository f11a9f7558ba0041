"""The exception half of the seam: what a traced program raised, and where a frame gives up.

Key names: :class:`Translator` and :class:`FrameConverter` (what is patched), :func:`raised_error`.

Checked against torch 2.13.0, 2.14.1 and 2.15.0 (``torch/_dynamo/symbolic_convert.py``,
``torch/_dynamo/convert_frame.py``).
"""

from __future__ import annotations

from typing import Any

from torch._dynamo.convert_frame import ConvertFrameAssert as FrameConverter
from torch._dynamo.exc import Unsupported
from torch._dynamo.symbolic_convert import InstructionTranslatorBase as Translator

__all__ = ["FrameConverter", "Translator", "Unsupported", "raised_error"]


def raised_error(translator: Any) -> Exception | None:
    """The exception that left a traced program, made again; None where it cannot be."""
    stack = translator.exn_vt_stack
    # Renamed in 2.14. Remove the second name when 2.14 is the minimum.
    read = getattr(stack, "get_raised_exception", None) or stack.get_current_exception
    try:
        vt = read()
        arguments = [argument.as_python_constant() for argument in vt.args]
        error = vt.python_type()(*arguments)
    except Exception:
        return None
    return error if isinstance(error, Exception) else None
