// Counts over time, with marks for changes.
import { useEffect, useRef, useState } from 'react'
import uPlot from 'uplot'
import 'uplot/dist/uPlot.min.css'
import { useDark } from './theme'
import { number } from './ui'

// Line is one line of a graph. A dashed line is there for comparison. total replaces the sum of the
// values.
export type Line = { label: string; values: (number | null)[]; dashed?: boolean; total?: number }
export type Mark = { at: string; label: string; href: string }

// The colours of lines, light and dark, in an order that colour-blind viewers can tell apart.
const colours = ['#2563eb', '#d97706', '#0d9488', '#9333ea', '#64748b']

export function colourOf(i: number): string {
  return colours[i % colours.length] ?? '#64748b'
}

type Area = { left: number; width: number }

export function Graph({ label, from, step, lines, marks, height }: {
  label: string
  from: string
  step: number
  lines: Line[]
  marks: Mark[]
  height: number
}) {
  const box = useRef<HTMLDivElement>(null)
  const plot = useRef<uPlot>(undefined)
  const [area, setArea] = useState<Area>()
  const start = Date.parse(from) / 1000
  const count = lines[0]?.values.length ?? 0
  const names = lines.map((l) => (l.dashed ? '-' : ' ') + l.label).join('\n')
  const dark = useDark() // The colours of a theme are read when the graph is made.
  useEffect(() => {
    const at = box.current
    if (!at) return
    const made = new uPlot(options(names.split('\n'), at.clientWidth, height, setArea), [[]], at)
    plot.current = made
    const resize = new ResizeObserver(() => made.setSize({ width: at.clientWidth, height }))
    resize.observe(at)
    return () => {
      resize.disconnect()
      made.destroy()
    }
  }, [names, height, dark])
  useEffect(() => {
    const times = Array.from({ length: count }, (_, i) => start + i * step)
    // The last step is under way: half of it would look like a fall.
    const values = lines.map((l) => l.values.map((v, i) => (i === count - 1 || v === null ? null : v)))
    plot.current?.setData([times, ...values])
  }, [lines, start, step, count, names, height, dark])
  return (
    <figure className="graph">
      <div ref={box} role="img" aria-label={`${label}: ${sumUp(lines)}`} />
      {area && count > 1 && marks.map((m) => {
        const share = (Date.parse(m.at) / 1000 - start) / ((count - 1) * step)
        if (share < 0) return null
        return (
          <a
            key={m.at + m.label} className="mark" href={m.href} title={m.label} aria-label={m.label}
            // A change after the last whole step is shown at the end of that step.
            style={{ left: area.left + Math.min(share, 1) * area.width, height: height - 26 }}
          />
        )
      })}
      <figcaption>
        {lines.map((l, i) => (
          <span key={l.label}>
            <i className={l.dashed ? 'dashed' : ''} style={{ color: colourOf(i) }} /> {l.label}
          </span>
        ))}
        {marks.length > 0 && <span><i className="change" /> a change</span>}
      </figcaption>
    </figure>
  )
}

function sumUp(lines: Line[]): string {
  if (lines.length === 0) return 'none'
  return lines.map((l) => `${l.label} ${number(l.total ?? l.values.reduce<number>((sum, v) => sum + (v ?? 0), 0))}`).join(', ')
}

// clock returns a moment of the axis in the viewer's zone.
function clock(seconds: number): string {
  return new Date(seconds * 1000).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' })
}

function options(names: string[], width: number, height: number, onArea: (a: Area) => void): uPlot.Options {
  const style = getComputedStyle(document.documentElement)
  const quiet = style.getPropertyValue('--quiet')
  const line = style.getPropertyValue('--line')
  const axis = { stroke: quiet, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: '12px system-ui, sans-serif' }
  const place = (u: uPlot) => {
    onArea({ left: u.bbox.left / devicePixelRatio, width: u.bbox.width / devicePixelRatio })
  }
  return {
    width, height, padding: [8, 8, 0, 0],
    legend: { show: false },
    cursor: { show: false },
    scales: { x: { time: true }, y: { range: (_u, _min, max) => [0, Math.max(5, max * 1.1)] } },
    axes: [{ ...axis, size: 26, space: 72, values: (_u, times) => times.map(clock) }, { ...axis, size: 44 }],
    series: [{}, ...names.map((name, i) => ({
      label: name.slice(1), stroke: colourOf(i), width: 1.5, points: { show: false }, spanGaps: false,
      ...(name.startsWith('-') && { dash: [6, 4] }),
    }))],
    hooks: { ready: [place], setSize: [place], draw: [place] },
  }
}
