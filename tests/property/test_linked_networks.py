"""Whose networks are linked: two servers of one caller's own leases, each with the other, and nobody else."""

from hypothesis import given
from hypothesis import strategies as st

from egpu.core.leasing.links import MAX_LINKED, LinkRecord, links, network_address
from egpu.core.leasing.state import Lease, Part, Server, State

NAMES = tuple("abcdef")
names = st.sampled_from(NAMES)
states: st.SearchStrategy[State] = st.sampled_from(["granted", "active", "ending"])


def lease(number: int, peer: str, servers: frozenset[str], state: State, *, is_adopted: bool) -> Lease:
    return Lease(
        id=f"lease-{number}", holder="h", peer=peer, request=str(number), key="k", state=state,
        parts={name: Part((), 0) for name in sorted(servers)}, expected_parts=len(servers), deadline=0.0, since=0.0,
        is_adopted=is_adopted,
    )  # fmt: skip


leases = st.lists(
    st.builds(
        lease, st.integers(0, 99), st.sampled_from(["ann", "bob"]), st.frozensets(names, min_size=1), states,
        is_adopted=st.booleans(),
    ),
    max_size=8,
)  # fmt: skip
servers = st.dictionaries(names, st.booleans()).map(
    lambda made: {
        name: Server(name, address=f"{name}:1", collectives=collectives) for name, collectives in made.items()
    }
)


@given(leases, servers)
def test_a_link_is_between_two_servers_of_leases_that_their_caller_has_spoken_for(
    leases: list[Lease], servers: dict[str, Server]
) -> None:
    found = links(leases, servers)
    said = {(server, record.caller, record.server) for server, records in found.items() for record in records}
    spoken_for = {
        (one.peer, name) for one in leases if one.state != "ending" and not one.is_adopted for name in one.parts
    }
    expected = {
        (server, caller, other)
        for caller, server in spoken_for
        for also, other in spoken_for
        if caller == also and server != other
        if all(name in servers and servers[name].collectives for name in (server, other))
    }
    assert said == expected
    assert said == {(other, caller, server) for server, caller, other in said}
    assert all(record.address == f"{record.server}:1" for records in found.values() for record in records)


def test_no_network_has_more_links_than_its_process_has_places() -> None:
    many = {f"s{number:03}": Server(f"s{number:03}", collectives=True) for number in range(2 * MAX_LINKED)}
    found = links([lease(0, "ann", frozenset(many), "active", is_adopted=False)], many)
    assert len(found) == MAX_LINKED
    assert all(len(records) == MAX_LINKED - 1 for records in found.values())
    assert found["s000"][0] == LinkRecord(caller="ann", server="s001", address="")


@given(st.text())
def test_an_address_is_one_that_a_host_can_have(server: str) -> None:
    assert 0x0A000000 < network_address(server) < 0x0AFFFFFF
