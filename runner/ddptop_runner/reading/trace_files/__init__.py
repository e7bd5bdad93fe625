"""Reads losses and steps from TensorBoard event files and Lightning's CSV.

`watch.TraceWatch` is what the rest of the program takes: it finds the files of a job and follows
them in a thread of its own, so that a slow file system holds nobody up. `watch.TraceFiles` does
the same in the calling thread.
"""
