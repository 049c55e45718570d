"""The pool's own I/O: the protocol between broker, servers, agents and programs, and a program's way to its executor.

    messages      the messages between them
    connection    a stream of messages, which may continue as a stream of bytes
    relay         the native process that carries the bytes
    security      authentication: certificates or a shared secret
    proof         proves knowledge of the secret without sending it
    authority     makes the certificates
    listener      accepts connections and identifies each caller
    client        connects to brokers and servers, and asks a broker
    lease         a lease of its holder: taken, renewed, released
    bridge        sockets beside a program's remote driver, connected to its executors: the program's end
    links         networks of executors on several servers, linked
    data          token checked, program connected to its executor: the executor's end
    programs      a command whose GPUs are the pool's
    scratch       a directory that ends with its process

NOT here: deciding about leases (`egpu.core.leasing`), running executors (`egpu.adapters.executors`), and the bytes of
CUDA calls (`docs/internals/wire.md`), which are carried unread.
"""
