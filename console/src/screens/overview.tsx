// One screen for the first minute of an incident.
import { lift, order, useAct } from '../actions'
import type { Order, Schemas } from '../api'
import { type Fleet, link, useAudit, useEnforcement, useFleet, useMay, usePolicySet, useTop } from '../state'
import { Asked, Badge, Card, number, plural, Short, Table, Time, type Tone } from '../ui'
import { AuditTable } from './changes'
import { behind, ladder } from './nodes'
import { StateOf } from './policies'

type Top = Schemas['TopCaller']

export function Overview() {
  const fleet = useFleet()
  const orders = useEnforcement()
  const refused = useTop('refused', '', 10)
  return (
    <>
      <h1 className="hidden">Overview</h1>
      <div className="tiles">
        <RefusedTile />
        <FleetTiles fleet={fleet.data} />
        <OrdersTile orders={orders.data?.data.orders} />
      </div>
      <div className="columns">
        <PolicyCard />
        <Card title="Who is hit" more={<a href={link('callers')}>Find a caller</a>}>
          <Asked of={refused}>{(top) => <TopTable rows={top.callers} empty="Nobody was refused in the last minutes." />}</Asked>
        </Card>
      </div>
      <div className="columns">
        <OrdersCard orders={orders.data?.data.orders ?? []} />
        <ChangesCard />
      </div>
    </>
  )
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

function RefusedTile() {
  const top = useTop('refused', '', 10)
  const n = top.data?.refused
  return (
    <Tile
      label="Refused" href={link('')} value={n === undefined ? '…' : number(n)} tone={n ? 'warn' : 'plain'}
      note="in the last 5 to 10 minutes"
    />
  )
}

function FleetTiles({ fleet }: { fleet: Fleet | undefined }) {
  const active = fleet?.nodes.filter((n) => n.active) ?? []
  const down = active.filter(ladder).length
  const late = fleet ? active.filter((n) => behind(n, fleet)).length : 0
  const all = active.length
  return (
    <>
      <Tile
        label="On the failure ladder" href={link('nodes')} value={fleet ? number(down) : '…'}
        tone={down ? 'bad' : 'plain'} note={`of ${plural(all, 'active node')}`}
      />
      <Tile
        label="Up to date" href={link('nodes')} value={fleet ? `${all - late} of ${all}` : '…'}
        tone={late ? 'warn' : 'plain'} note={fleet?.current ? `version ${fleet.current} and all orders` : 'no version yet'}
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
  const act = useAct()
  const may = useMay('editor')
  const list = orders.data?.data.orders ?? []
  return (
    <Card title="Policies" more={<a href={link('policies')}>All policies</a>}>
      <Asked of={now}>
        {({ set }) => (
          <Table
            label="Policies" rows={set.policies ?? []} id={(p) => p.name ?? ''}
            empty="There is no policy yet."
            columns={[
              { title: 'Policy', width: 'minmax(0, 2fr)', cell: (p) => <a href={link('policies', p.name ?? '')}>{p.name}</a> },
              { title: 'State', cell: (p) => <StateOf policy={p} orders={list} /> },
              {
                title: '', width: '8rem', right: true,
                cell: (p) => may && <ShadowButton name={p.name ?? ''} list={list} act={act} />,
              },
            ]}
          />
        )}
      </Asked>
    </Card>
  )
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

// shownWords is what the policy set lets be shown of a caller.
export function shownWords(shown: Record<string, string> | undefined): string {
  return Object.entries(shown ?? {}).map(([k, v]) => `${k}: ${v}`).join(', ')
}

export function whyLink(c: { policy: string; key: string }): string {
  return `${link('callers')}?policy=${encodeURIComponent(c.policy)}&key=${c.key}`
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
  const active = fleet.data?.nodes.filter((n) => n.active) ?? []
  const arrived = active.filter((n) => (n.enforcement ?? 0) >= (fleet.data?.enforcement ?? 0)).length
  return (
    <Card title="Orders in force" more={orders.length > 0 && <span className="quiet">arrived at {arrived} of {plural(active.length, 'node')}</span>}>
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
  const audit = useAudit('', 6)
  return (
    <Card title="What changed" more={<a href={link('changes')}>All changes</a>}>
      <Asked of={audit}>{(a) => <AuditTable entries={a.entries} />}</Asked>
    </Card>
  )
}
