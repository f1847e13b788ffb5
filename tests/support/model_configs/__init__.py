"""Fields of config.json of small random models, of every supported class.

`MODELS` has several rows for each class, so that what files say, and what they leave to a class,
both count: `saved_models` makes and saves them. `DIGESTED` is of the models of `digests`. This
package imports neither torch nor Sterna.
"""

from __future__ import annotations

from model_configs import dense, encoders, experts, gemma, recurrent, vision
from model_configs.common import POSITIONS, SIZES, Saved
from model_configs.digested import DIGESTED

__all__ = ["DIGESTED", "MODELS", "POSITIONS", "SIZES", "Saved"]

MODELS: dict[str, Saved] = {
    **dense.MODELS, **gemma.MODELS, **experts.MODELS, **recurrent.MODELS, **vision.MODELS,
    **encoders.MODELS,
}  # fmt: skip
