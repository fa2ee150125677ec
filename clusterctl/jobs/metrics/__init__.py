"""What a training's log says. `logs` reads lines, `runs` joins what belongs together, `reference`
has the tutorial's runs. Not here: where a log lies, and results as JSON, CSV or a picture
(operations/results*.py).
"""
