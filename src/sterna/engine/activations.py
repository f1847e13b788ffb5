"""How integer layers round their inputs: as requested, or by the model's default."""

from __future__ import annotations

from sterna import formats
from sterna.checks import checked_name
from sterna.errors import RequestError
from sterna.graph import ACTIVATIONS
from sterna.loading import Model

__all__ = ["resolve_activations"]


def resolve_activations(model: Model, asked: str | None) -> str | None:
    """Return one of ACTIVATIONS, or None if no layer rounds its input.

    Raises RequestError if two planes are asked for where they gain nothing.
    """
    rounds = model.graph.rounds_inputs
    if asked is not None and checked_name("activations", asked, ACTIVATIONS) != ACTIVATIONS[0]:
        got = f"layers of {model.format}"
        if not rounds:
            raise RequestError(
                f"activations: {asked} needs layers that round their inputs, but got {got}, which "
                "read floats; leave it out"
            )
        if formats.get(model.format).rounds_as_trained:
            raise RequestError(
                f"activations: {asked} is for models trained with float inputs, but got {got}, "
                "whose models are trained with int8 inputs; leave it out"
            )
        return asked
    return ACTIVATIONS[0] if rounds else None
