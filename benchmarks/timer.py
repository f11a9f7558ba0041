"""Time callables side by side.

Key names: `measure` (warm calls), `sample` (one-off costs such as tracing), `Timing`, `ratio`.
All cases of one comparison run in one process and in turn, round after round with the order
rotated, so that a slow moment of the machine hits all of them; medians are compared and never
single runs. Garbage collection is off while the clock runs.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


@dataclass(frozen=True)
class Timing:
    """Microseconds a call, one sample a round."""

    samples_us: tuple[float, ...]

    @property
    def median_us(self) -> float:
        """The median over the rounds."""
        return statistics.median(self.samples_us)

    @property
    def spread(self) -> float:
        """The distance of the quartiles as a share of the median."""
        low, _, high = statistics.quantiles(self.samples_us, n=4)
        return (high - low) / self.median_us

    def __str__(self) -> str:
        return f"{format_us(self.median_us)} ±{self.spread / 2:.0%}"


def format_us(value_us: float) -> str:
    """Return `value_us` with three digits and the unit that suits."""
    for unit, scale in (("us", 1), ("ms", 1e3), ("s", 1e6)):
        if value_us < 1000 * scale or unit == "s":
            scaled = value_us / scale
            return f"{scaled:.{0 if scaled >= 100 else 1 if scaled >= 10 else 2}f} {unit}"
    raise AssertionError("unreachable: seconds take everything")


def ratio(timing: Timing, baseline: Timing) -> float:
    """Return how much longer `timing` takes: the median of the ratios within each round."""
    pairs = zip(timing.samples_us, baseline.samples_us, strict=True)
    return statistics.median(sample / base for sample, base in pairs)


def measure(
    cases: Mapping[str, Callable[[], Any]],
    *,
    rounds: int = 101,
    block_us: float = 1000.0,
    warmup_us: float = 50_000.0,
) -> dict[str, Timing]:
    """Return the time of warm calls of each case.

    Args:
        cases: callables without arguments, by name. Compiled ones must have compiled already.
        rounds: samples a case.
        block_us: a sample is the mean over as many calls as fill this time.
        warmup_us: for how long each case is called before.
    """
    numbers = {name: _calls_per_block(call, block_us, warmup_us) for name, call in cases.items()}
    samples: dict[str, list[float]] = {name: [] for name in cases}
    with _no_collection():
        for name in _in_turn(cases, rounds):
            samples[name].append(_time_us(cases[name], numbers[name]))
    return {name: Timing(tuple(values)) for name, values in samples.items()}


def sample(
    cases: Mapping[str, tuple[Callable[[], Any], Callable[[], Any]]], *, rounds: int = 9
) -> dict[str, Timing]:
    """Return the time of one-off work: each case is (untimed preparation, the work).

    One round more runs first and is dropped: it pays for imports and other firsts.
    """
    samples: dict[str, list[float]] = {name: [] for name in cases}
    for name in _in_turn(cases, rounds + 1):
        prepare, work = cases[name]
        prepare()
        with _no_collection():
            samples[name].append(_time_us(work, 1))
    return {name: Timing(tuple(values[1:])) for name, values in samples.items()}


def _in_turn(cases: Mapping[str, Any], rounds: int) -> Iterator[str]:
    names = list(cases)
    for index in range(rounds):
        shift = index % len(names)
        yield from names[shift:] + names[:shift]


def _calls_per_block(call: Callable[[], Any], block_us: float, warmup_us: float) -> int:
    calls, start = 0, time.perf_counter()
    while (elapsed_us := (time.perf_counter() - start) * 1e6) < warmup_us:
        call()
        calls += 1
    return max(1, round(block_us * calls / elapsed_us))


def _time_us(call: Callable[[], Any], number: int) -> float:
    repeats = range(number)
    start = time.perf_counter()
    for _ in repeats:
        call()
    return (time.perf_counter() - start) * 1e6 / number


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
