"""Pixel arithmetic of class planes-v1: a readable reference and fast paths equal to it bit for bit.

This package imports nothing of zephon_mm. Import the submodules: ``reference`` (numpy: the
definition), ``cpu`` (numba).
"""
