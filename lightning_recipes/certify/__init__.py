"""The resume certificate: is a run that was killed and resumed the run that was never stopped?"""
