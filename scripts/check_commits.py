"""Check commit messages: an imperative subject of at most 72 characters, a blank line, a body that says why.

Without FILE, check the commits after BASE, merges apart. With FILE, check the message in it (pre-commit's commit-msg).

Usage: python scripts/check_commits.py [FILE]
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
BASE: Final = "ef55f6a01b0ed741984f17be246685c28e6009bd"
"""The last commit from before these rules."""
SUBJECT_COLUMNS: Final = 72
BODY_COLUMNS: Final = 100
NO_VERBS: Final = re.compile(
    r"a|all|an|and|another|any|as|at|both|by|each|every|for|from|how|if|in|it|its|many|most|new|no|nobody|not|of"
    r"|on|one|only|other|our|since|some|somebody|such|that|the|their|there|these|they|this|those|to|what|whatever"
    r"|when|where|which|while|who|whoever|whom|whose|why|with|without"
)
VERBS: Final = re.compile(
    r"access|address|assess|bless|bring|bus|bypass|compress|cross|discuss|embed|express|feed|focus|guess|miss|need"
    r"|pass|press|process|proceed|seed|shed|speed|suppress"
)
"""Imperatives that end as other forms of verbs, or plurals, do."""


def is_imperative(word: str) -> bool:
    """Return whether a subject's first word may be a verb in the imperative."""
    return bool(VERBS.fullmatch(word)) or not (NO_VERBS.fullmatch(word) or word.endswith(("s", "ed", "ing")))


def problems(message: str) -> list[str]:
    """Return what is wrong with a commit message. Merges are exempt."""
    subject, *rest = message.strip("\n").split("\n")
    if subject.startswith("Merge "):
        return []
    found: list[str] = []
    first = subject.split(" ", maxsplit=1)[0].strip(":,").lower()
    if not is_imperative(first):
        found.append(f"the subject begins with {first!r}. Begin it with an imperative, such as Add, Fix or Move.")
    if len(subject) > SUBJECT_COLUMNS:
        found.append(f"the subject has {len(subject)} characters. Use at most {SUBJECT_COLUMNS}.")
    if rest and rest[0]:
        found.append("the line after the subject is not empty.")
    body = [line for line in rest if line.strip()]
    if not body:
        found.append("there is no body. Say why, and what users notice.")
    # Long words (addresses, paths) and indented output cannot be wrapped.
    wide = [line for line in body if len(line) > BODY_COLUMNS and not line.startswith("    ") and " " in line.strip()]
    if wide:
        found.append(f"{len(wide)} lines of the body are wider than {BODY_COLUMNS} columns.")
    return found


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def messages() -> dict[str, str] | None:
    """Return the messages of the commits after BASE, by their names. Return None if BASE is not in the history."""
    try:
        if git("merge-base", "--is-ancestor", BASE, "HEAD").returncode:
            return None
    except FileNotFoundError:
        return None
    log = git("log", "--no-merges", "--reverse", "--format=%h%n%B%x00", f"{BASE}..HEAD").stdout
    parts = (each.lstrip("\n").partition("\n") for each in log.split("\0") if each.strip())
    return {name: message for name, _, message in parts}


def written(file: Path) -> str:
    """Return the message that an editor left in a file, without git's comments."""
    text = file.read_text().partition("# ------------------------ >8")[0]
    return "\n".join(line.rstrip() for line in text.splitlines() if not line.startswith("#"))


def main(arguments: list[str]) -> int:
    found = {"this message": written(Path(arguments[0]))} if arguments else messages()
    if found is None:
        print(f"commit messages: not checked; git or commit {BASE[:8]} is not here (a shallow clone?)", file=sys.stderr)
        return 0
    wrong = [f"{name}: {each}" for name, message in found.items() for each in problems(message)]
    print("\n".join(wrong) or f"commit messages: {len(found)} checked", file=sys.stderr if wrong else sys.stdout)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
