"""NeMo AutoModel: its YAML recipes and the overrides on its command line."""
