"""The executed course as a static site that needs no network: ``make site``."""
