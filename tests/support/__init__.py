"""What tests build with; nothing here is a test.

objects          objects as the API server holds them, and the scheduler's cache filled with them
fake_api         a pretend API server behind httpx2's transport seam
control_plane    the simulated API server, and webhook, controller and extender inside the test
local_node       a node of this machine: API server, kubelet, agent
storm            many pods at once, and a witness of what they are given
in_process_pool  a pool in this process: the broker, and servers made of nothing
local_pool       a pool of this machine's processes
simulated_fixtures  fixtures over the simulated world
simulated_gpu    a simulated machine, and programs on it
cudnn_programs   what programs that call cuDNN begin with
remote_gpu       an executor on it, and the remote client beside it
slices           a slice on a driver made for tests, and programs inside
mixed_load       a program that does a little of everything on its GPUs
commands         `egpu` as its users run it
forked_commands  its commands as forks of a process that has imported them
forked_command   … in the fork
command_imports  … before it
cuttable_proxy   a way to a port that can be cut at any moment
process_table    the processes of this machine and what they hold
wrapped_driver   a driver directory with a test's own functions around a simulated driver
ports            ports that nobody listens on
sanitizers       the native parts as built by `make sanitize`
waiting          until it happens, with a deadline
"""
