"""Generate the code of forwarded libraries, from the tables in native/libraries.

table.py      the tables as values
client.py     the stand-in that a program loads
executor.py   the caller of the server's own library
recording.py  a library that records calls, for tests
document.py   docs/reference/library-functions.md
"""
