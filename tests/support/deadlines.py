"""How long a test waits for what must happen before it calls it a hang.

Long, because machines are shared: a wait ends when the thing happens, so only a failing test is slow. How fast things
are is for the benchmarks."""

PATIENCE_SECONDS = 90.0
