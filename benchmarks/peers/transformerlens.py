"""TransformerLens: everything of one sentence in its cache, the pattern of layer 0 printed.

Its environment:

    python -m venv FOLDER/transformerlens
    FOLDER/transformerlens/bin/pip install -c constraints.txt torch==2.13.0 transformer-lens==4.3.0
"""

import json
import sys

from transformer_lens.model_bridge import TransformerBridge

folder, text = sys.argv[1:]
model = TransformerBridge.boot_transformers(folder)
_, cache = model.run_with_cache(text)
print(json.dumps(cache["blocks.0.attn.hook_pattern"][0].tolist()))
