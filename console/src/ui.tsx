// The parts of screens.
import { type ReactNode, useEffect, useId, useRef, useState } from 'react'
import { Problem } from './api'
import { useNarrow, useNow } from './state'

const absolute = new Intl.DateTimeFormat(undefined, {
  dateStyle: 'medium',
  timeStyle: 'medium',
})

function spanOf(seconds: number): string {
  if (seconds < 60) return `${Math.floor(seconds)} s`
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`
  if (seconds < 48 * 3600) return `${Math.floor(seconds / 3600)} h`
  return `${Math.floor(seconds / 86400)} d`
}

// Time shows the distance of a moment from now. The pointer shows the moment in the viewer's zone
// and in UTC.
export function Time({ at }: { at: string | undefined }) {
  const now = useNow()
  if (!at) return <>never</>
  const when = new Date(at)
  const seconds = (when.getTime() - now) / 1000
  const text = seconds > 1 ? `in ${spanOf(seconds)}` : seconds > -1.5 ? 'now' : `${spanOf(-seconds)} ago`
  return (
    <time dateTime={at} title={`${absolute.format(when)} (${when.toISOString()})`}>
      {text}
    </time>
  )
}

// Exact shows a moment in the viewer's zone.
export function Exact({ at }: { at: string }) {
  const when = new Date(at)
  return (
    <time dateTime={at} title={when.toISOString()}>
      {absolute.format(when)}
    </time>
  )
}

const counting = new Intl.NumberFormat()

export function number(n: number): string {
  return counting.format(n)
}

// plural returns a number with a noun.
export function plural(n: number, one: string, many = one + 's'): string {
  return `${number(n)} ${n === 1 ? one : many}`
}

export type Tone = 'plain' | 'bad' | 'warn' | 'good'

export function Badge({ tone = 'plain', children }: { tone?: Tone; children: ReactNode }) {
  return <span className={`badge ${tone}`}>{children}</span>
}

// Short shows the beginning of a hash; the pointer shows all of it. Zeros alone are no key.
export function Short({ hash }: { hash: string }) {
  return (
    <code title={hash} className="hash">
      {/^0*$/.test(hash) ? '-' : hash.slice(0, 10)}
    </code>
  )
}

export function Card({ title, more, children, className = '' }: {
  title: ReactNode
  more?: ReactNode
  children: ReactNode
  className?: string
}) {
  const id = useId()
  return (
    <section className={`card ${className}`} aria-labelledby={id}>
      <header>
        <h2 id={id}>{title}</h2>
        {more}
      </header>
      {children}
    </section>
  )
}

export function Empty({ children }: { children: ReactNode }) {
  return <p className="empty">{children}</p>
}

export function Failed({ error }: { error: unknown }) {
  const p = error instanceof Problem ? error : new Problem(0, String(error))
  return (
    <div className="failed" role="alert">
      <p>{sentence(p.detail)}</p>
      {p.problems.length > 0 && (
        <ul>
          {p.problems.map((one) => (
            <li key={one.path + one.reason}>
              {one.line && <>Line {one.line}{one.policy && <>, policy {one.policy}</>}: </>}
              {one.path && <code>{one.path}</code>} {one.reason}
            </li>
          ))}
        </ul>
      )}
      {p.requestID && (
        <p className="quiet">
          The log of the control plane has more under <code>{p.requestID}</code>.
        </p>
      )}
    </div>
  )
}

export function sentence(text: string): string {
  const whole = text.slice(0, 1).toUpperCase() + text.slice(1)
  return /[.!?]$/.test(whole) ? whole : whole + '.'
}

type Asked<T> = { data: T | undefined; error: unknown; isPending: boolean }

// Asked shows the data of a query, or why it has none. Earlier data stays while the server is away.
export function Asked<T>({ of, children }: { of: Asked<T>; children: (data: T) => ReactNode }) {
  if (of.data !== undefined) {
    return (
      <>
        {of.error ? <Failed error={of.error} /> : null}
        {children(of.data)}
      </>
    )
  }
  if (of.error) return <Failed error={of.error} />
  return <p className="empty" aria-busy="true">Loading …</p>
}

export type Column<T> = {
  title: string
  cell: (row: T) => ReactNode
  // width is a track of a grid.
  width?: string
  // wide: left out on a telephone.
  wide?: boolean
  right?: boolean
}

const rowHeight = 40
const overscan = 10

// Rows are the rows of a list so far, the number of all rows, and the function that asks for more
// rows.
export type Rows<T> = { rows: T[]; found: number; more: () => void; busy: boolean }

type Paged = { hasNextPage: boolean; isFetching: boolean; isFetchNextPageError: boolean; fetchNextPage: () => unknown }

// rowsOf returns the rows of a list's pages. It asks for a page that the server refused only once.
export function rowsOf<T>(list: Paged, pages: T[][], found: number): Rows<T> {
  return {
    rows: pages.flat(), found, busy: list.isFetching,
    more: () => {
      if (list.hasNextPage && !list.isFetching && !list.isFetchNextPageError) void list.fetchNextPage()
    },
  }
}

const whole = <T,>(rows: T[]): Rows<T> => ({ rows, found: rows.length, more: () => {}, busy: false })

// Table shows rows. Of many rows it draws only the rows in sight. If a list comes in pages, it asks
// for the pages in sight.
export function Table<T>({ label, rows: given, columns, id, empty }: {
  label: string
  rows: T[] | Rows<T>
  columns: Column<T>[]
  id: (row: T) => string
  empty: ReactNode
}) {
  const [top, setTop] = useState(0)
  const narrow = useNarrow()
  const { rows, found, more, busy } = Array.isArray(given) ? whole(given) : given
  const virtual = found > 100
  const first = virtual ? Math.min(Math.max(0, Math.floor(top / rowHeight) - overscan), Math.max(0, found - 1)) : 0
  const last = virtual ? Math.min(found, first + 40 + 2 * overscan) : found
  useEffect(() => {
    if (rows.length < last && !busy) more()
  })
  if (rows.length === 0) return <Empty>{empty}</Empty>
  const shown = narrow ? columns.filter((c) => !c.wide) : columns
  const style = { gridTemplateColumns: shown.map((c) => c.width ?? 'minmax(0, 1fr)').join(' ') }
  return (
    <div
      className={virtual ? 'table virtual' : 'table'}
      role="table"
      aria-label={label}
      aria-rowcount={found + 1}
      aria-busy={rows.length < last || undefined}
      tabIndex={virtual ? 0 : undefined}
      onScroll={virtual ? (e) => setTop(e.currentTarget.scrollTop) : undefined}
    >
      <div role="rowgroup" className="head">
        <div role="row" className="row" style={style}>
          {shown.map((c) => (
            <div role="columnheader" key={c.title} className={c.right ? 'right' : ''}>
              {c.title || <span className="hidden">Action</span>}
            </div>
          ))}
        </div>
      </div>
      <div role="rowgroup" style={virtual ? { height: found * rowHeight, position: 'relative' } : undefined}>
        {rows.slice(first, last).map((row, i) => (
          <div
            role="row"
            aria-rowindex={first + i + 2}
            key={id(row)}
            className="row"
            style={virtual
              ? { ...style, position: 'absolute', insetInline: 0, top: (first + i) * rowHeight, height: rowHeight }
              : style}
          >
            {shown.map((c) => (
              <div role="cell" key={c.title} className={c.right ? 'right' : ''}>
                {c.cell(row)}
              </div>
            ))}
          </div>
        ))}
      </div>
    </div>
  )
}

// shownOf is the number of characters of a command that the page shows; the button copies the whole
// command.
const shownOf = 4000

// Copyable shows a command with a button that copies it.
export function Copyable({ label, text }: { label: string; text: string }) {
  const [done, setDone] = useState(false)
  const copy = () => {
    void navigator.clipboard?.writeText(text).then(() => setDone(true))
  }
  return (
    <div className="copyable">
      <span className="label">{label}</span>
      <pre tabIndex={0} aria-label={label}>{text.slice(0, shownOf)}</pre>
      {text.length > shownOf && <p className="quiet">And {number(text.length - shownOf)} characters more, which the button copies, too.</p>}
      <button type="button" className="small" onClick={copy} aria-label={`Copy: ${label}`}>
        {done ? 'Copied' : 'Copy'}
      </button>
    </div>
  )
}

// Dialog shows a modal window, which Escape closes.
export function Dialog({ title, onClose, children }: {
  title: string
  onClose: () => void
  children: ReactNode
}) {
  const ref = useRef<HTMLDialogElement>(null)
  const id = useId()
  useEffect(() => {
    ref.current?.showModal()
  }, [])
  return (
    <dialog ref={ref} aria-labelledby={id} onClose={onClose}>
      <h2 id={id}>{title}</h2>
      {children}
    </dialog>
  )
}

export function Field({ label, help, children }: {
  label: string
  help?: string
  children: (id: string, described: string | undefined) => ReactNode
}) {
  const id = useId()
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      {children(id, help ? id + '-help' : undefined)}
      {help && (
        <span className="quiet" id={id + '-help'}>
          {help}
        </span>
      )}
    </div>
  )
}

// Choice shows a filter with a list of values, each with its words.
export function Choice<K extends string>({ label, of, value, onChange }: {
  label: string
  of: Record<K, string>
  value: K
  onChange: (value: K) => void
}) {
  return (
    <select aria-label={label} value={value} onChange={(e) => onChange(e.target.value as K)}>
      {(Object.entries(of) as [K, string][]).map(([key, words]) => <option key={key} value={key}>{words}</option>)}
    </select>
  )
}

// Words shows the lines of a difference: added, removed and changed parts.
export function Words({ lines }: { lines: string[] }) {
  if (lines.length === 0) return <Empty>Nothing is different.</Empty>
  return (
    <ul className="words">
      {lines.map((line) => (
        <li key={line} className={line.startsWith('+') ? 'more' : line.startsWith('-') ? 'less' : 'other'}>
          {line}
        </li>
      ))}
    </ul>
  )
}
