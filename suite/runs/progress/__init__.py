"""Progress of trials: how a trial reports it (`files`), how it is worded (`text`), shown, and extrapolated."""
