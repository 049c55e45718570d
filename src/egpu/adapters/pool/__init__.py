"""The pool's own I/O: how broker, servers, agents and programs talk, and how a program reaches its executor.

    messages      what they say to each other
    connection    a stream of messages, which may go on as a stream of bytes
    relay         the native process that carries the bytes
    security      who may speak: certificates or a shared secret
    proof         who knows the secret shows it without saying it
    authority     makes the certificates
    listener      accepts connections and finds out who each caller is
    client        connects to brokers and servers, and asks a broker
    lease         a lease as its holder has it: taken, renewed, given back
    bridge        sockets beside a program's remote driver, connected to its executors: the program's end
    links         networks of executors on several servers, linked
    data          token checked, program connected to its executor: the executor's end
    programs      a command whose GPUs are the pool's
    scratch       a directory that goes with its process

NOT here: deciding who gets what (`egpu.core.leasing`), running executors (`egpu.adapters.executors`), and the bytes of
CUDA calls (`docs/wire.md`), which are carried and never looked at.
"""
