"""Completion of commands, profiles, pods and leases for bash and zsh, and for kubectl.

A shell runs this with every TAB, so this module imports nothing slow: no client, and not the command line, which
completes the rest (options, files). On any error it offers nothing and prints no message.
"""

import base64
import contextlib
import http.client
import io
import json
import os
import shlex
import ssl
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import yaml

from egpu.cli import ASKS, main
from egpu.cli.panels import DEFAULT_BROKER, PANELS

TIMEOUT_SECONDS: Final = 1.0
MAX_PODS: Final = 500
OK: Final = 200
FILES, NO_FILES = 0, 4
"""What kubectl's shells do beside our candidates, as its completion library numbers it."""
_SIMULATOR: Final = "egpu_sim"

Offer = Callable[[Sequence[str]], Sequence[str]]
"""Maps the words before the completed one (without `egpu`) to candidates."""


def offered() -> bool:
    """Print the candidates for the shell. False: nothing was printed, and the command line completes the word."""
    shell = os.environ.get(ASKS, "").removeprefix("complete_")
    words = _words(shell)
    if words is None:
        return False
    *before, begun = words
    offer = _offer(before)
    if offer is None or begun.startswith("-"):
        return False
    found = [one for one in offer(before) if one.lower().startswith(begun.lower())]
    if shell == "zsh":
        choices = "\n".join(f'"{one}"' for one in found)
        sys.stdout.write(f"_arguments '*: :(({choices}))'\n" if found else "_files\n")
    else:
        sys.stdout.write("".join(f"{one}\n" for one in found))
    return True


def for_kubectl() -> None:
    """Entry point of `kubectl_complete-egpu`, which kubectl runs for completion after `kubectl egpu`. Print a candidate
    a line, then what the shell does beside them."""
    words = sys.argv[1:] or [""]
    sys.argv = ["egpu"]
    asked = {ASKS: "complete_bash", "COMP_WORDS": shlex.join(["egpu", *words]), "COMP_CWORD": str(len(words))}
    os.environ.update(asked)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main()
    found = said.getvalue()
    sys.stdout.write(f"{found}:{NO_FILES if found.strip() else FILES}\n")


def _words(shell: str) -> list[str] | None:
    """Return the typed words without `egpu`. The last one is to be completed. None: the shell did not pass them."""
    try:
        match shell:
            case "bash":
                words = shlex.split(os.environ["COMP_WORDS"])
                count = int(os.environ["COMP_CWORD"])
                return [*words[1:count], words[count] if count < len(words) else ""]
            case "zsh":
                text = os.environ["_TYPER_COMPLETE_ARGS"]
                return [*shlex.split(text)[1:], *([""] if text.endswith(" ") else [])] or None
            case _:
                return None
    except (KeyError, ValueError):  # an open quotation
        return None


def _offer(before: Sequence[str]) -> Offer | None:
    match list(before):
        case []:
            return _commands
        case [*_, "--simulate" | "--profile"]:
            return _profiles
        case ["explain"]:
            return lambda _: ["pod", "claim", "node"]
        case ["explain", "pod"] | ["defrag" | "doctor"]:
            return _pods
        case ["explain" | "defrag" | "doctor", *_, "-n" | "--namespace", _]:
            return _pods
        case ["resize" | "move"]:
            return _leases
        case _:
            return None


def _commands(_: Sequence[str]) -> list[str]:
    return [name for names in PANELS.values() for name in names]


def _profiles(_: Sequence[str]) -> list[str]:
    """Names of the simulator's files; importing it would take too long."""
    simulator = find_spec(_SIMULATOR)
    folders = [] if simulator is None else simulator.submodule_search_locations or []
    return sorted(path.stem.upper() for folder in folders for path in Path(folder).glob("machines/profiles/*.yaml"))


def _pods(before: Sequence[str]) -> list[str]:
    """Return the names of the namespace's pods, with one request to the kubeconfig's cluster."""
    said = next((before[at + 1] for at, word in enumerate(before[:-1]) if word in ("-n", "--namespace")), "")
    try:
        file = Path(os.environ.get("KUBECONFIG", "").split(os.pathsep)[0] or Path.home() / ".kube" / "config")
        config = yaml.safe_load(file.read_text())
        context = _named(config["contexts"], config["current-context"])["context"]
        namespace = said or str(context.get("namespace") or "default")
        cluster = _named(config["clusters"], context["cluster"])["cluster"]
        user = _named(config["users"], context["user"])["user"]
        server = urlsplit(str(cluster["server"]))
        connection = http.client.HTTPSConnection(
            server.hostname or "", server.port, timeout=TIMEOUT_SECONDS, context=_trust(cluster, user, file.parent)
        )
        headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
        connection.request("GET", f"/api/v1/namespaces/{quote(namespace)}/pods?limit={MAX_PODS}", headers=headers)
        answer = connection.getresponse()
        return sorted(pod["metadata"]["name"] for pod in json.load(answer)["items"]) if answer.status == OK else []
    except (OSError, http.client.HTTPException, LookupError, TypeError, ValueError, yaml.YAMLError):
        return []


def _named(some: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    found = [one for one in some if one["name"] == name]
    return found[0]


def _trust(cluster: Mapping[str, Any], user: Mapping[str, Any], beside: Path) -> ssl.SSLContext:
    """Return the CA and client certificate of a kubeconfig that lies in the directory `beside`."""
    authority = _content(cluster, "certificate-authority", beside)
    trust = ssl.create_default_context(cadata=authority.decode() if authority else None)
    if certificate := _content(user, "client-certificate", beside):
        with tempfile.NamedTemporaryFile() as file:  # OpenSSL reads it from a file only; this one is private
            file.write(certificate + b"\n" + _content(user, "client-key", beside))
            file.flush()
            trust.load_cert_chain(file.name)
    return trust


def _content(entry: Mapping[str, Any], name: str, beside: Path) -> bytes:
    """Return the data of a kubeconfig entry, inline or from the file that it names; b"" without either."""
    if data := entry.get(f"{name}-data"):
        return base64.b64decode(data)
    return (beside / entry[name]).read_bytes() if entry.get(name) else b""


def _leases(_: Sequence[str]) -> list[str]:
    """Return the leases of the pool in EGPU_POOL. This works only with the default secret."""
    import asyncio

    from egpu.adapters.pool.client import PoolClient, parse_address
    from egpu.adapters.pool.security import Credentials
    from egpu_base.errors import ElasticGPUError

    secret = os.environ.get("EGPU_POOL_SECRET_FILE") or Path.home() / ".egpu" / "pool.secret"

    async def ask() -> list[str]:
        address = parse_address(os.environ.get("EGPU_POOL") or DEFAULT_BROKER)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            client = await PoolClient.connect(address, Credentials(secret_file=Path(secret)))
            try:
                return sorted({lease.lease for lease in await client.leases()})
            finally:
                await client.close()

    try:
        return asyncio.run(ask())
    except (ElasticGPUError, OSError):
        return []
