"""The processes that keep a job alive: guardian, supervisor, and adoption of either."""
