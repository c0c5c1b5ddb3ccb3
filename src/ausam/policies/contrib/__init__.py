"""Policies that no table of the paper uses. Import them as the others: ``from ausam import TopLoss``."""
