"""Options of the verbs that run trials: the parser, the arguments, and the checked options."""
