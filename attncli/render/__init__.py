"""Results in, Rich renderables out. Nothing here prints, or knows an option.

Everywhere here a `palette` is how cells and words look, a `scale` which number each colour is, and a `ramp` how colours
grow with numbers (None leaves it to the palette). `width` is how many cells a line may take (None is as many as it
takes), `room` the same where it is known, or the lines and cells of a pane. `digits` and `precision` are those after
the point. A `pool` is how many rows and columns a drawn cell stands for.
"""
