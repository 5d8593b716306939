"""The commands: each module takes parsed options and returns an exit code; none imports Textual but the dashboard."""
