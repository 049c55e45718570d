"""What bash and zsh are offered after TAB for commands, profiles, pods and leases.

A shell asks with every TAB, so nothing is imported here that takes long: not the command line itself, which completes
all else (options, files), and no client. Whatever cannot be found is not offered, and nothing is ever said.
"""

import base64
import http.client
import json
import os
import shlex
import ssl
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import yaml

from egpu.cli import ASKS
from egpu.cli.panels import DEFAULT_BROKER, PANELS

TIMEOUT_SECONDS: Final = 1.0
MAX_PODS: Final = 500
OK: Final = 200
_PROFILES: Final = Path(__file__).parent.parent / "adapters" / "simulator" / "profiles"

Offer = Callable[[Sequence[str]], Sequence[str]]
"""From the words before the one that is completed (without `egpu`) to what may be there."""


def offered() -> bool:
    """Print what the shell may complete; False where the command line knows better, and nothing was printed."""
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


def _words(shell: str) -> list[str] | None:
    """The words typed so far, without `egpu`; the last is the one that is completed. None: not told."""
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
    except (KeyError, ValueError):  # a quotation that is not closed yet
        return None


def _offer(before: Sequence[str]) -> Offer | None:
    match list(before):
        case []:
            return _commands
        case [*_, "--simulate" | "--profile"]:
            return _profiles
        case ["explain"]:
            return lambda _: ["pod"]
        case ["explain", "pod"] | ["defrag"] | ["explain" | "defrag", *_, "-n" | "--namespace", _]:
            return _pods
        case ["resize"]:
            return _leases
        case _:
            return None


def _commands(_: Sequence[str]) -> list[str]:
    return [name for names in PANELS.values() for name in names]


def _profiles(_: Sequence[str]) -> list[str]:
    return sorted(path.stem.upper() for path in _PROFILES.glob("*.yaml"))


def _pods(before: Sequence[str]) -> list[str]:
    """Names of the namespace's pods, by one request to the cluster of the kubeconfig."""
    namespace = next(
        (before[at + 1] for at, word in enumerate(before[:-1]) if word in ("-n", "--namespace")), "default"
    )
    try:
        file = Path(os.environ.get("KUBECONFIG", "").split(os.pathsep)[0] or Path.home() / ".kube" / "config")
        config = yaml.safe_load(file.read_text())
        context = _named(config["contexts"], config["current-context"])["context"]
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
    """Whom the connection trusts, and who it is, from a kubeconfig in the directory `beside`."""
    authority = _content(cluster, "certificate-authority", beside)
    trust = ssl.create_default_context(cadata=authority.decode() if authority else None)
    if certificate := _content(user, "client-certificate", beside):
        with tempfile.NamedTemporaryFile() as file:  # OpenSSL takes it from a file alone; nobody else can read this one
            file.write(certificate + b"\n" + _content(user, "client-key", beside))
            file.flush()
            trust.load_cert_chain(file.name)
    return trust


def _content(entry: Mapping[str, Any], name: str, beside: Path) -> bytes:
    """What an entry of a kubeconfig holds, or the file that it names does; b"" where it has neither."""
    if data := entry.get(f"{name}-data"):
        return base64.b64decode(data)
    return (beside / entry[name]).read_bytes() if entry.get(name) else b""


def _leases(_: Sequence[str]) -> list[str]:
    """Leases of the pool that EGPU_POOL names, for who has its default secret."""
    import asyncio

    from egpu.adapters.pool.client import PoolClient, parse_address
    from egpu.adapters.pool.security import Credentials
    from egpu.errors import ElasticGPUError

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
