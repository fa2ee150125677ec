"""What runs on nodes around jobs: starting and ending them, what they would find and leave."""
