"""Programs that run under any interpreter with torch and transformers; nothing here imports vramtop."""
