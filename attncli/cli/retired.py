"""Options that earlier versions had, and what to use instead."""

# Each is looked up where an option does not exist, by its name without the dashes.
RETIRED = {
    "allow-pickle": "tensors of .bin files are read without asking, by torch's restricted unpickler",
    "by": "group the table that -o FOLDER/ --show metrics writes, in DuckDB or pandas",
    "cache-limit": "fetched tensors are in the cache of huggingface_hub; `hf cache prune` and `hf cache rm` clear it",
    "compact": "use -o FOLDER/, a dataset of Parquet files",
    "fail-fast": "a sentence that cannot be read is named on stderr, the others go on, and the exit code is 5",
    "keep": "join the results with the file by their column sentence, its row there",
    "keep-errors": "what cannot be read is named on stderr, with the number of its sentence",
    "man": "use attn help TOPIC and attn COMMAND --help",
    "maps": "use attn diff with --layer and --head for the maps of few heads, or -F json for all numbers",
    "merge": "merge the tables that -o FOLDER/ --show metrics writes, in DuckDB or pandas",
    "min-weight": "use --top-keys N",
    "over": "use --mean heads, --mean layers or --mean all",
    "range": "colours reach to the largest weight of the layer; use --ramp log for small ones",
    "reduce": "use --mean heads, --mean layers or --mean all",
    "resume": "use -o FOLDER/: the same command goes on where a run ended",
    "reverse": "put a - before the metric: --sort -entropy",
    "revision": "name it with the model: -m NAME@REVISION",
    "rows": "use --query, which takes ranges too: --query 500:520",
    "serve": "use attn inspect -o page.html, a page for any browser",
    "spread": "a table has the mean and the standard deviation; count others from -o FOLDER/ --show metrics",
    "system": "give a list of messages, whose first role is system: --chat --file NAME.json",
    "verify": "use --engine verify",
    "whole-files": "`hf download NAME` fetches a whole checkpoint into the local cache",
    "yes": "what a run is going to fetch is said on stderr, and fetched without asking",
}
