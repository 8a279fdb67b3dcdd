"""Workflow files in the classic form, and the commands that took them."""
