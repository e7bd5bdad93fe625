"""The same screens in a browser, for this machine alone; needs the extra `ddptop[serve]`."""
