"""What is measured. (A regular package: opacus installs one of this name, before a namespace's.)"""
