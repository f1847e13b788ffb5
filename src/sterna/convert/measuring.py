"""What each matrix of a model costs in each format, in bytes and in KL divergence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.convert.allocation import Choice
from sterna.convert.candidates import Unit, candidates, sizes_of, units_of, with_tables
from sterna.convert.importance_matrix import calibrate
from sterna.convert.job import Job, Stage
from sterna.convert.moments import Moments, budget_of
from sterna.convert.plan import Plan
from sterna.convert.running import Running
from sterna.convert.sensitivity import Probe, format_errors, kinds_of, measured_of, sampled
from sterna.convert.unfinished import Kept
from sterna.formats.feedback import Feedback
from sterna.runtime import resolve_threads

__all__ = ["Measured", "measure"]

F32 = npt.NDArray[np.float32]
PROBED = 64  # tokens of the text for one that the model reads for each matrix
LEAST_PROBED = 128
PROBE_WORK = 12  # times as long as a matrix that is not measured (SmolLM2-135M)
TINY = 1e-30  # in place of 0


@dataclass
class Measured:
    """For each unit (`units_of`) its choices and g (`sensitivity`), and what layers read."""

    choices: list[list[Choice]]
    sensitivities: list[float]
    moments: Moments


def measure(
    job: Job,
    planned: Plan,
    target: str,
    texts: Sequence[str],
    tokens: int,
    kept: Kept,
    progress: Stage,
) -> Measured:
    """Measure the loss of each format of each unit, or take what was kept."""
    units, threads = units_of(planned), resolve_threads(job.threads)
    running = Running.of(job.src, job.threads, job.i2s)
    windows = running.windows(texts, tokens)
    squares = _squares(job, planned, texts, tokens, kept)

    def read(done: int, total: int) -> None:
        progress("reading", done, total)

    moments = Moments(running, windows, budget_of(running), squares, read, kept)
    probe = Probe.of(running, windows, max(LEAST_PROBED, tokens // PROBED))
    kinds = kinds_of(units)
    probed = {kind[at].name for kind in kinds for at in measured_of(len(kind))}
    work = {unit.name: PROBE_WORK if unit.name in probed else 1 for unit in units}
    done = 0
    found = dict[str, _Found]()
    # Moments are read in the order of the layers.
    order = {name: i for i, name in enumerate(moments)}
    for i, unit in enumerate(sorted(units, key=lambda u: order.get(u.item, len(order)))):
        one = _Found.of(kept.get(f"measured-{i}"))
        done += work[unit.name]
        if one is None:  # what is kept would make the time that is left look short
            one = _found(unit, moments, probe, target, threads, unit.name in probed)
            kept.put(f"measured-{i}", one.arrays())
            progress("measuring", done, sum(work.values()))
        found[unit.name] = one
    for kind in kinds:
        _between([found[unit.name] for unit in kind])
    choices = [found[unit.name].choices(sizes_of(target, unit)) for unit in units]
    return Measured(choices, [found[unit.name].g or 0.0 for unit in units], moments)


def _squares(
    job: Job, planned: Plan, texts: Sequence[str], tokens: int, kept: Kept
) -> dict[str, F32]:
    """Return mean squares of what layers read, if some are of experts."""
    if not any(item.kind == "experts" for item in planned.items.values()):
        return {}
    found = kept.get("squares")
    if found is None:
        found = dict(calibrate(job.src, texts, tokens=tokens, threads=job.threads))
        kept.put("squares", found)
    return found


def _found(
    unit: Unit, moments: Moments, probe: Probe, target: str, threads: int, probed: bool
) -> _Found:
    inputs = moments.get(unit.item)
    if inputs is None:  # an embedding that is no head: only its rows matter
        inputs = np.ones(unit.K, np.float32)
    some = probe.rows(unit, sampled(unit.M))
    squares = inputs.variances if isinstance(inputs, Feedback) else inputs
    possible = with_tables(candidates(target, unit.K), some, squares, threads)
    names = [format.name for format in possible]
    one = _Found(names, format_errors(some, possible, inputs, threads, fed=False))
    if probed:
        one.g = probe.sensitivity(unit, inputs)
        one.fed = format_errors(some, possible, inputs, threads)
    one.of_all = unit.M / len(some)
    return one


@dataclass
class _Found:
    """What is known of a unit: formats, errors of its sampled rows in each, without feedback and,
    if it is measured, with it; g; rows for each sampled one."""

    formats: list[str]
    plain: list[float]
    fed: list[float] | None = None
    g: float | None = None
    of_all: float = 1.0

    @classmethod
    def of(cls, arrays: dict[str, npt.NDArray[Any]] | None) -> _Found | None:
        """Take what `arrays` returned."""
        if arrays is None:
            return None
        one = cls(arrays["formats"].tolist(), arrays["plain"].tolist())
        one.of_all = float(arrays["of_all"])
        if "g" in arrays:
            one.g, one.fed = float(arrays["g"]), arrays["fed"].tolist()
        return one

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return it as arrays, to be kept."""
        made = {"formats": self.formats, "plain": self.plain, "of_all": self.of_all}
        if self.g is not None:
            made |= {"g": self.g, "fed": self.fed}
        return {name: np.asarray(value) for name, value in made.items()}

    def choices(self, sizes: Sequence[Choice]) -> list[Choice]:
        """Return the choices with their losses."""
        assert self.fed is not None
        assert self.g is not None
        scale = self.g * self.of_all
        rows = zip(sizes, self.formats, self.fed, strict=True)
        return [Choice(name, one.nbytes, scale * error) for one, name, error in rows]


def _between(kind: Sequence[_Found]) -> None:
    """Fill in what was not measured, from the measured units of the kind."""
    known = [i for i, one in enumerate(kind) if one.g is not None]
    logs = np.log([max(kind[i].g or 0.0, TINY) for i in known])
    ratios = [np.divide(kind[i].fed or [], np.maximum(kind[i].plain, TINY)) for i in known]
    ratio = np.mean(ratios, axis=0)
    for i, one in enumerate(kind):
        if one.g is None:
            one.g = float(np.exp(np.interp(i, known, logs)))
            one.fed = [float(error) for error in np.multiply(one.plain, ratio)]
