"""As apex.amp was until it was removed."""

import contextlib


@contextlib.contextmanager
def scale_loss(loss, optimizers, loss_id=0):
    yield loss.float() * 1024
