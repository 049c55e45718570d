"""An image archive has the digests that it names, and the same bytes for the same files."""

import gzip
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import oci_archive

EPOCH = 1_700_000_000


def root(folder: Path) -> Path:
    """A small root file system, with files that a container does not get."""
    (folder / "usr/bin").mkdir(parents=True)
    (folder / "usr/bin/tool").write_bytes(b"#!/bin/sh\n" * 1000)
    (folder / "usr/bin/tool").chmod(0o755)
    (folder / "usr/bin/again").hardlink_to(folder / "usr/bin/tool")
    (folder / "bin").symlink_to("usr/bin")
    (folder / "tmp").mkdir()
    (folder / "tmp").chmod(0o1777)
    (folder / ("long" * 40)).write_text("a name beyond ustar's hundred characters")
    os.mkfifo(folder / "fifo")
    return folder


def members(data: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {member.name: member for member in archive.getmembers()}


class Archive:
    """An OCI image in one file, read without the code that writes it."""

    def __init__(self, file: tarfile.TarFile) -> None:
        self._file = file

    def read(self, name: str) -> bytes:
        found = self._file.extractfile(name)
        assert found is not None
        return found.read()

    def blob(self, descriptor: Any) -> bytes:
        """What a descriptor describes, which must have its digest and size."""
        algorithm, _, digest = descriptor["digest"].partition(":")
        data = self.read(f"blobs/{algorithm}/{digest}")
        assert hashlib.sha256(data).hexdigest() == digest
        assert len(data) == descriptor["size"]
        return data


def test_digests_are_right_and_the_layer_has_the_files(tmp_path: Path) -> None:
    oci_archive.write(root(tmp_path / "root"), tmp_path / "image.tar", "elastic-gpu:0.1.0", EPOCH)
    with tarfile.open(tmp_path / "image.tar") as file:
        archive = Archive(file)
        assert json.loads(archive.read("oci-layout")) == {"imageLayoutVersion": "1.0.0"}
        (described,) = json.loads(archive.read("index.json"))["manifests"]
        assert described["annotations"]["org.opencontainers.image.ref.name"] == "elastic-gpu:0.1.0"
        manifest = json.loads(archive.blob(described))
        (layer,) = manifest["layers"]
        plain = gzip.decompress(archive.blob(layer))
        config = json.loads(archive.blob(manifest["config"]))
        assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(plain).hexdigest()}"]
        assert config["created"] == "2023-11-14T22:13:20Z"

    found = members(plain)
    assert list(found) == sorted(found)
    assert found.keys() == {"bin", "long" * 40, "tmp", "usr", "usr/bin", "usr/bin/again", "usr/bin/tool"}
    assert {(one.uid, one.gid, one.uname, one.mtime) for one in found.values()} == {(0, 0, "", EPOCH)}
    assert found["bin"].linkname == "usr/bin"
    assert found["usr/bin/tool"].islnk()
    assert (found["usr/bin/again"].mode, found["tmp"].mode) == (0o755, 0o1777)


def test_the_same_files_give_the_same_bytes_at_another_time_and_place(tmp_path: Path) -> None:
    first, second = root(tmp_path / "one"), root(tmp_path / "another-place")
    os.utime(second / "usr/bin/tool", (1, 1))
    for number, folder in enumerate((first, second)):
        oci_archive.write(folder, tmp_path / f"{number}.tar", "elastic-gpu:0.1.0", EPOCH)
    assert (tmp_path / "0.tar").read_bytes() == (tmp_path / "1.tar").read_bytes()
    (second / "usr/bin/tool").chmod(0o700)
    oci_archive.write(second, tmp_path / "1.tar", "elastic-gpu:0.1.0", EPOCH)
    assert (tmp_path / "0.tar").read_bytes() != (tmp_path / "1.tar").read_bytes()


def test_the_process_is_the_containerfile_s() -> None:
    process = oci_archive.process_of(oci_archive.CONTAINERFILE.read_text())
    assert process["Entrypoint"] == ["/opt/elastic-gpu/bin/egpu"]
    assert process["User"] == "65532:65532"
    assert "PATH=/opt/elastic-gpu/bin:/usr/bin:/bin" in process["Env"]


def test_the_containers_process_is_the_images_user(tmp_path: Path) -> None:
    oci_archive.write(root(tmp_path / "root"), tmp_path / "image.tar", "elastic-gpu:0.1.0", EPOCH)
    with tarfile.open(tmp_path / "image.tar") as file:
        archive = Archive(file)
        (described,) = json.loads(archive.read("index.json"))["manifests"]
        config = json.loads(archive.blob(json.loads(archive.blob(described))["config"]))
    assert config["config"]["User"] == "65532:65532"
    assert described["platform"] == {"architecture": config["architecture"], "os": "linux"}
    assert config["architecture"] in {"amd64", "arm64"}
