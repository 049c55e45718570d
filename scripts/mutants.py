"""Run mutation tests of the rules of core: the tests should notice each changed rule (`make mutants`).

It changes every operator, number, name and argument of the modules below, one at a time, and runs the tests that reach
it: those of tests/unit/core, and the property of leases for the rest, with the same examples every time (the profile
`mutants` of tests/conftest.py). A change that no test notices is a survivor: a test is missing, or the code is not
needed. The table counts them for each module; more than `MOST_SURVIVORS_PERCENT` of them is a failure.

    make mutants                       all of it, about twenty minutes on two cores
    make mutants MUTANTS="gangs fit"   modules whose path contains one of these words
    .venv/bin/mutmut show NAME         the change of a survivor

Not changed are texts for people (the message of a `raise`, f-strings, literals with a space), and checks that no test
can see fail (asserts, zip with `strict`). mutmut itself leaves out annotations, decorated functions and module
constants.
"""

import shutil
import sys
from collections.abc import Sequence
from typing import Final

import libcst as cst
from libcst import matchers as m
from mutmut.__main__ import cli
from mutmut.configuration import config
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.file_mutation import MutationVisitor
from mutmut.stats import status_by_exit_code

MOST_SURVIVORS_PERCENT: Final = 5.0
"""A ratchet: it only goes down."""

WORKERS: Final = 2

_DECIDES_NOTHING: Final = (cst.Raise, cst.FormattedString, cst.Assert)
_ZIP_STRICT: Final = m.Call(func=m.Name("zip"), args=[m.ZeroOrMore(), m.Arg(keyword=m.Name("strict"))])


def main(words: Sequence[str]) -> int:
    _leave_out_what_decides_nothing()
    # An editable install finds egpu before the path does: the changed copy has to come first.
    sys.meta_path[:] = [one for one in sys.meta_path if "editable" not in type(one).__module__]
    modules = [path for path in config().only_mutate if not words or any(word in path for word in words)]
    config().only_mutate[:] = modules
    shutil.rmtree("mutants", ignore_errors=True)  # else a file copied unchanged before would stay
    cli.main(["run", "--max-children", str(WORKERS)], standalone_mode=False)
    return report(modules)


def _leave_out_what_decides_nothing() -> None:
    skips = MutationVisitor._skip_node_and_children

    def skips_more(self: MutationVisitor, node: cst.CSTNode) -> bool:
        text = isinstance(node, cst.SimpleString) and " " in node.value
        return text or isinstance(node, _DECIDES_NOTHING) or m.matches(node, _ZIP_STRICT) or skips(self, node)

    MutationVisitor._skip_node_and_children = skips_more


def report(modules: Sequence[str]) -> int:
    print(f"\n{'module':<34} {'killed':>6} {'survived':>8}")
    failed = 0
    for path in modules:
        data = SourceFileMutationData(path=path)
        data.load()
        killed = survived = 0
        for code in data.exit_code_by_key.values():
            if status_by_exit_code[code] in ("killed", "timeout"):
                killed += 1
            else:
                survived += 1
        share = 100 * survived / max(1, killed + survived)
        failed += share > MOST_SURVIVORS_PERCENT
        print(f"{path.removeprefix('src/egpu/core/'):<34} {killed:>6} {survived:>8}   {share:.1f} %")
    if failed:
        print(
            f"more than {MOST_SURVIVORS_PERCENT:g} % survived in {failed} modules: .venv/bin/mutmut results lists them"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
