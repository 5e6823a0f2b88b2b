"""Runs of simple scenarios without an executor: the starts are computed from columns of arrivals, and checked against one."""
