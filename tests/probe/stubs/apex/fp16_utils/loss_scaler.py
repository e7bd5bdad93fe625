"""As apex.fp16_utils was until it was removed."""


class LossScaler:
    cur_scale = 128.0

    def backward(self, loss, retain_graph=False):
        (loss * self.cur_scale).backward(retain_graph=retain_graph)


class DynamicLossScaler:
    cur_scale = 2.0**16

    def backward(self, loss, retain_graph=False):
        (loss * self.cur_scale).backward(retain_graph=retain_graph)
