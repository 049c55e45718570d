"""Rules of commit messages, and where they apply."""

from pathlib import Path

import check_commits
import pytest

BODY = "\n\nUsers see one message less.\n"


@pytest.mark.parametrize(
    "subject",
    ["Add a target for releases", "Process usage files in order", "Pass the limit on", "Merge: plain English"],
)
def test_an_imperative_with_a_body_is_right(subject: str) -> None:
    assert check_commits.problems(subject + BODY) == []


@pytest.mark.parametrize(
    "subject",
    ["A second server is refused", "Whose pod waits is told so", "Fixes a crash", "Added a target", "Adding a target"],
)
def test_other_beginnings_are_refused(subject: str) -> None:
    (problem,) = check_commits.problems(subject + BODY)
    assert problem.startswith(f"the subject begins with '{subject.split(maxsplit=1)[0].lower()}'")


def test_each_rule_has_a_problem_of_its_own() -> None:
    assert check_commits.problems("Add " + "x" * 68 + BODY) == []
    (long,) = check_commits.problems("Add " + "x" * 69 + BODY)
    assert "73 characters" in long
    (bare,) = check_commits.problems("Add a target")
    assert "no body" in bare
    (joined,) = check_commits.problems("Add a target\nIt makes releases.")
    assert "not empty" in joined
    (wide,) = check_commits.problems("Add a target\n\n" + "word " * 21)
    assert "100 columns" in wide


def test_lines_that_cannot_be_wrapped_may_be_wide() -> None:
    wide = f"https://example.org/{'x' * 100}\n    $ {'word ' * 21}"
    assert check_commits.problems(f"Add a target\n\n{wide}\n") == []


def test_a_file_is_read_without_comments(tmp_path: Path) -> None:
    file = tmp_path / "COMMIT_EDITMSG"
    scissors = "# ------------------------ >8 ------------------------\ndiff --git a b"
    file.write_text(f"Add a target\n\nIt makes releases.\n# Please enter the message\n{scissors}\n")
    assert check_commits.main([str(file)]) == 0
    file.write_text("Added a target\n# Please enter the message\n")
    assert check_commits.main([str(file)]) == 1


def test_without_the_base_nothing_is_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check_commits, "BASE", "0" * 40)
    assert check_commits.main([]) == 0
    assert "not checked" in capsys.readouterr().err


def test_commits_are_read_from_git(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(check_commits, "ROOT", tmp_path)
    who = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")
    check_commits.git("init", "-q")
    for message in ("First", "Add one\n\nWhy.", "Adds another"):
        check_commits.git(*who, "commit", "-q", "--allow-empty", "-m", message)
    monkeypatch.setattr(check_commits, "BASE", check_commits.git("rev-parse", "HEAD~2").stdout.strip())
    found = check_commits.messages()
    assert found is not None
    assert [message.split("\n")[0] for message in found.values()] == ["Add one", "Adds another"]
    assert check_commits.main([]) == 1
