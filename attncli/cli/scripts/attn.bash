# Completion of attn for bash 4 and later. Written by: attn completion bash
_attn() {
    local mark value
    COMPREPLY=()
    while IFS=$'\t' read -r mark value _; do
        COMPREPLY+=("$value")
        [[ $mark == + ]] && compopt -o nospace 2>/dev/null
    done < <("${1/#\~/$HOME}" __complete bash -- "${COMP_LINE:0:COMP_POINT}" "$2" 2>/dev/null)
}
complete -o nosort -F _attn attn 2>/dev/null || complete -F _attn attn
