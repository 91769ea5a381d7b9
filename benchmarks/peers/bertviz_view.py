"""The bertviz head view of one sentence: every head of every layer, as an HTML page.

The file is not called bertviz.py, or ``import bertviz`` would find it instead of the package. Its environment:

    python -m venv FOLDER/bertviz
    FOLDER/bertviz/bin/pip install -c constraints.txt torch==2.13.0 bertviz==1.4.1
"""

import sys

from bertviz import head_view
from transformers import AutoModel, AutoTokenizer

folder, text = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModel.from_pretrained(folder, attn_implementation="eager")
inputs = tokenizer(text, return_tensors="pt")
attentions = model(**inputs, output_attentions=True).attentions
print(head_view(attentions, tokenizer.convert_ids_to_tokens(inputs.input_ids[0]), html_action="return").data)
