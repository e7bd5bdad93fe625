"""The agent: torch elastic's LocalElasticAgent under the job's own Python.

Run by path (`__main__.py`), so that the job's interpreter needs nothing of ddptop: standard library
and torch only, Python 3.8 syntax. It decides nothing: the supervisor is asked before each restart.
"""
