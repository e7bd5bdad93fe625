"""As keras 3.15: `fit` calls a list of callbacks, evaluation and prediction other methods of it."""


class CallbackList:
    def __init__(self, callbacks=None, add_history=False, add_progbar=False, model=None, **params):
        self._model, self.params = model, params

    def on_epoch_begin(self, epoch, logs=None):
        pass

    def on_train_batch_end(self, batch, logs=None):
        pass

    def on_test_batch_end(self, batch, logs=None):
        pass

    def on_predict_batch_end(self, batch, logs=None):
        pass
