"""jax.nn.dot_product_attention, compiled. Layout (B, T, H, D)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.peers import Ready, heads_last
from bench.problems import WINDOW, Problem

jax.config.update("jax_default_matmul_precision", "highest")


def nn(problem: Problem) -> Ready:
    def attend(query: Any, key: Any, value: Any, **rule: Any) -> Any:
        return jax.nn.dot_product_attention(
            query, key, value, is_causal=problem.causal or problem.rule == "window",
            local_window_size=(WINDOW - 1, 0) if problem.rule == "window" else None, **rule,
        )  # fmt: skip

    rule: dict[str, Any] = {}
    if problem.rule == "bias":
        rule = {"bias": problem.bias()[None]}
    elif problem.rule == "padding":
        rule = {"key_value_seq_lengths": problem.lengths().astype(np.int32)}
    elif problem.rule in ("mask", "segments"):
        rule = {"mask": problem.allowed()[None, None]}
    return compiled(problem, attend, rule)


def compiled(problem: Problem, attend: Callable[..., Any], rule: dict[str, Any]) -> Ready:
    """A function of query, key and value by heads last, with XLA's code made beforehand."""
    arrays = [jnp.asarray(heads_last(a)) for a in problem.inputs()]
    rule = {name: jnp.asarray(array) for name, array in rule.items()}
    whole = attend
    if problem.backward:
        gradient = jnp.asarray(heads_last(problem.gradient()))

        def whole(*given: Any, **rule: Any) -> Any:
            return jax.vjp(lambda *g: attend(*g, **rule), *given)[1](gradient)

    ready = jax.jit(whole).lower(*arrays, **rule).compile()
    return Ready(
        lambda: jax.block_until_ready(ready(*arrays, **rule)),
        lambda found: [np.asarray(a).swapaxes(1, 2) for a in jax.tree.leaves(found)],
    )
