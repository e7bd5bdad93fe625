"""As lightning 2.6: a closure divides, and is run by itself or by the optimizer's step."""


class Closure:
    def __init__(self, step_fn, backward_fn):
        self._step_fn, self._backward_fn = step_fn, backward_fn

    def __call__(self):
        loss = self._step_fn()
        self._backward_fn(loss)
        return loss


class _AutomaticOptimization:
    def run(self, optimizer, batch_idx, training_step, factor):
        def backward_fn(loss):
            call_strategy(loss.backward)

        closure = Closure(lambda: training_step() / factor, backward_fn)
        if (batch_idx + 1) % factor:
            closure()
        else:
            optimizer.step(closure)


def call_strategy(backward, depth=8):
    """What stands between: strategy, precision plugin, module."""
    return call_strategy(backward, depth - 1) if depth else backward()
