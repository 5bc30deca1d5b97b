"""The methods, one file each; what they share is in `shared`, implementations of masked products in `backends`."""

from suite.own_packages import check_own_packages

check_own_packages()
