"""Loads the accounting of tests; pytest accepts `pytest_plugins` only here, at the root."""

pytest_plugins = ["tests.support.accounting"]
