"""Alarms: what is wrong, the affected tenants, since when, and the likely cause, in one list."""
