"""Methods of rounding to powers of two by name, for the levels that a format has."""

from __future__ import annotations

from dataclasses import replace

from sterna.errors import RequestError, shown
from sterna.formats.power_of_two import MAX_EXPONENT, Quantizer, deepshift_q, denseshift, s3

__all__ = ["METHODS", "quantizer"]

#: Name -> method; None: the nearest of all levels of the format.
METHODS: dict[str, Quantizer | None] = {
    "nearest": None,
    "denseshift2": denseshift(2),
    "denseshift3": denseshift(3),
    "denseshift4": denseshift(4),
    "s3": s3(3),
    "s3-4": s3(4),
    "deepshift-q": deepshift_q(4),
    "deepshift-q5": deepshift_q(5),
}


def quantizer(method: str, max_exponent: int, zero: bool, format: str) -> Quantizer:
    """Return the method for levels +-2^0 .. +-2^max_exponent, with 0 if `zero`, of `format`.

    Raises RequestError for an unknown method, or levels that the format lacks.
    """
    if not isinstance(method, str) or method not in METHODS:
        raise RequestError(f"method: must be one of {', '.join(METHODS)}, but got {shown(method)}")
    made = METHODS[method]
    if made is None:
        return Quantizer("nearest", min(max_exponent, MAX_EXPONENT), "near" if zero else "none")
    if made.max_exponent > max_exponent:
        raise RequestError(
            f"method: {method} has exponents up to {made.max_exponent}, but {format} up to "
            f"{max_exponent}; use a format of more, such as pot8"
        )
    if made.zero == "near" and not zero:
        raise RequestError(
            f"method: {method} rounds small weights to 0, but {format} has no zero; use pot4z"
        )
    if made.zero == "exact" and not zero:  # weights of 0 are rare: they become the smallest level
        return replace(made, zero="none")
    return made
