"""Methods to check, on a small network."""

import dataclasses

from suite.engine.training.conformance import Subject


def small(name, parameters=None, epochs=3, model="tiny_residual", steps=4):
    """A subject with short epochs. The fixture `tiny_residual` registers its network."""
    subject = Subject(name, parameters, model=model)
    sizes = {"epochs": epochs, "batch_size": 8, "train_images": 8 * steps, "test_images": 50}
    subject.recipe = dataclasses.replace(subject.recipe, **sizes)
    return subject
