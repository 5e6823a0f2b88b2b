"""The command line: ``run`` a bulk job under a rate, ``demo`` the product, ``bench`` a service, watch ``peers``.

``main`` checks the optional dependencies, and ``commands`` parses. Every other module has one concern and does not use
click. Nothing outside this package imports it.
"""
