"""The comparisons that come with headwise. `catalogue` has them by name; every other file here makes one."""
