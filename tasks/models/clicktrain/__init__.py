"""Networks of ClickTrain's code for CIFAR."""
