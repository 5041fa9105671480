"""The process with torch's elastic agent: it starts the workers, and starts them again."""
