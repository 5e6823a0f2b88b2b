"""Durable tasks: functions whose calls are kept in a store until they have run on an executor."""
