"""The files of a slice, and its processes.

pages         the policy page (its limits) and the usage file (its use)
usage         what a container says of its use, as values
fnv           the checksum of policy pages
writing       a lock for processes that write pages
bounded       a usage file that its writers cannot enlarge
membership    the kernel's facts about the slice of a process
attribution   the slice of a process on a card, even one that hides
shares        divides a card's time between its slices at one moment; pure
turns         runs the arbiter of turns between latency work and others
long_kernels  finds batch work whose kernels delay latency work; pure
work          the kind of a slice's work, and its part in turns
sharing       finds the active slices, many times a second, and grants each its share of time
reaping       removes ended processes from a usage file that containers share
rooms         gives slices that share a card's memory their room, and parks others for them
overstays     slices that do not leave their card while others wait
rows          all rows of a usage file at once
host_memory   how much of the machine's memory parked slices may take
parked        the bytes that processes say they have parked
asking        asks slices to park or to wake, and sets their room
published     use of slices, as agents or Prometheus publish it
overruns      compares slices' accounts with the driver's, and finds slices over their limits
"""
