"""All I/O: each module or package speaks with one thing outside, in that thing's own words.

    kubernetes      the API server: client, reflector, election
    kubelet         kubelet's gRPC APIs: device plugin, pod-resources
    nvml            the cards of this machine
    mig             instances that they are cut into
    nvml_package    what reads both: NVIDIA's package
    nvml_hardware   their temperature, power and load
    memory_limits   memory of cards, limited by the driver by control group
    mps             servers by which programs share a card, and its compute mode
    compute_policy  what nvidia-smi alone can set of them
    slices          the two files of a slice: what may be used, and what is
    executors       processes that have a card for programs that have none
    shim            what a node's agent and its shim say to each other
    pool            connections between programs, broker and servers, and who may have them
    local           slices of this machine's own cards, without a cluster
    simulator       simulated machines
    native          where the native libraries and programs are
    compilers       what programs that compile kernels are told, so that a simulated card can run these
    name_table      lists of names in JSON, as numbers
    enter           how `egpu-enter` is started: a command inside a slice
    preloading      where the loader would leave out a library that it was told to load
    processes       processes that cannot be mistaken for one another
    files           files that are there whole or not at all
    cdi             the Container Device Interface: files that say what a device of a container is
    selinux         labels of what containers get to see
    mounts          mounts of this process's mount namespace
    private         directories that nobody but us can have put anything into
    certificates    those of webhook and extender
    certificate_files   one in files, followed as it changes
    inotify         told by the kernel when a file is written or closed
    installation    what deploy/ installs
    strangers       accepting connections whose callers are not known yet
    http_protocol   HTTP as uvicorn reads it, with a bound on headers
    http_server     uvicorn with its callers counted
    listening       addresses to listen on, and sockets there
    web             serving HTTP beside other work
    posts           bodies that are posted on a few paths, and their answers
    bodies          what requests' bodies take of memory, all together
    monitoring      health for anybody, metrics for whoever may read them
    usage           what slices use, from where it is published
    traces          workloads as CSV files

NOT here: deciding anything about cards (`egpu.core`), and when something is done (`egpu.apps`).
"""
