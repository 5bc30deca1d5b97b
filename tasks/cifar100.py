"""CIFAR-100, from the published archive or a folder of image files."""

from __future__ import annotations

from suite.recipe import Tuning
from suite.registry import register
from tasks.cifar import SHORT, Cifar
from tasks.paper_recipes import PAPER_RECIPES, PRUNETRAIN

# In the order of the fine labels in the published archive, which is alphabetical.
CLASSES = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle", "bowl", "boy",
    "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle", "chair", "chimpanzee", "clock",
    "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish",
    "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion",
    "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange",
    "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy", "porcupine",
    "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk",
    "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank",
    "telephone", "television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale",
    "willow_tree", "wolf", "woman", "worm",
)  # fmt: skip

MODELS = dict.fromkeys(("smoke", "quick", "paper"), "resnet32")
RECIPES = {
    "smoke": SHORT.changed(epochs=4, train_images=2000, test_images=1000),
    "quick": SHORT,
    "paper": PRUNETRAIN,
}


@register("task", "cifar100")
class CIFAR100(Cifar):
    """CIFAR-100: 50,000 training and 10,000 test images of 32x32 pixels in 100 classes."""

    title = "CIFAR-100"
    num_classes = 100
    source = (
        "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009 (cs.toronto.edu/~kriz/cifar.html)"
    )
    paper_recipe = PAPER_RECIPES["prunetrain"].source
    paper_recipes = PAPER_RECIPES
    dataset = "CIFAR100"
    classes = CLASSES
    models = MODELS
    recipes = RECIPES
    tuning = (
        Tuning(
            trials=None,
            chosen_on="other",
            source="as CIFAR-10's, for 10 epochs; not compared with others",
            presets=("smoke", "quick"),
        ),
        Tuning(trials=0, chosen_on="publication", source="the papers of the recipes", presets=("paper",)),
    )
