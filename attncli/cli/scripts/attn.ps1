# Completion of attn for PowerShell. Written by: attn completion powershell
Register-ArgumentCompleter -Native -CommandName attn -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)
    $program = $commandAst.GetCommandName()
    $words = @($commandAst.CommandElements | Select-Object -Skip 1 |
        Where-Object { $_.Extent.EndOffset -lt $cursorPosition } |
        ForEach-Object { if ($_.Value -is [string]) { $_.Value } else { $_.Extent.Text } })
    & $program __complete powershell -- @words "=$wordToComplete" 2>$null | ForEach-Object {
        $mark, $value, $help = $_ -split "`t", 3
        $tip = if ($help) { $help } else { $value }
        [System.Management.Automation.CompletionResult]::new($value, $value, 'ParameterValue', $tip)
    }
}
