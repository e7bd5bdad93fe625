"""The code that runs inside every training rank, loaded by path and never through this package.

The agent puts `inject/` first on PYTHONPATH; its `sitecustomize.py` loads `probe.py` as the private
package `_ddptop_probe`, whose folder is this one. Standard library only, Python 3.8 syntax. Nothing
here raises into the script, blocks, or prints.
"""
