"""The picture of the page in docs/how-to: a conversation in Chromium, whose texts are written here.

    python tests/long/page/page_picture.py

The server is real, its answers are not. Needs playwright and Pillow, and a Chromium of the system
(`CHROMIUM`).
"""

from __future__ import annotations

import io
import json
import math
import re
import tempfile
from pathlib import Path
from typing import Any

from page_driver import CHROMIUM, answer, answered, say, settings, stream, sync_api
from PIL import Image, ImageDraw
from server_process import serving

TO = Path(__file__).parents[3] / "docs/how-to/page.png"
SIZE = (1040, 1120)
MODEL = "gemma-3-4b-it"
QUESTION = "This is my thermometer in Oslo. Is it warmer in Bern?"
CALL = {
    "index": 0,
    "id": "c1",
    "function": {"name": "get_weather", "arguments": '{"city": "Bern"}'},
}
RESULT = '{"sky": "clear", "celsius": 11}'
ANSWER = """Your picture shows −3 °C and snow, so Bern is warmer:

| City | Sky | °C |
|---|---|--:|
| Bern | clear | 11 |
| Oslo | snow | −3 |

In Fahrenheit, with a line of Python:

```python
def fahrenheit(celsius: float) -> float:
    return celsius * 9 / 5 + 32  # 11 °C is 51.8 °F
```
"""


def thermometer() -> bytes:
    """A thermometer at -3 degrees in front of a snowy hill, as PNG."""
    image = Image.new("RGB", (400, 210), "#9fb8cc")
    draw = ImageDraw.Draw(image)
    hill = [(x, 150 - 34 * math.sin(x / 130) - 9 * math.sin(x / 37)) for x in range(0, 401, 4)]
    draw.polygon([(0, 210), *hill, (400, 210)], fill="#eef3f6")
    for i in range(70):  # flakes
        x, y, r = i * 197 % 400, i * 89 % 210, 1 + i % 3
        draw.ellipse((x - r, y - r, x + r, y + r), fill="#ffffff")
    draw.rounded_rectangle((158, 8, 242, 202), 20, fill="#fbfaf6", outline="#5f5a52", width=3)
    for celsius in range(-20, 41, 5):
        y, long = 160 - (celsius + 20) * 2.2, celsius % 20 == 0
        draw.line((212, y, 230 if long else 222, y), fill="#5f5a52", width=2)
        if long:
            draw.text((166, y - 8), f"{celsius:>3}", fill="#3b3833", font_size=14)
    draw.rounded_rectangle((196, 20, 206, 178), 5, fill="#e3ded4")
    draw.rectangle((198, 160 - 17 * 2.2, 204, 178), fill="#b3261e")
    draw.ellipse((189, 170, 213, 194), fill="#b3261e")
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def converse(page: Any) -> None:
    """The conversation: a picture with a question, a call, its result, and the answer."""
    words = [{"content": text} for text in re.findall(r"\s*\S+|\s+$", ANSWER)]
    answered(page, stream({"tool_calls": [CALL]}), stream(*words))
    settings(page, tools=json.dumps([{"type": "function", "function": {"name": "get_weather"}}]))
    picture = {"name": "oslo.png", "mimeType": "image/png", "buffer": thermometer()}
    page.set_input_files("#pick", [picture])
    page.locator("#files li").wait_for()
    say(page, QUESTION)
    answer(page).locator(".call textarea").fill(RESULT)
    page.get_by_role("button", name="Send results").click()
    answer(page, 1)
    page.set_input_files("#pick", [{**picture, "name": "bern.png"}])
    page.locator("#files li").wait_for()
    page.fill("#say", "And this one?")
    page.evaluate("status('')")  # times of answers that nothing computed


def main() -> None:
    """Write the picture."""
    models = {"data": [{"id": MODEL, "meta": {}}]}
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder), "nano") as server,
        sync_api.sync_playwright() as playwright,
    ):
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = running.new_page(viewport={"width": SIZE[0], "height": SIZE[1]})
        page.route("**/v1/models", lambda route: route.fulfill(json=models))
        page.goto(server.url)
        page.locator("#model option").wait_for(state="attached")
        converse(page)
        page.screenshot(path=TO)
        running.close()
    Image.open(TO).convert("RGB").quantize(256).save(TO, optimize=True)


if __name__ == "__main__":
    main()
