"""The contract check: what every method must satisfy. `check METHOD` and the tests of all methods run it."""

from suite.engine.training.conformance.check import Result, check
from suite.engine.training.conformance.contracts import CONTRACTS
from suite.engine.training.conformance.subject import Broken, Subject

__all__ = ["CONTRACTS", "Broken", "Result", "Subject", "check"]
