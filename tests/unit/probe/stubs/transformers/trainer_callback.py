"""As transformers 5: the state of a Trainer goes through its handler of callbacks."""

import dataclasses


@dataclasses.dataclass
class TrainerState:
    epoch: "float | None" = None
    global_step: int = 0
    max_steps: int = 0
    num_train_epochs: int = 0


class CallbackHandler:
    def on_train_begin(self, args, state, control, **kwargs):
        return control

    def on_train_end(self, args, state, control, **kwargs):
        return control
