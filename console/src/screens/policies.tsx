import { useState } from 'react'
import type { Order, Policy } from '../api'
import { link, useEnforcement, useMay, usePolicySet, usePromises } from '../state'
import { Asked, Badge, Card, Table } from '../ui'

// enforcementOf says how a policy is enforced, by the document or by an order about it.
export function enforcementOf(p: Policy, orders: Order[]): { state: string; ordered: boolean } {
  const order = orders.find((o) => o.policy === p.name && !o.tier) ?? orders.find((o) => !o.policy && !o.tier)
  if (order) return { state: order.percent && order.percent < 100 ? `${order.state} ${order.percent} %` : order.state, ordered: true }
  const e = p.enforcement
  if (e && typeof e === 'object') return { state: `${(e as { enforce: number }).enforce} %`, ordered: false }
  return { state: e ? String(e) : 'enforce', ordered: false }
}

export function StateOf({ policy, orders }: { policy: Policy; orders: Order[] }) {
  const { state, ordered } = enforcementOf(policy, orders)
  const text = state === 'enforce' ? 'enforced' : state
  return (
    <span title={ordered ? 'by an order of an operator' : 'as the policy set says'}>
      {state === 'enforce' ? text : <Badge tone="warn">{text}</Badge>}
      {ordered && ' ordered'}
    </span>
  )
}

// limitWords is the limit of a policy as the policy set has it.
export function limitWords(l: { tier?: string; quota?: number; window?: string; in_flight?: number; least?: number; burst?: number; own?: boolean }): string {
  const limit = l.in_flight ? `${l.least ? `${l.least} to ` : ''}${l.in_flight} in flight` : `${l.quota} per ${l.window}`
  const burst = l.burst && l.burst !== l.quota ? `, burst ${l.burst}` : ''
  return `${l.tier ? l.tier + ' ' : ''}${l.own ? 'at most ' : ''}${limit}${burst}`
}

export function Policies() {
  const now = usePolicySet()
  const promises = usePromises()
  const orders = useEnforcement()
  const may = useMay('editor')
  const [filter, setFilter] = useState('')
  const promised = new Map((promises.data ?? []).map((p) => [p.name, p]))
  const limitOf = (p: Policy) => (promised.get(p.name ?? '')?.limits ?? []).map(limitWords).join('; ')
  return (
    <>
      <div className="heading">
        <h1>Policies</h1>
        <input
          type="search" aria-label="Filter policies by name" placeholder="Filter by name" value={filter}
          onChange={(e) => setFilter(e.target.value)}
        />
        <a className="button" href={link('edit')}>
          {may ? 'Edit the policy set' : 'Look at the document'}
        </a>
      </div>
      <Card title="In force">
        <Asked of={now}>
          {({ set }) => (
            <Table
              label="Policies"
              rows={(set.policies ?? []).filter((p) => (p.name ?? '').includes(filter.trim()))}
              id={(p) => p.name ?? ''}
              empty={filter ? 'No policy has this in its name.' : 'There is no policy yet: edit the policy set, or run weir apply FILE.'}
              columns={[
                { title: 'Policy', width: 'minmax(0, 2fr)', cell: (p) => <a href={link('policies', p.name ?? '')}>{p.name}</a> },
                { title: 'Limit', width: 'minmax(0, 3fr)', cell: (p) => <span title={limitOf(p)}>{limitOf(p)}</span> },
                { title: 'Whose', wide: true, cell: (p) => (p.partition?.length ? p.partition.join(', ') : 'everyone together') },
                { title: 'Mode', wide: true, cell: (p) => String(p.mode ?? 'leased') },
                { title: 'State', width: 'minmax(6rem, 1fr)', cell: (p) => <StateOf policy={p} orders={orders.data?.data.orders ?? []} /> },
              ]}
            />
          )}
        </Asked>
      </Card>
    </>
  )
}
