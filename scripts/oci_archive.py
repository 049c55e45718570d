"""Write a root file system as an OCI image in one archive, which is the same, byte by byte, for the same files.

Everything is root's and has the time SOURCE_DATE_EPOCH. Devices and sockets, which a container gets when it starts, and
extended attributes are left out. ENV, USER and ENTRYPOINT come from deploy/Containerfile.

Loading it: `ctr images import FILE`, `kind load image-archive FILE`, `podman load --input FILE`, `skopeo copy
oci-archive:FILE docker://…`.

Usage: python scripts/oci_archive.py ROOT ARCHIVE NAME:TAG
"""

import gzip
import hashlib
import io
import json
import os
import platform
import re
import sys
import tarfile
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final

CONTAINERFILE: Final = Path(__file__).resolve().parents[1] / "deploy" / "Containerfile"
TYPE: Final = "application/vnd.oci.image"
ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


class Digested(io.RawIOBase):
    """A stream that is written on to another one and digested on the way."""

    def __init__(self, target: BinaryIO | gzip.GzipFile) -> None:
        self._target, self.digest = target, hashlib.sha256()

    def write(self, data: Any, /) -> int:
        self.digest.update(data)
        return self._target.write(data)


def anonymous(member: tarfile.TarInfo, epoch: int) -> tarfile.TarInfo:
    """Return the member without an owner and a time of its own."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = epoch
    return member


def write_layer(root: Path, target: BinaryIO, epoch: int) -> str:
    """Write the files below `root` as a compressed layer. Return the digest of the uncompressed one."""
    with gzip.GzipFile("", "wb", 6, target, mtime=0) as packed:
        plain = Digested(packed)
        with tarfile.open(fileobj=plain, mode="w|", format=tarfile.PAX_FORMAT) as layer:
            for path in sorted(root.rglob("*")):
                member = anonymous(layer.gettarinfo(path, str(path.relative_to(root))), epoch)
                if member.isreg():
                    with path.open("rb") as content:
                        layer.addfile(member, content)
                elif member.isdir() or member.issym() or member.islnk():
                    layer.addfile(member)
        return plain.digest.hexdigest()


def process_of(containerfile: str) -> dict[str, Any]:
    """Return what the last stage of a Containerfile says about the image's process."""
    said = dict(re.findall(r"^(ENV|USER|ENTRYPOINT) (.+)$", containerfile.rpartition("\nFROM ")[2], re.MULTILINE))
    return {"Env": said["ENV"].split(), "User": said["USER"], "Entrypoint": json.loads(said["ENTRYPOINT"])}


def write(root: Path, target: Path, name: str, epoch: int) -> None:
    """Write the image `name` (with its tag), whose only layer is `root`."""
    with tempfile.TemporaryFile() as layer, tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:

        def add(path: str, content: BinaryIO) -> int:
            member = anonymous(tarfile.TarInfo(path), epoch)
            member.size = content.seek(0, io.SEEK_END)
            content.seek(0)
            archive.addfile(member, content)
            return member.size

        def add_blob(kind: str, content: BinaryIO) -> dict[str, Any]:
            content.seek(0)
            digest = hashlib.file_digest(content, "sha256").hexdigest()
            return {
                "mediaType": f"{TYPE}.{kind}",
                "digest": f"sha256:{digest}",
                "size": add(f"blobs/sha256/{digest}", content),
            }

        def json_file(value: dict[str, Any]) -> BinaryIO:
            return io.BytesIO(json.dumps(value, separators=(",", ":")).encode())

        plain_digest = write_layer(root, layer, epoch)
        created = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        machine = platform.machine()
        config = {
            "created": created,
            "architecture": ARCHITECTURES.get(machine, machine),
            "os": "linux",
            "config": process_of(CONTAINERFILE.read_text()),
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{plain_digest}"]},
            "history": [{"created": created, "created_by": "deploy/image/build.sh"}],
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{TYPE}.manifest.v1+json",
            "config": add_blob("config.v1+json", json_file(config)),
            "layers": [add_blob("layer.v1.tar+gzip", layer)],
        }
        # containerd has its own key for the name, and wants it whole.
        names = {"io.containerd.image.name": f"docker.io/library/{name}", "org.opencontainers.image.ref.name": name}
        made_for = {"architecture": config["architecture"], "os": "linux"}
        described = {**add_blob("manifest.v1+json", json_file(manifest)), "platform": made_for, "annotations": names}
        add("index.json", json_file({"schemaVersion": 2, "manifests": [described]}))
        add("oci-layout", json_file({"imageLayoutVersion": "1.0.0"}))


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(os.environ["SOURCE_DATE_EPOCH"]))
