"""Tasks of vision-language models: instruction, answer format, reward and coordinates, and a check of data sets.

definitions          the tasks by name, and their application to samples
answer_instructions  the instruction of an answer format, and the rewards that read it
coordinates          coordinate spaces of model families, and conversion of reference boxes
check_data           `mmrl data check`: lines, media, tasks, reference answers
"""
