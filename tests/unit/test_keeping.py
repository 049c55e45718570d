"""What is read once: the collector leaves it alone, while it is made and afterwards, and goes on with the rest."""

import gc
import subprocess
import sys

import pytest

from egpu import cli
from egpu_base.errors import Unavailable
from egpu_base.runtime.keeping import OLD_AFTER, kept_for_good, seldom_searched


@pytest.fixture(autouse=True)
def thawed():
    yield
    gc.unfreeze()
    gc.enable()


def test_the_collector_rests_while_it_is_made_and_does_not_look_through_it_afterwards():
    before = gc.get_freeze_count()
    with kept_for_good():
        assert not gc.isenabled()
        made = [[number] for number in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(made)


def test_what_fails_leaves_the_collector_as_it_was():
    with pytest.raises(Unavailable), kept_for_good():
        raise Unavailable("the cluster")
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    with kept_for_good():
        pass
    assert not gc.isenabled()


def test_what_is_old_is_searched_seldom_until_the_end():
    before = gc.get_threshold()
    made = [[number] for number in range(1000)]
    with seldom_searched():
        assert gc.get_freeze_count() >= len(made)
        assert gc.get_threshold() == (*before[:2], OLD_AFTER)
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_what_fails_ends_that_too():
    before = gc.get_threshold()
    with pytest.raises(Unavailable), seldom_searched():
        raise Unavailable("the cluster")
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_a_command_collects_seldom_while_it_imports() -> None:
    code = "import gc, atexit; atexit.register(lambda: print(gc.get_threshold())); from egpu.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "version"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == str(cli.SELDOM)


def test_a_component_collects_as_usual_but_for_its_modules() -> None:
    gc.set_threshold(*cli.SELDOM)
    cli.collect_as_usual()
    assert gc.get_threshold() == cli.USUAL
    assert gc.get_freeze_count() > 0
