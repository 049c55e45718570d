"""The waits of the simulated controllers between tries to make a refused pod."""

from types import SimpleNamespace
from typing import Any

import pytest

from egpu_base.api.kubernetes import ObjectMeta
from egpu_base.errors import AlreadyExists, Refused
from egpu_sim.cluster.controllers import making
from egpu_sim.cluster.controllers.kinds import ReplicaSet
from egpu_sim.cluster.controllers.making import Maker, Wanted


class Api:
    """Refuses the pods after the first `allowed`."""

    def __init__(self) -> None:
        self.allowed = 0
        self.asked = 0
        self.told: list[str] = []
        self.error: Exception | None = None
        self.now = 100.0

    async def raw(self, *_: Any, **__: Any) -> None:
        self.asked += 1
        if self.error is not None:
            raise self.error
        if self.allowed == 0:
            raise Refused(f'pods "web-{self.asked:05d}" is forbidden: a quota')
        self.allowed -= 1

    async def warn_each_time(self, _subject: Any, _reason: str, message: str) -> None:
        self.told.append(message)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    made = Api()
    monkeypatch.setattr(making, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def owner(generation: int = 1) -> ReplicaSet:
    return ReplicaSet(metadata=ObjectMeta(name="web", namespace="n", uid="u", generation=generation))


async def test_the_wait_doubles_up_to_its_limit_and_no_pod_is_asked_for_meanwhile(api: Any) -> None:
    maker, waits = Maker(api, api), list[float]()
    wait = 0.0
    for tries in range(1, 9):
        for _ in range(3):
            refusal = await maker.make(owner(), [Wanted()] * 10)
            assert refusal is not None
            wait = refusal.wait_seconds
        assert api.asked == tries, "one pod a try: the others would be refused as well"
        waits.append(wait)
        api.now += wait
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]
    assert set(api.told) == {'Error creating: pods "web-*" is forbidden: a quota'}, "no random names"


async def test_a_success_or_another_specification_ends_the_wait(api: Any) -> None:
    maker = Maker(api, api)
    await maker.make(owner(), [Wanted()])
    await maker.make(owner(generation=2), [Wanted()])
    assert api.asked == 2
    api.now, api.allowed = 200.0, 3
    assert await maker.make(owner(generation=2), [Wanted()] * 3) is None
    refusal = await maker.make(owner(generation=2), [Wanted()])
    assert refusal is not None
    assert refusal.wait_seconds == making.FIRST_SECONDS


async def test_pods_are_made_until_one_is_refused_and_at_most_so_many(api: Any) -> None:
    maker = Maker(api, api)
    api.allowed = 1000
    assert await maker.make(owner(), [Wanted()] * 200) is None
    assert api.asked == making.MOST_AT_ONCE
    api.asked, api.allowed = 0, 2
    assert await maker.make(owner(), [Wanted()] * 20) is not None
    assert api.asked == 3, "1 and 2 at once"


async def test_a_conflict_is_for_the_controller(api: Any) -> None:
    api.error = AlreadyExists("web-0")
    with pytest.raises(AlreadyExists):
        await Maker(api, api).make(owner(), [Wanted(name="web-0")])
    assert not api.told


@pytest.mark.parametrize(
    ("name", "text", "stable"),
    [
        ("web", 'pods "web-x7k2p" is forbidden', 'pods "web-*" is forbidden'),
        ("web", 'pods "web-0" is forbidden', 'pods "web-0" is forbidden'),
        ("web", "webhook web-x7k2p-hook", "webhook web-x7k2p-hook"),
        ("n" * 63, f"pods {'n' * 58}abcde", f"pods {'n' * 58}*"),
    ],
)
def test_random_names_are_left_out(name: str, text: str, stable: str) -> None:
    found = ReplicaSet(metadata=ObjectMeta(name=name))
    assert making._without_random_name(text, found) == stable  # pyright: ignore[reportPrivateUsage]
