"""As deepspeed 0.19: losses are divided and scaled out of sight, and some steps are skipped."""

import torch


class DeepSpeedEngine(torch.nn.Module):
    def __init__(self, optimizer, factor, scale=1.0, fp16=False, calls_optimizer=True):
        super().__init__()
        self.optimizer, self.factor, self.loss_scale, self.fp16 = optimizer, factor, scale, fp16
        self.calls_optimizer = calls_optimizer
        self.micro_steps = self.global_steps = self.skipped_steps = 0
        self.overflow = False

    def fp16_enabled(self):
        return self.fp16

    def gradient_accumulation_steps(self):
        return self.factor

    def backward(self, loss, retain_graph=False, scale_wrt_gas=True):
        loss = loss / self.gradient_accumulation_steps() if scale_wrt_gas else loss
        (loss * self.loss_scale).backward(retain_graph=retain_graph)
        return loss

    def step(self, lr_kwargs=None):
        self.micro_steps += 1
        if self.micro_steps % self.factor == 0:
            if self.overflow:
                self.skipped_steps += 1
            elif self.calls_optimizer:
                self.optimizer.step()
            self.global_steps += 1
