#!/usr/bin/env python3
"""Data-parallel training with JAX: each rank has its own part of the data, and gradients are averaged.

collective-ops run --nproc_per_node 2 examples/jax_allreduce.py

JAX's arrays never change, so `allreduce` gives a new one. It stands between what jax.jit compiles: here
between the gradient and the step.
"""

import jax
import jax.numpy as jnp
from collective_ops import allreduce, init_hccl, rank, world_size

init_hccl()
x = jnp.linspace(-1, 1, 64)[rank() :: world_size()]  # this rank's part
y = 3 * x + 1


@jax.jit
def gradients_of(parameters):
    return jax.grad(lambda p: jnp.mean((p["slope"] * x + p["offset"] - y) ** 2))(parameters)


@jax.jit
def step(parameters, gradients):
    return jax.tree.map(lambda p, g: p - 0.5 * g, parameters, gradients)


parameters = {"slope": jnp.float32(0), "offset": jnp.float32(0)}
for _ in range(60):
    gradients = jax.tree.map(lambda gradient: allreduce(gradient, op="avg"), gradients_of(parameters))
    parameters = step(parameters, gradients)

everyones = allreduce(jnp.stack([parameters["slope"], parameters["offset"]]), op="max")
assert everyones.tolist() == [parameters["slope"], parameters["offset"]], "ranks differ"
if rank() == 0:
    print(f"slope {parameters['slope']:.4f}, offset {parameters['offset']:.4f} on {world_size()} ranks")
