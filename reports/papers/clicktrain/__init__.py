"""Tables and figures of the ClickTrain paper."""
