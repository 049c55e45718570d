"""JAX: a compiled function and a product of matrices, in what its allocator takes of the slice."""

from program import needed, right, skip

jax = needed("jax")
jnp = needed("jax.numpy")

if jax.default_backend() != "gpu":
    skip(f"this build of jax is for {jax.default_backend()}")
x = jnp.arange(1 << 20, dtype=jnp.float32)
total = float(jax.jit(lambda v: (v * 2 + 1).sum())(x))
ones = jnp.ones((1024, 1024))
right(abs(total / float(1 << 40) - 1) < 1e-3 and float((ones @ ones)[0, 0]) == 1024.0, "jax")
