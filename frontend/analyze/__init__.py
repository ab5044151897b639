"""`trunkline analyze`: why prompts missed the cache, and what would help."""
