"""The pool's own I/O: how broker, servers and programs talk (`messages`, `connection`, `security`, `door`, `client`),
how an executor is run (`executors`), and how a program reaches its lease (`bridge`).

NOT here: deciding who gets what (`egpu.core.leasing.pool`), and the bytes of CUDA calls (`docs/wire.md`), which are
carried and never looked at.
"""
