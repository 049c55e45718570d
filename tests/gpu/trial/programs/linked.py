"""Call a library that needs the driver by name, loaded as Python loads extension modules: linked.py LIBRARY"""

import ctypes
import json
import os
import sys

total = ctypes.c_ulong(0)
code = ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW | os.RTLD_LOCAL).linked_go(ctypes.byref(total))
print(json.dumps({"ok": code == 0, "code": code, "total": total.value}))
sys.exit(0 if code == 0 else 1)
