import { useQuery } from '@tanstack/react-query'
import { useContext } from 'react'
import { lift, order, useAct } from '../actions'
import { client, data } from '../api'
import { SessionContext, useEnforcement, useMay } from '../state'
import { Asked, Badge, Card, Exact, Table, Time } from '../ui'

export function Settings() {
  return (
    <>
      <h1>Settings</h1>
      <KillSwitch />
      <div className="columns">
        <You />
        <Process />
      </div>
    </>
  )
}

function KillSwitch() {
  const orders = useEnforcement()
  const act = useAct()
  const may = useMay('editor')
  const list = orders.data?.data.orders ?? []
  const buttons = may && (
    <span className="buttons">
      <button type="button" onClick={() => act(order('', list, 'shadow'))}>All policies to shadow</button>
      <button type="button" className="danger" onClick={() => act(order('', list, 'off'))}>Switch all policies off</button>
    </span>
  )
  return (
    <Card title="Kill switch" more={buttons}>
      <p className="quiet">
        Orders win over the policy set, on every node, within two seconds. They work while the store is away, too.
      </p>
      <Asked of={orders}>
        {({ data: now }) => (
          <>
            {now.durable === false && <p><Badge tone="warn">not stored</Badge> This replica holds the orders in memory until the store is back.</p>}
            <Table
              label="Orders" rows={now.orders} id={(o) => `${o.policy}/${o.tier}`}
              empty="There is no order: the policy set alone decides."
              columns={[
                { title: 'State', width: '6rem', cell: (o) => <Badge tone="warn">{o.state}</Badge> },
                { title: 'About', cell: (o) => [o.policy, o.tier && `tier ${o.tier}`].filter(Boolean).join(', ') || 'all policies' },
                { title: 'Share', wide: true, width: '5rem', cell: (o) => `${o.percent ?? 100} %` },
                { title: 'Why', width: 'minmax(0, 2fr)', cell: (o) => <span title={o.reason}>{o.reason}</span> },
                { title: 'By', wide: true, cell: (o) => o.by },
                { title: 'Ends', width: '7rem', cell: (o) => (o.expires_at ? <Time at={o.expires_at} /> : 'when it is lifted') },
                { title: '', width: '5rem', cell: (o) => may && <button type="button" className="small" onClick={() => act(lift(o, list))}>Lift</button> },
              ]}
            />
          </>
        )}
      </Asked>
    </Card>
  )
}

function You() {
  const session = useContext(SessionContext)
  return (
    <Card title="You">
      <dl>
        <dt>Token</dt>
        <dd>{session.name}</dd>
        <dt>Role</dt>
        <dd>{session.role}</dd>
        <dt>Expires</dt>
        <dd>{session.expires_at ? <Exact at={session.expires_at} /> : 'never'}</dd>
      </dl>
      <p className="quiet">This session ends after 12 hours, and at once when its token is revoked or expires.</p>
    </Card>
  )
}

function Process() {
  const build = useQuery({ queryKey: ['version-of-build'], queryFn: () => data(client.GET('/version')), staleTime: Infinity })
  const ready = useQuery({ queryKey: ['readyz'], queryFn: () => data(client.GET('/readyz')), refetchInterval: 5000 })
  return (
    <Card title="This control plane">
      <dl>
        <dt>Version</dt>
        <dd>{build.data?.version}</dd>
        <dt>Ready</dt>
        <dd>{ready.error ? <Badge tone="bad">no</Badge> : ready.data ? 'yes' : ''}</dd>
        {ready.data?.warning && <><dt>Warning</dt><dd><Badge tone="warn">{ready.data.warning}</Badge></dd></>}
        <dt>Interface</dt>
        <dd><a href="/docs">The REST interface</a></dd>
      </dl>
    </Card>
  )
}
