"""As lightning 2.6: the loop knows its trainer, and starts once its data is known."""


class _FitLoop:
    def __init__(self, trainer):
        self.trainer = trainer

    def on_run_start(self):
        pass

    def on_run_end(self):
        pass
