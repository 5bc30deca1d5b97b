"""What methods that remove channels share.

- `cuts`: which channels may be removed, how many remain, and the reconfiguration that removes the others.
- `scales`: the base class of methods that penalise the scales of normalisation and cut once.
"""
