# Completion of attn for fish. Written by: attn completion fish
function __attn_complete
    set -l words (commandline -opc)
    set -l typed (commandline -ct)
    set -l program (string replace -r '^~' $HOME -- $words[1])
    command $program __complete fish -- $words[2..] "$typed" 2>/dev/null | string replace -r '^.\t' ''
end
complete --command attn --keep-order --no-files --arguments '(__attn_complete)'
