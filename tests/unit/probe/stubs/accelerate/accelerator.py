"""As accelerate 1.15: `backward` divides by the accumulation factor, also in a window cut short."""


class Accelerator:
    def __init__(self, gradient_accumulation_steps):
        self.gradient_accumulation_steps = gradient_accumulation_steps

    def backward(self, loss, **kwargs):
        loss = loss / self.gradient_accumulation_steps
        loss.backward(**kwargs)
