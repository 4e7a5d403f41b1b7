import { useState } from 'react'
import type { Node, RefusedNode } from '../api'
import { type Fleet, type NodeFilters, useLater, useNodes } from '../state'
import { Asked, Badge, Card, Choice, plural, rowsOf, Table, Time } from '../ui'

const states = { '': 'All', behind: 'Not up to date', fallen: 'On the failure ladder', away: 'Away' }

export function Nodes() {
  const [search, setSearch] = useState('')
  const [state, setState] = useState<keyof typeof states>('')
  const filters: NodeFilters = { search: useLater(search.trim(), 200), ...(state && { [state]: true }) }
  const list = useNodes(filters)
  return (
    <>
      <div className="heading">
        <h1>Nodes</h1>
        <input
          type="search" aria-label="Filter nodes by id or zone" placeholder="Filter by id or zone" maxLength={256}
          value={search} onChange={(e) => setSearch(e.target.value)}
        />
        <Choice label="Which nodes" of={states} value={state} onChange={setState} />
      </div>
      <Asked of={list}>
        {({ pages }) => {
          const f = pages[0]!
          const all = f.counts.active + f.counts.away
          return (
            <>
              <p className="lead">{sumUp(f)}</p>
              {f.refused.length > 0 && <RefusedCard refused={f.refused} />}
              <Card title="Envoys" more={f.counts.found < all && <span className="quiet">{f.counts.found} of {plural(all, 'node')}</span>}>
                <Table
                  label="Nodes" rows={rowsOf(list, pages.map((p) => p.nodes), f.counts.found)} id={(n) => n.id + n.boot} columns={columns(f)}
                  empty={all > 0 ? 'No node is like this.' : 'No Envoy has polled this control plane yet. docs/run/install.md says how to connect one.'}
                />
              </Card>
            </>
          )
        }}
      </Asked>
    </>
  )
}

// RefusedCard lists the Envoys that are in no other list, because their calls are refused.
function RefusedCard({ refused }: { refused: RefusedNode[] }) {
  return (
    <Card title="Refused" more={<span className="quiet">an Envoy there enforces the last policy set that it received, or the policy set of its own configuration</span>}>
      <Table label="Refused nodes" rows={refused} id={(r) => r.address} columns={refusedColumns} empty="" />
    </Card>
  )
}

const refusedColumns = [
  { title: 'Address', cell: (r: RefusedNode) => r.address },
  { title: 'Calls itself', wide: true, cell: (r: RefusedNode) => r.node ?? '' },
  { title: 'Why', width: 'minmax(0, 2fr)', cell: (r: RefusedNode) => <span title={r.reason}>{r.reason}</span> },
  { title: 'Calls', wide: true, cell: (r: RefusedNode) => r.calls },
  { title: 'Last', width: 'minmax(0, 1.5fr)', cell: (r: RefusedNode) => (r.active ? <Badge tone="bad">still calls</Badge> : <Time at={r.last_seen} />) },
]

function sumUp({ counts: n, current_version: version }: Fleet): string {
  return (
    `${plural(n.active, 'node')} active, ${n.behind === 0 ? 'all up to date' : `${n.behind} not up to date`}, ` +
    `${n.fallen === 0 ? 'none' : n.fallen} on the failure ladder, ` +
    `${n.refused === 0 ? 'no address' : plural(n.refused, 'address', 'addresses')} refused. Version ${version} is current.`
  )
}

const columns = (f: Fleet) => [
  { title: 'Node', width: 'minmax(0, 2fr)', cell: (n: Node) => <span title={`boot ${n.boot}`}>{n.id}</span> },
  { title: 'Zone', wide: true, cell: (n: Node) => n.zone ?? '' },
  { title: 'Version', cell: (n: Node) => <VersionOf node={n} /> },
  {
    title: 'Orders',
    wide: true,
    cell: (n: Node) => ((n.enforcement ?? 0) < f.current_enforcement ? <Badge tone="warn">behind</Badge> : 'obeyed'),
  },
  { title: 'Failure ladder', width: 'minmax(0, 1.5fr)', cell: (n: Node) => <StateOf node={n} /> },
  { title: 'Filter', wide: true, width: 'minmax(0, 1.5fr)', cell: (n: Node) => <span title={n.filter}>{n.filter}</span> },
  { title: 'Seen', cell: (n: Node) => <>{n.active || <Badge tone="bad">away</Badge>} <Time at={n.last_seen} /></> },
]

function VersionOf({ node: n }: { node: Node }) {
  if (n.refused) return <span title={n.reason}><Badge tone="bad">refused {n.refused}</Badge></span>
  if (n.lost) return <Badge tone="bad">lost version</Badge>
  if (n.applied !== n.wanted) return <Badge tone="warn">{n.applied} → {n.wanted}</Badge>
  return <>{n.applied}</>
}

function StateOf({ node: n }: { node: Node }) {
  // A node without a report never left the ground.
  if (!n.state || n.state === 'normal') return <>normal</>
  const steps = Object.entries(n.steps ?? {}).map(([policy, step]) => `${policy}: ${step}`).join(', ')
  return <span title={steps}><Badge tone="bad">{n.state}</Badge> {steps}</span>
}
