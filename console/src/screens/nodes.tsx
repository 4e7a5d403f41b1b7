import type { Node } from '../api'
import { type Fleet, useFleet } from '../state'
import { Asked, Badge, Card, plural, Table, Time } from '../ui'

export const ladder = (n: Node) => n.state !== undefined && n.state !== 'ground'

export const behind = (n: Node, f: Fleet) => n.applied !== n.wanted || (n.enforcement ?? 0) < f.enforcement

export function Nodes() {
  const fleet = useFleet()
  return (
    <>
      <h1>Nodes</h1>
      <Asked of={fleet}>
        {(f) => (
          <>
            <p className="lead">{sumUp(f)}</p>
            <Card title="Envoys">
              <Table
                label="Nodes" rows={f.nodes} id={(n) => n.id + n.boot} columns={columns(f)}
                empty="No Envoy has polled this control plane yet. docs/operations.md says how to connect one."
              />
            </Card>
          </>
        )}
      </Asked>
    </>
  )
}

function sumUp(f: Fleet): string {
  const active = f.nodes.filter((n) => n.active)
  const late = active.filter((n) => behind(n, f)).length
  const down = active.filter(ladder).length
  return (
    `${plural(active.length, 'node')} active, ${late === 0 ? 'all up to date' : `${late} not up to date`}, ` +
    `${down === 0 ? 'none' : down} on the failure ladder. Version ${f.current} is current.`
  )
}

const columns = (f: Fleet) => [
  { title: 'Node', width: 'minmax(0, 2fr)', cell: (n: Node) => <span title={`boot ${n.boot}`}>{n.id}</span> },
  { title: 'Zone', wide: true, cell: (n: Node) => n.zone ?? '' },
  { title: 'Version', cell: (n: Node) => <VersionOf node={n} /> },
  {
    title: 'Orders',
    wide: true,
    cell: (n: Node) => ((n.enforcement ?? 0) < f.enforcement ? <Badge tone="warn">not yet</Badge> : 'arrived'),
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
  if (!n.state) return <span className="quiet">not reported</span>
  if (!ladder(n)) return <>on the ground</>
  const steps = Object.entries(n.steps ?? {}).map(([policy, step]) => `${policy}: ${step}`).join(', ')
  return <span title={steps}><Badge tone="bad">{n.state}</Badge> {steps}</span>
}
