"""Launch and run self-managed GPU clusters on EC2."""

__version__ = "0.1.0"
