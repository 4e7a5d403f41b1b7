import { useState } from 'react'
import type { Order, Policy, Schemas } from '../api'
import { link, type PolicyFilters, useLater, useMay, usePolicies } from '../state'
import { Asked, Badge, Card, Choice, type Column, plural, rowsOf, Table } from '../ui'

// enforcementOf returns how a policy is enforced, by the document or by an order about it.
export function enforcementOf(p: Policy, orders: Order[]): { state: string; ordered: boolean } {
  const order = orders.find((o) => o.policy === p.name && !o.tier) ?? orders.find((o) => !o.policy && !o.tier)
  if (order) return { state: order.percent && order.percent < 100 ? `${order.state} ${order.percent} %` : order.state, ordered: true }
  const e = p.enforcement
  if (e && typeof e === 'object') return { state: `enforce ${(e as { enforce: number }).enforce} %`, ordered: false }
  return { state: e ? String(e) : 'enforce', ordered: false }
}

export function StateOf({ policy, orders }: { policy: Policy; orders: Order[] }) {
  return <State {...enforcementOf(policy, orders)} />
}

function State({ state, ordered }: { state: string; ordered: boolean }) {
  const text = state === 'enforce' ? 'enforced' : state
  return (
    <span title={ordered ? 'by an order of an operator' : 'as the policy set says'}>
      {state === 'enforce' ? text : <Badge tone="warn">{text}</Badge>}
      {ordered && ' ordered'}
    </span>
  )
}

// limitWords returns the limit of a policy as in the policy set.
export function limitWords(l: { tier?: string; quota?: number; window?: string; in_flight?: number; least?: number; burst?: number; own?: boolean }): string {
  const limit = l.in_flight ? `${l.least ? `${l.least} to ` : ''}${l.in_flight} in flight` : `${l.quota ?? 0} per ${l.window}`
  const burst = l.burst && l.burst !== l.quota ? `, burst ${l.burst}` : ''
  return `${l.tier ? l.tier + ' ' : ''}${l.own ? 'at most ' : ''}${limit}${burst}`
}

const modes = { '': 'All modes', leased: 'leased', strict: 'strict', optimistic: 'optimistic', local: 'local' }
const states = { '': 'All states', enforce: 'enforced', shadow: 'in shadow', off: 'off' }

export function Policies() {
  const may = useMay('editor')
  const [search, setSearch] = useState('')
  const [mode, setMode] = useState<PolicyFilters['mode']>('')
  const [state, setState] = useState<PolicyFilters['state']>('')
  const filters = { search: useLater(search.trim(), 200), mode, state }
  const list = usePolicies(filters)
  const asked = filters.search || mode || state
  return (
    <>
      <div className="heading">
        <h1>Policies</h1>
        <input
          type="search" aria-label="Filter policies by name" placeholder="Filter by name" maxLength={256} value={search}
          onChange={(e) => setSearch(e.target.value)}
        />
        <Choice label="Mode" of={modes} value={mode} onChange={setMode} />
        <Choice label="State" of={states} value={state} onChange={setState} />
        <a className="button" href={link('edit')}>
          {may ? 'Edit the policy set' : 'Look at the document'}
        </a>
      </div>
      <Asked of={list}>
        {({ pages }) => {
          const found = pages[0]!.found
          return (
            <Card title="In force" more={<span className="quiet">{plural(found, 'policy', 'policies')}</span>}>
              <Table
                label="Policies" rows={rowsOf(list, pages.map((p) => p.policies), found)} id={(p) => [p.name, p.version].join(' ')} columns={columns}
                empty={asked ? 'No policy is like this.' : 'There is no policy yet: edit the policy set, or run weir apply FILE.'}
              />
            </Card>
          )
        }}
      </Asked>
    </>
  )
}

const columns: Column<Schemas['PolicyInForce']>[] = [
  { title: 'Policy', width: 'minmax(0, 2fr)', cell: (p) => <><a href={link('policies', p.name)}>{p.name}</a>{p.version && ` in version ${p.version}`}</> },
  { title: 'Limit', width: 'minmax(0, 3fr)', cell: (p) => <Limits of={p.limits} /> },
  { title: 'Whose', wide: true, cell: (p) => p.partition.join(', ') || 'everyone together' },
  { title: 'Mode', wide: true, cell: (p) => p.mode },
  {
    title: 'State', width: 'minmax(6rem, 1fr)',
    cell: (p) => (
      <>
        <State state={p.percent ? `${p.state} ${p.percent} %` : p.state} ordered={p.ordered} />
        {p.unmet_since && <span title={`No request has met it since ${p.unmet_since}`}> <Badge tone="warn">unmet</Badge></span>}
      </>
    ),
  },
]

function Limits({ of }: { of: Schemas['PromisedLimit'][] }) {
  const text = of.map(limitWords).join('; ')
  return <span title={text}>{text}</span>
}
