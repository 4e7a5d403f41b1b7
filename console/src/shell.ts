// The commands for a terminal that do what an action does.

export type Call = { method: string; path: string; body?: unknown; file?: boolean; match?: boolean }

// quote writes an argument for a shell.
export function quote(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`
}

// weir is a command with its arguments and flags. A flag without a value is left out. What begins
// with a dash would be read as a flag, so such a value follows =, and such an argument follows --.
export function weir(command: string, args: string[], flags: Record<string, string | undefined> = {}): string {
  const given = Object.entries(flags)
    .filter((flag): flag is [string, string] => !!flag[1])
    .map(([name, value]) => `--${name}${value.startsWith('-') ? '=' : ' '}${quote(value)}`)
  const words = args.map(quote)
  const dashed = args.some((arg) => arg.startsWith('-'))
  return ['weir', command, ...(dashed ? [...given, '--', ...words] : [...words, ...given])].join(' ')
}

// curl is the REST call of an action.
export function curl(c: Call): string {
  const parts = ['curl', '-X', c.method, quote(location.origin + c.path), '-H', '"Authorization: Bearer $WEIR_TOKEN"']
  if (c.match) parts.push('-H', "'If-Match: *'")
  if (c.file) parts.push('-H', "'Content-Type: application/yaml'", '--data-binary', '@FILE')
  else if (c.body !== undefined) parts.push('-H', "'Content-Type: application/json'", '-d', quote(JSON.stringify(c.body)))
  return parts.join(' ')
}
