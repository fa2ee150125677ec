"""Machine images: which one a type of machine gets, and whether it will do.

Here: the search among AWS's and the user's images, and what an image has to have for a launch.
Not here: what is found on a node that runs (bootstrap/).
"""
