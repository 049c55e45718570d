"""Issue forms and CODEOWNERS are files that GitHub can use."""

import re
from typing import Any

import pytest
import yaml

from support.repository import files, folders, listed, text

FORMS = [each for each in sorted(files()) if each.startswith(".github/ISSUE_TEMPLATE/") and "config" not in each]


@pytest.mark.parametrize("form", FORMS)
def test_an_issue_form_has_what_github_requires(form: str) -> None:
    said: dict[str, Any] = yaml.safe_load(text(form))
    assert {"name", "description", "body"} <= said.keys()
    inputs = [each for each in said["body"] if each["type"] != "markdown"]
    assert all(each["attributes"]["label"] for each in inputs)
    names = [each["id"] for each in inputs]
    assert len(names) == len({*names})
    assert any(each.get("validations", {}).get("required") for each in inputs)


def test_owned_paths_exist() -> None:
    lines = [line.split() for line in text(".github/CODEOWNERS").splitlines() if line and not line.startswith("#")]
    assert lines[0][0] == "*", "every file has an owner"
    paths = [path.strip("/") for path, *_ in lines[1:]]
    assert not (lost := [path for path in paths if path not in folders() | files()]), listed("no such path", lost)
    assert all(re.fullmatch(r"@[\w-]+(/[\w-]+)?", owner) for _, *owners in lines for owner in owners)
