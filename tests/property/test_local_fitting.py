"""Slices of `egpu run` on one card: together they never have more than the card and the machine's memory."""

import hypothesis.strategies as st
from hypothesis import given

from egpu.adapters.cards.nvml import CardReading
from egpu.adapters.local.fitting import check_host_memory, fullest_with_room
from egpu.adapters.local.holders import Holder, RoomTerms, SliceRequest
from egpu_base.errors import DoesNotFit

CARD = CardReading(uuid="GPU-0", index=0, minor=0, model="Test", memory_mib=1000, compute_capability="8.0")
HOST_MIB = 3000

requests = st.lists(
    st.builds(
        lambda memory_mib, percent: SliceRequest(
            core=1, memory_mib=memory_mib, parkable=True, resident_percent=percent, host_memory_mib=HOST_MIB
        ),
        st.integers(1, 1000),
        st.sampled_from((0, 1, 3, 25, 99)),
    ),
    max_size=30,
)


def taken(asked: list[SliceRequest]) -> list[Holder]:
    """Take them in turn, as the book does; those that do not fit are left out."""
    holders: list[Holder] = []
    for number, request in enumerate(asked):
        try:
            check_host_memory(request, holders)
        except DoesNotFit:
            continue
        if fullest_with_room([CARD], request, holders):
            room = RoomTerms(resident_mib=request.own_mib, idle_seconds=1, card_memory_mib=CARD.memory_mib)
            holder = Holder(
                name=str(number),
                uuids=(CARD.uuid,),
                core=1,
                memory_mib=request.memory_mib,
                command="",
                processes=(),
                room=room if request.resident_percent else None,
            )
            holders.append(holder)
    return holders


@given(requests)
def test_the_card_has_what_is_resident_and_the_largest_rest(asked: list[SliceRequest]) -> None:
    holders = taken(asked)
    own = sum(holder.own_mib for holder in holders)
    rest = max((holder.memory_mib - holder.own_mib for holder in holders), default=0)
    assert own + rest <= CARD.memory_mib


@given(requests)
def test_the_machine_has_memory_for_all_that_may_be_parked(asked: list[SliceRequest]) -> None:
    assert sum(holder.memory_mib for holder in taken(asked) if holder.room is not None) <= HOST_MIB


@given(requests)
def test_slices_with_their_own_room_fit_as_long_as_there_is_memory(asked: list[SliceRequest]) -> None:
    plain = [request for request in asked if not request.resident_percent]
    free = CARD.memory_mib
    fitting = 0
    for request in plain:
        if request.memory_mib <= free:
            free, fitting = free - request.memory_mib, fitting + 1
    assert len(taken(plain)) == fitting
