"""A process that has loaded a model and runs nothing; with ``--read`` it reads every weight once.

The weights are mapped from the file, and count as memory only once they are read.
"""

import sys

from transformers import AutoModel, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModel.from_pretrained(sys.argv[1], attn_implementation="eager").eval()
if sys.argv[2:] == ["--read"]:
    for weight in model.parameters():
        weight.detach().sum()
