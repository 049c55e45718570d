"""The generator of forwarded libraries, from the tables in native/libraries:

table.py      the tables as values
client.py     the stand-in that a program loads
executor.py   what calls the server's own library
recording.py  a library that says what arrives, for tests
document.py   docs/library-functions.md
"""
