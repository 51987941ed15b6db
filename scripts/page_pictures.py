r"""Open a page in headless Chromium, check how it looks, and take screenshots.

They are of a phone and a desktop, light and dark.

    python scripts/page_pictures.py outputs/quickstart/report.html --output outputs/pictures

Fails if the page makes a network request, logs to its console, scrolls sideways, or has text with a
contrast below 4.5. Needs Chromium (Debian's package chromium, or CHROMIUM=/path/to/it).
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from PIL import Image
from websockets.sync.client import connect

WIDTHS = {"phone": 390, "desktop": 1280}
SCHEMES = ("light", "dark")
HEIGHT = 900
# Contrast of text against its background by WCAG's formula, where it is below 4.5.
CONTRASTS = """
[...document.querySelectorAll("body *")].flatMap(node => {
  const own = [...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim());
  if (!own || !node.checkVisibility() || node.disabled) return [];
  const read = text => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const behind = element => {
    if (!element) return [255, 255, 255];
    const [r, g, b, a = 1] = read(getComputedStyle(element).backgroundColor);
    const below = a < 1 ? behind(element.parentElement) : [0, 0, 0];
    return [r, g, b].map((value, i) => value * a + below[i] * (1 - a));
  };
  const light = rgb => rgb.map(v => v / 255)
    .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const style = getComputedStyle(node);
  const front = light(read(node instanceof SVGElement ? style.fill : style.color).slice(0, 3));
  const back = light(behind(node));
  const contrast = (Math.max(front, back) + .05) / (Math.min(front, back) + .05);
  return contrast < 4.5 ? [`${contrast.toFixed(1)}: ${node.textContent.trim().slice(0, 40)}`] : [];
})
"""


def find_chromium() -> str | None:
    """The path of Chromium, or None if it is not installed."""
    names = (os.environ.get("CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if name and (path := shutil.which(name))), None)


class Browser:
    """Headless Chromium with one page, controlled through the DevTools protocol.

    Attributes:
        requests: URLs that the page requested, apart from its own.
        complaints: messages on its console.
    """

    def __init__(self) -> None:
        """Start Chromium; RuntimeError if it is not installed."""
        chromium = find_chromium()
        if chromium is None:
            raise RuntimeError(
                "Chromium was not found; install it, or name it: CHROMIUM=/path/to/chromium"
            )
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._number, self._session = 0, {}
        self._open = ExitStack()
        profile = self._open.enter_context(TemporaryDirectory(ignore_cleanup_errors=True))
        flags = (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--remote-debugging-port=0",
        )
        command = [chromium, *flags, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._open.callback(self._stop)
        address = self._address(Path(profile) / "DevToolsActivePort")
        self._socket = self._open.enter_context(connect(address, max_size=None, proxy=None))
        (target,) = (
            t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"
        )
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol; returns its result. RuntimeError if it fails."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        self._socket.send(json.dumps(message | self._session))
        while (answer := self._receive()).get("id") != self._number:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def open(self, page: Path, width: int = WIDTHS["desktop"], scheme: str = "light") -> None:
        """Load a page in a window of this width, with this colour scheme preferred."""
        self.requests, self.complaints = [], []
        size = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self.call("Page.navigate", url=page.resolve().as_uri())
        while self.ask("document.readyState") != "complete":
            time.sleep(0.02)

    def ask(self, expression: str) -> Any:
        """Evaluate a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"]["exception"]["description"])
        return result["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key, named as in KeyboardEvent.key."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        code = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39, "Tab": 9}.get(key, 0)
        self.call(
            "Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text
        )
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def picture(
        self, path: Path, height: int = HEIGHT, of: str | None = None, scale: int = 1
    ) -> None:
        """Write a screenshot of the top of the page, or of the element with the id `of`, as PNG."""
        clip = {"x": 0, "y": 0, "width": self.ask("innerWidth"), "height": height}
        if of:
            clip = self.ask(f"document.getElementById('{of}').getBoundingClientRect().toJSON()")
        clip = {name: clip[name] for name in ("x", "y", "width", "height")} | {"scale": scale}
        shot = self.call(
            "Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = Image.open(BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
        whole.quantize(256).save(path, optimize=True)  # a third of the bytes

    def faults(self) -> list[str]:
        """What is wrong with the page as currently shown."""
        sideways = self.ask(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        return [
            *(f"asked for {url}" for url in self.requests),
            *(f"console: {text}" for text in self.complaints),
            *([f"{sideways} pixels wider than the window"] if sideways > 0 else []),
            *(f"contrast {text}" for text in self.ask(CONTRASTS)),
        ]

    def _stop(self) -> None:
        self._process.terminate()
        self._process.wait(20)

    def _address(self, file: Path) -> str:
        """The address it listens at, which it writes into a file."""
        until = time.monotonic() + 60
        while not file.exists() or len(lines := file.read_text().split()) < 2:
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError("Chromium did not start")
            time.sleep(0.05)
        return f"ws://127.0.0.1:{lines[0]}{lines[1]}"

    def _receive(self) -> dict[str, Any]:
        """The next message; requests and console messages are recorded."""
        message = json.loads(self._socket.recv(60))
        parameters = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                url = parameters["request"]["url"]
                if (
                    urlsplit(url).scheme not in ("file", "data", "about")
                    or parameters["type"] != "Document"
                ):
                    self.requests.append(url)
            case "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                thrown = details.get("exception", {})  # missing for an error in loading
                self.complaints.append(thrown.get("description", details["text"]))
            case "Runtime.consoleAPICalled":
                self.complaints.append(
                    str([argument.get("value") for argument in parameters["args"]])
                )
            case "Log.entryAdded":
                self.complaints.append(parameters["entry"]["text"])
        return message


def main() -> int:
    """Take the screenshots; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("page", type=Path, help="HTML file")
    parser.add_argument(
        "--output", type=Path, required=True, help="folder for PAGE_phone_light.png and so on"
    )
    parser.add_argument(
        "--height", type=int, default=1000, help="pixels from the top; twice as many for a phone"
    )
    args = parser.parse_args()
    faults = []
    with Browser() as browser:
        for name, width in WIDTHS.items():
            for scheme in SCHEMES:
                browser.open(args.page, width, scheme)
                faults += [f"{name}, {scheme}: {fault}" for fault in browser.faults()]
                browser.picture(
                    args.output / f"{args.page.stem}_{name}_{scheme}.png",
                    args.height * (1 + (name == "phone")),
                )
    print("\n".join(faults) or f"4 pictures in {args.output}; no faults")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
