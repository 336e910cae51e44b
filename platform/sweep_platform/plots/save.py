"""Writing a picture in the form that a file's name asks for."""

from __future__ import annotations

from pathlib import Path

from sweep_platform.errors import BadInput, Fault
from sweep_platform.frontier import Frontier
from sweep_platform.plots.insight_pictures import InsightPicture
from sweep_platform.plots.picture import FrontierPicture

PAGES = (".html",)
IMAGES = (".png", ".svg", ".pdf")


def save_frontier(frontier: Frontier, path: Path, evaluated: tuple[int, int] | None = None) -> None:
    """Draw the frontier into `path`; see `save_picture`.

    Args:
        frontier: The sweep's frontier.
        path: Where to write; missing folders are made.
        evaluated: Problems and samples a problem (`evaluation_size`), for the caption.

    Raises:
        BadInput: the file's ending names no form that can be drawn, or the file can't be written.
    """
    save_picture(FrontierPicture.of(frontier, evaluated), path)


def save_picture(picture: FrontierPicture | InsightPicture, path: Path) -> None:
    """Draw a picture into `path`: an interactive page for .html, an image for .png, .svg or .pdf.

    Raises:
        BadInput: the file's ending names no form that can be drawn, or the file can't be written.
    """
    ending = path.suffix.lower()
    if ending not in PAGES + IMAGES:
        need = f"a file name that ends in one of {', '.join(PAGES + IMAGES)}"
        raise BadInput([Fault("--plot", str(path), need, "rename the file")])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if ending in PAGES:
            from sweep_platform.plots.html_insight import write_html

            write_html(picture, path)
        else:
            from sweep_platform.plots.image_insight import write_image

            write_image(picture, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadInput(
            [Fault("--plot", f"{path} ({reason})", "a file that can be written", "choose another")]
        ) from error
