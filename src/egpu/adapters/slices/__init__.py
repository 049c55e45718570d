"""A slice's files, and who is in it.

pages         the policy page (its limits) and the usage file (what it uses)
bounded       a usage file that whoever may write it cannot make larger
membership    what the kernel says of a process that tells which slice it is in
attribution   whose slice a process on a card is in, also when it does not want to be found
overruns      what slices count against what the driver says that they hold, and who stays over its limit
"""
