"""Callbacks of users, and those of the project. One is registered as `@register("callback", name)`."""
