"""What opening a plain checkpoint in a local folder costs: one look at each file, and few modules."""

import subprocess
import sys

# Counts what looks up a path of the folder: stat, and whatever opens it.
COUNTED = """
import collections, os, sys
counted = collections.Counter()
folder, stat = sys.argv[1], os.stat

def look(path, *rest, **more):
    if str(path).startswith(folder + os.sep):
        counted[os.path.basename(path)] += 1
    return stat(path, *rest, **more)

from attncli.engines import open_source
os.stat = look
open_source(model=folder).trace("time flies")
os.stat = stat
print({name: count for name, count in counted.items() if os.path.isfile(os.path.join(folder, name))})
print(sum(name.partition(".")[0] == "attncli" for name in sys.modules))
print(sorted(name for name in sys.modules if name.startswith("attncli.checkpoints.tensors.")))
"""


def test_a_plain_bert_is_opened_with_a_look_at_each_file_few_modules_and_no_codec(minilm: str) -> None:
    ran = subprocess.run([sys.executable, "-c", COUNTED, minilm], capture_output=True, text=True, check=True)
    looks, modules, tensors = ran.stdout.splitlines()
    assert eval(looks) == {"tokenizer.json": 1}  # for the others the listing of the folder is enough
    assert int(modules) <= 45
    assert eval(tensors) == [f"attncli.checkpoints.tensors.{name}" for name in ("open_store", "safetensors_store")]
