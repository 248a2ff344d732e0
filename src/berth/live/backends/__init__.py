"""What runs the jobs: this machine's processes, Slurm, Ray."""
