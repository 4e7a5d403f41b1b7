// The effect that another limit of a policy would have, from the use of its callers in the last
// hour.
import { useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import { type Action, rollback, useAct } from '../actions'
import { client, data, type Policy, type Schemas } from '../api'
import { weir } from '../shell'
import { encode, useLater, useMay, usePolicySet } from '../state'
import { Asked, Card, Empty, number, Words } from '../ui'
import { shareOf, whichNodes } from './editor'

type Distribution = Schemas['Distribution']

// steps is the number of positions of the slider.
const steps = 500

// patchOf returns a change of the quota of a policy's first limit, which counts the callers. It is
// undefined if the quota depends on the caller or its tier: one figure cannot replace it.
function patchOf(policy: Policy, quota: number): object | undefined {
  const limits = [policy.limit ?? []].flat() as { quota?: unknown }[]
  if (typeof limits[0]?.quota !== 'number') return undefined
  if (!Array.isArray(policy.limit)) return { limit: { quota } }
  return { limit: [{ ...limits[0], quota }, ...limits.slice(1)] } // A merge patch replaces a list as a whole.
}

function sendPatch(name: string, patch: object, match: string, query: { dry_run?: boolean; nodes?: string }) {
  return data(client.PATCH('/v1/policies/{name}', {
    params: { path: { name }, header: { 'If-Match': match }, query },
    headers: { 'Content-Type': 'application/merge-patch+json' },
    body: patch,
  }))
}

function Preview({ name, patch, version }: { name: string; patch: object; version: number }) {
  const tried = useQuery({
    queryKey: ['dry-run', name, patch, version],
    queryFn: () => sendPatch(name, patch, `"${version}"`, { dry_run: true }),
  })
  return <Asked of={tried}>{(c) => <Words lines={c.diff.words} />}</Asked>
}

// change gives a policy another limit. The server first names the changes.
function change(name: string, patch: object, version: number): Action {
  return {
    title: `Another limit for ${name}`,
    text: <Preview name={name} patch={patch} version={version} />,
    button: 'Apply',
    inputs: [whichNodes],
    command: (v) => weir('patch', [name, JSON.stringify(patch)], shareOf(v.nodes)),
    call: (v) => ({
      method: 'PATCH', path: `/v1/policies/${encode(name)}${v.nodes === '100%' ? '' : `?nodes=${encode(v.nodes ?? '')}`}`,
      match: true, body: patch,
    }),
    run: async (v) => {
      const made = await sendPatch(name, patch, `"${version}"`, shareOf(v.nodes))
      if (made.rollout || made.unchanged) return { done: `Version ${made.version} is stored.` }
      return { done: `Version ${made.version} is in force.`, undo: () => rollback(version, made.version).run({}) }
    },
  }
}

function useDistribution(name: string, limit?: number) {
  const query = limit ? { limit: [limit] } : {}
  return useQuery({
    queryKey: ['distribution', name, limit],
    queryFn: () =>
      data(client.GET('/v1/policies/{name}/distribution', { params: { path: { name }, query } })),
    placeholderData: (last) => last,
  })
}

export function AnotherLimit({ name }: { name: string }) {
  const own = useDistribution(name)
  return (
    <Card title="What would another limit do?">
      <Asked of={own}>
        {(d) => (d.uncovered
          ? <Empty>The window is {windowWords(d.window_seconds)}, and what callers use is kept for an hour: no figure can be suggested.</Empty>
          : d.callers === 0
          ? <Empty>Nothing is known yet. Callers are counted in spans of five minutes: look again after requests for that long.</Empty>
          : <Slider name={name} own={d} />)}
      </Asked>
    </Card>
  )
}

function Slider({ name, own }: { name: string; own: Distribution }) {
  const now = own.limits[0]?.limit ?? own.suggestion?.limit ?? 1
  const [limit, setLimit] = useState(now)
  // The end of the slider stays while the slider is moved.
  const [top] = useState(() => Math.ceil(2 * Math.max(now, own.suggestion?.limit ?? 0, own.quantiles.at(-1)?.rate ?? 0, 5)))
  const asked = useLater(limit, 150)
  const answer = useDistribution(name, asked)
  const caught = answer.data?.limits.find((l) => l.limit === limit)
  const may = useMay('editor')
  const act = useAct()
  const inForce = usePolicySet()
  const policy = inForce.data?.set.policies?.find((p) => p.name === name)
  const patch = policy && patchOf(policy, limit)
  const per = `per ${windowWords(own.window_seconds)}`
  const set = (n: number) => setLimit(Math.max(1, Math.round(n) || 1))
  return (
    <div className="slider">
      <label htmlFor="another-limit">Limit</label>
      <input
        id="another-limit" type="range" min={0} max={steps} value={positionOf(limit, top)}
        aria-valuetext={`${limit} ${per}`} onChange={(e) => set(limitAt(Number(e.target.value), top))}
      />
      <input
        type="number" min={1} value={limit} aria-label={`Limit ${per}`} onChange={(e) => set(Number(e.target.value))}
      />
      <span className="quiet">{per}</span>
      <p className="caught" aria-live="polite">
        {caught ? <Caught of={caught} all={own.callers} /> : '…'}
      </p>
      <div className="buttons">
        {own.suggestion && (
          <button type="button" className="small" onClick={() => set(own.suggestion?.limit ?? limit)}>
            Suggested: {number(own.suggestion.limit)}
          </button>
        )}
        <button type="button" className="small" onClick={() => set(now)}>In force: {number(now)}</button>
        {may && patch && limit !== now && (
          <button
            type="button" className="small" onClick={() => act(change(name, patch, inForce.data?.version ?? 0))}
          >
            Change to {number(limit)} …
          </button>
        )}
      </div>
      <p className="quiet">
        Half of the callers use at most {rate(own, 0.5)}, 99 % at most {rate(own, 0.99)}, all at most {rate(own, 1)} {per}.
        From a sample of the last hour, as <code>weir suggest {name}</code> has it.
      </p>
    </div>
  )
}

function Caught({ of: c, all }: { of: Schemas['CaughtCallers']; all: number }) {
  return (
    <>
      <b>{number(c.callers_above)}</b> of {number(all)} callers would be caught ({percent(c.share_above)}), and{' '}
      <b>{percent(c.refused_share)}</b> of what they ask for would be refused.
    </>
  )
}

// The slider is logarithmic: a tenth of a large limit has the same width as a tenth of a small
// limit.
function positionOf(limit: number, top: number): number {
  return Math.round((steps * Math.log(limit)) / Math.log(top))
}

function limitAt(position: number, top: number): number {
  return top ** (position / steps)
}

function rate(d: Distribution, q: number): string {
  return number(Math.ceil(d.quantiles.find((one) => one.q === q)?.rate ?? 0))
}

function percent(share: number): string {
  return `${(share * 100).toLocaleString('en', { maximumSignificantDigits: 2 })} %`
}

const spans: [seconds: number, unit: string][] = [[86400, 'd'], [3600, 'h'], [60, 'm'], [1, 's']]

function windowWords(seconds: number): string {
  const [length, unit] = spans.find(([length]) => seconds % length === 0) ?? [1, 's']
  return seconds / length + unit
}
