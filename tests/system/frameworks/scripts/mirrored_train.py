"""TensorFlow: MirroredStrategy over two logical CPUs, or one without, and Keras' fit."""

from __future__ import annotations

import os

import keras
import numpy as np
import tensorflow as tf
from notes import Notes, arguments

EPOCHS = 2


class Noting(keras.callbacks.Callback):
    """Records the loss that Keras passes to its callbacks: the mean of the epoch so far."""

    def __init__(self, notes: Notes) -> None:
        super().__init__()
        self.notes = notes

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        assert logs is not None
        self.notes.part(float(logs["loss"]))
        self.notes.stepped()


def main() -> None:
    steps, pause_s, folder = arguments()
    replicas = int(os.environ.get("REPLICAS", "2"))
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * replicas,
    )
    keras.utils.set_random_seed(7)
    names = [f"CPU:{index}" for index in range(replicas)]
    strategy = (
        tf.distribute.MirroredStrategy(names) if replicas > 1 else tf.distribute.get_strategy()
    )
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
        model.compile(optimizer="adam", loss="mse")
    data = np.random.default_rng(7).normal(size=(8 * steps // EPOCHS, 16)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((data, data.sum(axis=1, keepdims=True))).batch(8)
    model.fit(data, epochs=EPOCHS, callbacks=[Noting(Notes(folder, 0, 1, pause_s))])


if __name__ == "__main__":
    main()
