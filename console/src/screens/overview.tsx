// One screen for the first minute of an incident.
import { lift, order, useAct } from '../actions'
import { useState } from 'react'
import type { Order, Policy, Schemas } from '../api'
import { Graph, type Mark } from '../graph'
import { encode, type Fleet, link, useAudit, useComparison, useEnforcement, useFleet, useMay, usePolicySet, useSeries, useTop } from '../state'
import { Asked, Badge, Card, Empty, number, plural, Short, Table, Time, type Tone } from '../ui'
import { actionWords, AuditTable } from './changes'
import { StateOf } from './policies'

type Top = Schemas['TopCaller']

export function Overview() {
  const fleet = useFleet()
  const orders = useEnforcement()
  const refused = useTop('refused', '', 5)
  return (
    <>
      <h1 className="hidden">Overview</h1>
      <div className="tiles">
        <RefusedTile />
        <FleetTiles fleet={fleet.data} />
        <OrdersTile orders={orders.data?.data.orders} />
      </div>
      <RefusalsCard />
      <div className="columns">
        <div>
          <PolicyCard />
          <OrdersCard orders={orders.data?.data.orders ?? []} />
        </div>
        <div>
          <Card title="Who is hit" more={<a href={link('callers')}>Find a caller</a>}>
            <Asked of={refused}>{(top) => <TopTable rows={top.callers} empty="No caller was refused in the last minutes." />}</Asked>
          </Card>
          <ChangesCard />
        </div>
      </div>
    </>
  )
}

// changeMarks returns the changes of policies and orders, as marks on the axis of time.
export function changeMarks(entries: Schemas['AuditEntry'][]): Mark[] {
  return entries.map((e) => ({
    at: e.at,
    label: `${new Date(e.at).toLocaleTimeString()} ${e.by || 'the control plane'} ${actionWords(e)}`,
    href: link('changes'),
  }))
}

// useRange returns the time that a graph covers, and the buttons that choose it.
export function useRange() {
  const [range, setRange] = useState<'1h' | '24h'>('1h')
  const choose = (
    <span className="choice">
      {(['1h', '24h'] as const).map((r) => (
        <button type="button" className="small" key={r} aria-pressed={range === r} onClick={() => setRange(r)}>
          {r === '1h' ? 'An hour' : 'A day'}
        </button>
      ))}
    </span>
  )
  return { range, choose }
}

type Outcome = Schemas['Series']['outcome']

// outcomeWords are the names of the lines of a policy's graph, in the order of their colours. Lines
// of requests that are only counted, and not refused, are dashed.
const outcomeWords: Partial<Record<Outcome, string>> = {
  refused: 'refused', requests: 'requests', candidate_refused: 'the candidate would refuse',
  candidate_undetermined: 'the candidate: not known',
  shadow_refused: 'would be refused, in shadow', shadow_undetermined: 'in shadow: not known',
}
const outcomesOfPolicy = Object.keys(outcomeWords) as Outcome[]

export function Refusals({ policy, candidate, height }: { policy: string; candidate?: boolean; height: number }) {
  const { range, choose } = useRange()
  const series = useSeries(policy ? [policy] : [], policy ? outcomesOfPolicy : ['refused'], range)
  const audit = useAudit(policy ? `policies/${policy}` : '', 50)
  // Beside the requests that would be refused stands the number of requests for which that is not
  // known, even if it is 0.
  const always = (s: Schemas['Series'], all: Schemas['Series'][]) => {
    if (s.outcome.startsWith('candidate_')) return candidate
    if (s.outcome === 'shadow_undetermined') return all.some((one) => one.outcome === 'shadow_refused' && one.total > 0)
    return s.outcome !== 'shadow_refused'
  }
  return (
    <Card title={policy ? 'Decisions over time' : 'Refusals, and what changed'} more={choose}>
      <Asked of={series}>
        {(s) => {
          const shown = s.series.filter((one) => one.total > 0 || (policy && always(one, s.series)))
          if (policy) shown.sort((a, b) => outcomesOfPolicy.indexOf(a.outcome) - outcomesOfPolicy.indexOf(b.outcome))
          return (
            <>
              {shown.length === 0 && <Empty>No policy refused a request in this time.</Empty>}
              <Graph
                label="Refusals" from={s.from} step={s.step_seconds} height={height}
                lines={(shown.length ? shown : s.series.slice(0, 1)).map((one) => ({
                  label: (policy ? outcomeWords[one.outcome] : one.policy) ?? 'all', values: one.values,
                  dashed: one.outcome.includes('_'),
                }))}
                marks={changeMarks(audit.data?.entries ?? [])}
              />
              {!s.complete && <p className="quiet">The store is away: these are the counts of one control plane.</p>}
            </>
          )
        }}
      </Asked>
    </Card>
  )
}

function RefusalsCard() {
  return <Refusals policy="" height={150} />
}

function Tile({ label, value, note, tone = 'plain', href }: {
  label: string
  value: string
  note: string
  tone?: Tone
  href: string
}) {
  return (
    <a className={`tile ${tone}`} href={href}>
      <span className="label">{label}</span>
      <span className="value">{value}</span>
      <span className="note">{note}</span>
    </a>
  )
}

// than returns the difference of a count from an earlier count; nothing if that is not known.
function than(before: number | null | undefined): string {
  return before === null || before === undefined ? 'not known' : number(before)
}

function RefusedTile() {
  const c = useComparison()
  const all = c.data?.all
  const more = all && all.now > 2 * (all.hour_ago ?? all.day_ago ?? all.now)
  return (
    <Tile
      label="Refused in 5 minutes" href={link('policies')} value={all ? number(all.now) : '…'} tone={more ? 'bad' : 'plain'}
      note={all ? `an hour ago ${than(all.hour_ago)}, a day ago ${than(all.day_ago)}` : ''}
    />
  )
}

function FleetTiles({ fleet }: { fleet: Fleet | undefined }) {
  const down = fleet?.counts.fallen ?? 0
  const late = fleet?.counts.behind ?? 0
  const all = fleet?.counts.active ?? 0
  const refused = fleet?.counts.refused ?? 0
  const upToDate = fleet?.current_version ? `version ${fleet.current_version} and all orders` : 'no version yet'
  return (
    <>
      <Tile
        label="On the failure ladder" href={link('nodes')} value={fleet ? number(down) : '…'}
        tone={down ? 'bad' : 'plain'} note={`of ${plural(all, 'active node')}`}
      />
      <Tile
        label="Up to date" href={link('nodes')} value={fleet ? `${all - late} of ${all}` : '…'}
        tone={refused ? 'bad' : late ? 'warn' : 'plain'} note={refused ? `calls from ${plural(refused, 'address', 'addresses')} refused: no limit is sent there` : upToDate}
      />
    </>
  )
}

function OrdersTile({ orders }: { orders: Order[] | undefined }) {
  const n = orders?.length ?? 0
  return (
    <Tile
      label="Orders in force" href={link('settings')} value={orders ? number(n) : '…'} tone={n ? 'warn' : 'plain'}
      note={n ? 'they win over the policy set' : 'the policy set alone decides'}
    />
  )
}

function PolicyCard() {
  const now = usePolicySet()
  const orders = useEnforcement()
  const comparison = useComparison()
  const act = useAct()
  const may = useMay('editor')
  const list = orders.data?.data.orders ?? []
  const counts = new Map((comparison.data?.policies ?? []).map((c) => [c.policy ?? '', c]))
  const refused = (p: Policy) => counts.get(p.name ?? '')?.now ?? 0
  return (
    <Card title="Refused by policy, in 5 minutes" more={<a href={link('policies')}>All policies</a>}>
      <Asked of={now}>
        {({ set }) => (
          <Table
            label="Policies" rows={[...(set.policies ?? [])].sort((a, b) => refused(b) - refused(a)).slice(0, 8)}
            id={(p) => p.name ?? ''} empty="There is no policy yet."
            columns={[
              { title: 'Policy', width: 'minmax(0, 2fr)', cell: (p) => <PolicyLink name={p.name ?? ''} /> },
              { title: 'Now', width: '3.5rem', right: true, cell: (p) => <b>{number(refused(p))}</b> },
              { title: '1 h ago', wide: true, width: '4rem', right: true, cell: (p) => <Before n={counts.get(p.name ?? '')?.hour_ago} /> },
              { title: '1 d ago', wide: true, width: '4rem', right: true, cell: (p) => <Before n={counts.get(p.name ?? '')?.day_ago} /> },
              { title: 'State', wide: true, width: '9rem', cell: (p) => <StateOf policy={p} orders={list} /> },
              {
                title: '', width: '6.500rem', right: true,
                cell: (p) => may && <ShadowButton name={p.name ?? ''} list={list} act={act} />,
              },
            ]}
          />
        )}
      </Asked>
    </Card>
  )
}

function Before({ n }: { n: number | null | undefined }) {
  return typeof n === 'number' ? <>{number(n)}</> : <span className="quiet" title="Not known: nothing ran then, or nothing was counted.">–</span>
}

export function ShadowButton({ name, list, act }: { name: string; list: Order[]; act: ReturnType<typeof useAct> }) {
  const given = list.find((o) => o.policy === name && !o.tier)
  return given ? (
    <button type="button" className="small" aria-label={`Lift the order about ${name}`} onClick={() => act(lift(given, list))}>
      Lift
    </button>
  ) : (
    <button type="button" className="small" aria-label={`Set ${name} to shadow`} onClick={() => act(order(name, list))}>
      To shadow
    </button>
  )
}

// shownWords returns the values of a caller that the policy set shows.
export function shownWords(shown: Record<string, string> | undefined): string {
  return Object.entries(shown ?? {}).map(([k, v]) => `${k}: ${v}`).join(', ')
}

// Bans refuse before any policy: their refusals have a name that no policy can have, and no screen.
function PolicyLink({ name }: { name: string }) {
  return name.startsWith('(') ? <span>{name}</span> : <a href={link('policies', name)}>{name}</a>
}

export function whyLink(c: { policy: string; key: string }): string {
  return `${link('callers')}?policy=${encode(c.policy)}&key=${c.key}`
}

export function TopTable({ rows, empty }: { rows: Top[]; empty: string }) {
  return (
    <Table
      label="Callers" rows={rows} id={(c) => c.policy + (c.tier ?? '') + c.key} empty={empty}
      columns={[
        {
          title: 'Caller', width: 'minmax(0, 2fr)',
          cell: (c) => <a href={whyLink(c)} title="Why?">{shownWords(c.shown) || <Short hash={c.consumer ?? c.key} />}</a>,
        },
        { title: 'Policy', width: 'minmax(0, 2fr)', cell: (c) => <span title={c.policy}>{c.policy}</span> },
        { title: 'Count', width: '6rem', right: true, cell: (c) => <span title={c.over ? `may be ${c.over} too high` : ''}>{number(c.count)}</span> },
      ]}
    />
  )
}

function OrdersCard({ orders }: { orders: Order[] }) {
  const act = useAct()
  const may = useMay('editor')
  const fleet = useFleet()
  const active = fleet.data?.counts.active ?? 0
  const obeyed = active - (fleet.data?.counts.lack_orders ?? 0)
  return (
    <Card title="Orders in force" more={orders.length > 0 && <span className="quiet">obeyed by {obeyed} of {plural(active, 'node')}</span>}>
      <Table
        label="Orders in force" rows={orders} id={(o) => `${o.policy}/${o.tier}`}
        empty="None. A policy can be set to shadow above, all of them under Settings."
        columns={[
          { title: 'About', width: 'minmax(0, 2fr)', cell: (o) => <><Badge tone="warn">{o.state}</Badge> {o.policy ?? 'all policies'}{o.tier && `, tier ${o.tier}`}</> },
          { title: 'Why', width: 'minmax(0, 2fr)', cell: (o) => <span title={o.reason}>{o.reason}</span> },
          { title: 'Ends', width: '6rem', cell: (o) => (o.expires_at ? <Time at={o.expires_at} /> : 'open') },
          { title: '', width: '5rem', right: true, cell: (o) => may && <button type="button" className="small" aria-label={`Lift the order about ${o.policy ?? 'all policies'}`} onClick={() => act(lift(o, orders))}>Lift</button> },
        ]}
      />
    </Card>
  )
}

function ChangesCard() {
  const audit = useAudit('', 4)
  return (
    <Card title="What changed" more={<a href={link('changes')}>All changes</a>}>
      <Asked of={audit}>{(a) => <AuditTable entries={a.entries} short />}</Asked>
    </Card>
  )
}
