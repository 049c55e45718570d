"""The one list of CUDA driver functions: read from NVIDIA's headers, classified by hand, rendered for C and Python.

`headers` extracts facts (names, versions, parameter types), `classes` applies native/driver/classes.yaml,
`render` writes the generated files. Nothing here knows where the wheels live; see generate_driver_table.py.
"""
