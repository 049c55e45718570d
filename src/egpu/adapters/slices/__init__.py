"""A slice's files, and who is in it.

pages         the policy page (its limits) and the usage file (what it uses)
fnv           what policy pages are checked by
writing       processes that write pages wait for each other
bounded       a usage file that whoever may write it cannot make larger
membership    what the kernel says of a process that tells which slice it is in
attribution   whose slice a process on a card is in, also when it does not want to be found
shares        how a card's time is divided between its slices at one moment; pure
sharing       looks at who is active, many times a second, and grants each its share of the time
reaping       takes ended processes out of a usage file that several containers have
overruns      what slices count against what the driver says that they hold, and who stays over its limit
"""
