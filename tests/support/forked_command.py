"""One `egpu` command, in a fork of a process that has imported it: see `support.forked_commands`."""

import atexit
import os
import runpy
import sys
import tempfile
import threading

if __name__ == "__main__":
    _, directory, error_file, *arguments = sys.argv
    os.chdir(directory)
    errors = os.open(error_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.dup2(errors, 2)
    os.close(errors)
    tempfile.tempdir = None  # An import may have looked it up, for another TMPDIR.
    sys.argv[1:] = arguments
    status = 0
    try:
        runpy.run_module("egpu", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        status = ended.code or 0
    # As `multiprocessing` ends its processes. To take all modules apart would cost as much as many a command.
    vars(threading)["_shutdown"]()
    vars(atexit)["_run_exitfuncs"]()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
