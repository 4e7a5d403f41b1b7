// The commands for a terminal that do the same as an action.

export type Call = { method: string; path: string; body?: unknown; text?: string; match?: boolean }

// typeOf returns the media type of a document, according to its first character.
export function typeOf(text: string): string {
  return text.trimStart().startsWith('{') ? 'application/json' : 'application/yaml'
}

// quote quotes an argument for a shell.
export function quote(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`
}

// weir returns a command with its arguments and flags. It leaves out a flag without a value. The
// terminal would read a text that begins with a dash as a flag, so such a value follows =, and such
// an argument follows --.
export function weir(command: string, args: string[], flags: Record<string, string | undefined> = {}): string {
  const given = Object.entries(flags)
    .filter((flag): flag is [string, string] => !!flag[1])
    .map(([name, value]) => `--${name}${value.startsWith('-') ? '=' : ' '}${quote(value)}`)
  const words = args.map(quote)
  const dashed = args.some((arg) => /^-./.test(arg))
  return ['weir', command, ...(dashed ? [...given, '--', ...words] : [...words, ...given])].join(' ')
}

// piped returns a command that reads a text, byte for byte, from the standard input. The mark after
// the text is a line that the text does not have.
export function piped(text: string, command: string): string {
  if (!text.endsWith('\n')) return `printf %s ${quote(text)} | ${command}`
  const lines = new Set(text.split('\n'))
  let mark = 'EOF'
  for (let n = 1; lines.has(mark); n++) mark = `EOF_${n}`
  return `${command} <<'${mark}'\n${text}${mark}`
}

// curl returns the REST call of an action.
export function curl(c: Call): string {
  const parts = ['curl', '-X', c.method, quote(location.origin + c.path), '-H', '"Authorization: Bearer $WEIR_TOKEN"']
  if (c.match) parts.push('-H', "'If-Match: *'")
  if (c.text !== undefined) {
    parts.push('-H', quote(`Content-Type: ${typeOf(c.text)}`), '--data-binary', '@-')
    return piped(c.text, parts.join(' '))
  }
  if (c.body !== undefined) parts.push('-H', "'Content-Type: application/json'", '-d', quote(JSON.stringify(c.body)))
  return parts.join(' ')
}
