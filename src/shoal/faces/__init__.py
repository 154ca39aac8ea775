"""How people talk to a pool: one module or package per dialect, named after it. A face translates, nothing more."""
