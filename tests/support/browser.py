"""A real browser without a screen: Debian's chromium, spoken to by its DevTools protocol."""

import base64
import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, Message, Ping, Request

from support.waiting import DEADLINE_SECONDS, wait_until

CHROMIUM = shutil.which("chromium")


class Page:
    """One tab. `events` are what the browser told of it: requests, messages of its console, exceptions."""

    def __init__(self, web_socket: str) -> None:
        address = urlsplit(web_socket)
        self._sock = socket.create_connection((address.hostname, address.port), DEADLINE_SECONDS)
        self._protocol = WSConnection(ConnectionType.CLIENT)
        self._sock.sendall(self._protocol.send(Request(host=address.netloc, target=address.path)))
        self._text = ""
        self._number = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self._accepted = False
        while not self._accepted:
            self._receive()
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._sock.close()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """What the browser answers. Raises AssertionError with what it refuses."""
        self._number += 1
        asked = {"id": self._number, "method": method, "params": parameters}
        self._sock.sendall(self._protocol.send(Message(json.dumps(asked))))
        while self._number not in self._answers:
            self._receive()
        answer = self._answers.pop(self._number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def open(self, url: str) -> None:
        """And wait until it is there."""
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def until(self, condition: str) -> None:
        """Until an expression in the page is true."""

        def met() -> bool:
            with contextlib.suppress(AssertionError):  # between two pages there is none to ask
                return bool(self.run(condition))
            return False

        wait_until(met, lambda: f"{condition}; the page says: {self.text()}")

    def text(self) -> str:
        """All that can be read on the page."""
        return str(self.run("document.body.innerText"))

    def look(self, *, width: int, height: int = 900, dark: bool = False) -> None:
        """As on a screen of so many pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path) -> None:
        """What is seen, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, and exceptions."""
        found = list[str]()
        for event in self.events:
            match event["method"], event["params"]:
                case "Runtime.exceptionThrown", {"exceptionDetails": details}:
                    found.append(str(details))
                case "Runtime.consoleAPICalled", {"type": "error" | "warning" as kind, "args": said}:
                    found.append(f"{kind}: {said}")
                case "Log.entryAdded", {"entry": {"level": "error" | "warning"} as entry}:
                    found.append(f"{entry['text']} {entry.get('url', '')}")
                case _:
                    pass
        return found

    def requests(self) -> list[str]:
        """Every address that it asked for something."""
        return [
            each["params"]["request"]["url"] for each in self.events if each["method"] == "Network.requestWillBeSent"
        ]

    def _receive(self) -> None:
        data = self._sock.recv(1 << 16)
        assert data, "the browser is gone"
        self._protocol.receive_data(data)
        for event in self._protocol.events():
            match event:
                case AcceptConnection():
                    self._accepted = True
                case Ping():
                    self._sock.sendall(self._protocol.send(event.response()))
                case Message():
                    self._text += str(event.data)
                    if event.message_finished:
                        self._take(json.loads(self._text))
                        self._text = ""
                case _:
                    pass

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers[message["id"]] = message
        else:
            self.events.append(message)


@contextlib.contextmanager
def browser(home: Path) -> Generator[Callable[[], Page]]:
    """Opens tabs. Its profile, which is new, is in `home`."""
    assert CHROMIUM is not None
    flags = [
        "--headless=new",
        "--remote-debugging-port=0",
        f"--user-data-dir={home}",
        *("--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update"),
        *(["--no-sandbox"] if os.getuid() == 0 else []),
    ]
    process = subprocess.Popen([CHROMIUM, *flags, "about:blank"], stderr=subprocess.DEVNULL, start_new_session=True)
    pages = list[Page]()
    try:
        told = home / "DevToolsActivePort"
        port = wait_until(lambda: told.read_text().split("\n")[0] if told.exists() else "", "chromium's port")

        def page() -> Page:
            answer = _ask(int(port), "PUT", "/json/new?about:blank")
            pages.append(Page(json.loads(answer)["webSocketDebuggerUrl"]))
            return pages[-1]

        yield page
    finally:
        for one in pages:
            one.close()
        process.terminate()
        process.wait(DEADLINE_SECONDS)


def _ask(port: int, method: str, target: str) -> bytes:
    """An HTTP answer's body, from the browser itself."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_SECONDS)
    with contextlib.closing(connection):
        connection.request(method, target)
        return connection.getresponse().read()
