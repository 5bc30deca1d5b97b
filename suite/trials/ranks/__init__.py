"""The processes of trials that train with several ranks: started together, and ended together."""
