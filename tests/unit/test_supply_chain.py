"""What goes into an installation is known, looked up, and made the same twice."""

import json
import zipfile
from datetime import date
from pathlib import Path
from typing import Any

import audit
import generate_sbom
import locks
import pytest
import reproducible_wheel
from locks import Pin

OPENED = {
    "id": "X-1",
    "aliases": ["CVE-1"],
    "package": "a",
    "ranges": [["1.2", "1.10"], ["2", None]],
    "versions": ["0.9"],
}


@pytest.mark.parametrize(
    ("version", "is_affected"),
    [("1.1", False), ("1.2", True), ("1.9", True), ("1.10", False), ("1.10rc1", True), ("2.0", True), ("0.9", True)],
)
def test_a_pinned_version_is_compared_as_versions_are(version: str, is_affected: bool) -> None:
    assert audit.affected(Pin("a", version), OPENED) is is_affected


def test_an_affected_pin_fails_the_check_and_is_named() -> None:
    data = {"asOf": "2026-01-01", "packages": ["a", "b"], "advisories": [OPENED]}
    status, said = audit.report([Pin("a", "1.2"), Pin("b", "1.2"), Pin("new", "3")], data, date(2026, 1, 11))
    assert status == 1
    assert said[:2] == ["a 1.2: X-1, CVE-1", "not looked up, the data is older than the pin: new 3"]
    assert "10 days old: 1 affected" in said[2]
    assert audit.report([Pin("a", "1.10")], data, date(2026, 1, 1))[0] == 0


def test_what_is_accepted_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "ACCEPTED", {"X-1": "a is not used so"})
    assert audit.found([Pin("a", "1.2")], [OPENED]) == []


def test_the_data_knows_what_was_known() -> None:
    data = json.loads(audit.DATA.read_text())
    assert audit.found([Pin("cryptography", "41.0.5")], data["advisories"])
    assert not audit.found([Pin("cryptography", "45.0.0")], data["advisories"])


def test_an_entry_of_the_database_is_read() -> None:
    said: dict[str, Any] = {
        "id": "X-1",
        "affected": [
            {
                "ranges": [
                    {"type": "GIT", "events": [{"introduced": "0"}, {"fixed": "c0ffee"}]},
                    {"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.5"}, {"introduced": 2}]},
                ]
            },
            {"versions": ["7.1"]},
        ],
    }
    made = audit.advisory_of("a", said)
    assert made is not None
    assert (made["ranges"], made["versions"]) == ([("0", "1.5"), ("2", None)], ["7.1"])
    assert audit.advisory_of("a", said | {"withdrawn": "2026-01-01T00:00:00Z"}) is None


def test_the_bill_of_materials_has_all_that_is_pinned_and_what_it_is_for() -> None:
    text = generate_sbom.rendered()
    assert text == generate_sbom.TARGET.read_text()
    bill = json.loads(text)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    listed = {(one["name"], one["version"]): one for one in bill["components"]}
    assert len(listed) == len(bill["components"])
    for file, scopes in ((locks.IMAGE, {"required"}), (locks.RUN, {"required", "optional"})):
        for pin in locks.pins(file):
            found = listed[pin.name, pin.version]
            assert found["scope"] in scopes
            assert found["purl"] == f"pkg:pypi/{pin.name}@{pin.version}"
            assert found["hashes"]
    assert {one["scope"] for one in bill["components"]} == {"required", "optional", "excluded"}


def test_lock_files_are_read_whole() -> None:
    for file in (locks.IMAGE, locks.RUN, locks.DEV, locks.MUTANTS, locks.DOCS):
        text = file.read_text()
        assert len(locks.pins(file)) == text.count("==")
        assert sum(len(pin.hashes) for pin in locks.pins(file)) == text.count("sha256:")


def archive(
    path: Path, members: dict[str, str], when: tuple[int, int, int, int, int, int] = (2026, 1, 1, 0, 0, 0)
) -> Path:
    with zipfile.ZipFile(path, "w") as made:
        for name, text in members.items():
            made.writestr(zipfile.ZipInfo(name, when), text)
    return path


def test_two_wheels_are_compared_byte_by_byte(tmp_path: Path) -> None:
    one = archive(tmp_path / "1", {"a": "a", "b": "b"})
    assert reproducible_wheel.differences(one, archive(tmp_path / "2", {"a": "a", "b": "b"})) == []
    assert reproducible_wheel.differences(one, archive(tmp_path / "3", {"a": "A", "c": "b"})) == ["a", "b", "c"]
    later = archive(tmp_path / "4", {"a": "a", "b": "b"}, (2026, 1, 2, 0, 0, 0))
    assert "times" in reproducible_wheel.differences(one, later)[0]
