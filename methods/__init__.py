"""The methods: a module or a package for each. `masks`, `gradients` and `backends` have what several of them share."""
