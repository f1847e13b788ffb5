"""`ImageTurns`: which image is encoded next to a step, and for how long."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sterna.engine.request import Request

if TYPE_CHECKING:
    from sterna.engine.images.image_encoder import ImageEncoder
    from sterna.engine.images.image_encoding import ProcessedImage

__all__ = ["ImageTurn", "ImageTurns"]

#: Milliseconds of encoding next to a step that nobody waits for, so that new requests do not wait
#: long.
MOST_MS = 250.0
#: The part of a step's remaining time that encoding is planned for, since costs are estimates.
PLANNED = 0.75


@dataclass(slots=True)
class ImageTurn:
    """An image of a request that is encoded next to a step, for about `ms` milliseconds.

    in_use: digests of images whose rows this and other requests need in their next steps.
    """

    request: Request
    encoder: ImageEncoder
    image: ProcessedImage
    ms: float
    in_use: set[bytes]

    def run(self) -> None:
        """Encode; raises NonFiniteError."""
        self.encoder.encode(self.image, self.ms, self.in_use)


class ImageTurns:
    """The images of a scheduler's requests, encoded one at a time.

    Until the present image is complete, it also gets the time of requests with other images.
    """

    def __init__(self) -> None:
        self.encoder: ImageEncoder | None = None

    def turn(
        self, request: Request, most: int, ms: float, running: Iterable[Request]
    ) -> ImageTurn | None:
        """Return the turn of an image that a request's next step needs; None if it needs none.

        most: tokens of that step. The turn has 0 ms if there is no room for more rows next to those
        that the other requests need next.
        """
        image = request.missing_image(most)
        if image is None or request.images is None:
            return None
        self.encoder = encoder = request.images.encoder
        # Those that have all that their next steps need: they go on, and make room.
        ready = [one for one in running if one.images and one.missing_image() is None]
        in_use = {digest for one in ready for digest in _next(one)}
        most_ms = MOST_MS if encoder.has_room(image, in_use) else 0.0
        return ImageTurn(
            request, encoder, image, PLANNED * min(ms, most_ms), in_use.union(_next(request))
        )

    def stop_unwanted(self, requests: Iterable[Request]) -> None:
        """Give up the image that is being encoded if no request needs it any more."""
        digest = None if self.encoder is None else self.encoder.encoding
        if self.encoder is None or digest is None:
            return
        wanted = (one.images.digests(one.sequence.length) for one in requests if one.images)
        if not any(digest in digests for digests in wanted):
            self.encoder.stop()

    @property
    def nbytes(self) -> int:
        """Bytes of rows of images, and of the image that is being encoded."""
        return 0 if self.encoder is None else self.encoder.nbytes


def _next(request: Request) -> list[bytes]:
    """Return the digests of images whose rows a request's next step may need."""
    assert request.images is not None
    begin = request.sequence.length
    return [image.digest for image in request.images.next_images(begin, request.n_prompt)]
