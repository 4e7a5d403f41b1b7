import { queryOptions, useQuery } from '@tanstack/react-query'
import { endRollout, rollback, useAct } from '../actions'
import { client, data, type Schemas } from '../api'
import { link, useAudit, useMay, usePolicySet, useRollout } from '../state'
import { Asked, Badge, Card, Empty, Exact, number, Table, Time, Words } from '../ui'

type Entry = Schemas['AuditEntry']

const verbs: Record<string, string> = {
  'policyset.put': 'put the policy set',
  'policy.put': 'put a policy',
  'policy.patch': 'changed a policy',
  'policy.delete': 'removed a policy',
  'version.rollback': 'rolled back',
  'rollout.put': 'changed the share of a rollout',
  'rollout.delete': 'took a rollout back',
  'rollout.abort': 'took a rollout back by its rule',
  'enforcement.put': 'gave orders',
  'consumer.put': 'changed a caller',
  'consumer.delete': 'forgot a caller',
  'consumers.put': 'changed callers',
}

// actionWords has the words for the actions in the audit.
export function actionWords(e: Entry): string {
  const what = verbs[e.action] ?? e.action
  const more = e.action === 'enforcement.put' ? orderWords(e.after) : (e.after as { summary?: string } | undefined)?.summary
  return more ? `${what}: ${more}` : what
}

function orderWords(after: unknown): string {
  const orders = (Array.isArray(after) ? after : []) as { policy?: string; state: string }[]
  return orders.map((o) => `${o.policy ?? 'all policies'} ${o.state}`).join(', ') || 'none'
}

// AuditTable shows entries. A short table leaves out the place, which the words mostly name.
export function AuditTable({ entries, short = false }: { entries: Entry[]; short?: boolean }) {
  return (
    <Table
      label="Audit" rows={entries} id={(e) => e.id}
      empty="Nothing has been changed yet."
      columns={[
        { title: 'When', width: '6.5rem', cell: (e) => <Time at={e.at} /> },
        { title: 'Who', width: 'minmax(0, 1fr)', cell: (e) => e.by || 'the control plane' },
        { title: 'What', width: 'minmax(0, 3fr)', cell: (e) => <span title={actionWords(e)}>{actionWords(e)}</span> },
        ...(short ? [] : [{
          title: 'Where', wide: true, width: 'minmax(0, 1.5fr)', cell: (e: Entry) => <span title={e.resource}>{e.resource}</span>,
        }]),
        { title: 'Why', wide: true, width: 'minmax(0, 2fr)', cell: (e) => <span title={e.reason}>{e.reason}</span> },
      ]}
    />
  )
}

export function Changes({ version }: { version: number }) {
  const audit = useAudit('', 100)
  return (
    <>
      <h1>Changes</h1>
      <RolloutCard />
      <div className="columns">
        <Versions chosen={version} />
        {version > 0 && <Difference version={version} />}
      </div>
      <Card title="Audit">
        <Asked of={audit}>{(a) => <AuditTable entries={a.entries} />}</Asked>
      </Card>
    </>
  )
}

// useVersions asks for the last versions of the policy set.
export function useVersions(size: number) {
  const now = usePolicySet()
  return useQuery({
    queryKey: ['versions', size, now.data?.version],
    queryFn: () => data(client.GET('/v1/versions', { params: { query: { page_size: size } } })),
  })
}

// diffOf asks for the changes of a version, which stay the same for ever.
export const diffOf = (version: number) => queryOptions({
  queryKey: ['diff', version],
  queryFn: () => data(client.GET('/v1/versions/{version}/diff', { params: { path: { version } } })),
  staleTime: Infinity,
})

function Versions({ chosen }: { chosen: number }) {
  const now = usePolicySet()
  const versions = useVersions(100)
  return (
    <Card title="Versions">
      <Asked of={versions}>
        {(v) => (
          <Table
            label="Versions" rows={v.versions} id={(one) => String(one.version)}
            empty="There is no version yet: the policy set has never been put."
            columns={[
              {
                title: 'Version', width: '6rem',
                cell: (one) => (
                  <a href={link('changes', String(one.version))} aria-current={one.version === chosen || undefined}>
                    {one.version}
                    {one.version === now.data?.version && ' (now)'}
                  </a>
                ),
              },
              { title: 'When', width: '6.5rem', cell: (one) => <Time at={one.time} /> },
              { title: 'Who', wide: true, cell: (one) => one.author },
              { title: 'What', width: 'minmax(0, 3fr)', cell: (one) => <span title={one.summary}>{one.summary} {one.rollout && <Badge>{one.rollout}</Badge>}</span> },
            ]}
          />
        )}
      </Asked>
    </Card>
  )
}

function Difference({ version }: { version: number }) {
  const act = useAct()
  const may = useMay('editor')
  const now = usePolicySet()
  const current = now.data?.version ?? 0
  const diff = useQuery(diffOf(version))
  const whole = useQuery({
    queryKey: ['version', version],
    queryFn: () => data(client.GET('/v1/versions/{version}', { params: { path: { version } } })),
    staleTime: Infinity,
  })
  const back = may && version !== current && current > 0 && (
    <button type="button" onClick={() => act(rollback(version, current))}>
      Roll back to it
    </button>
  )
  return (
    <Card title={`Version ${version}`} more={back}>
      <Asked of={whole}>{(v) => <p className="quiet">By {v.author}, <Exact at={v.time} /></p>}</Asked>
      <h3>Its changes</h3>
      <Asked of={diff}>{(d) => <Words lines={d.diff.words} />}</Asked>
      <Asked of={whole}>
        {(v) => (
          <details>
            <summary>The document</summary>
            <pre tabIndex={0} aria-label={`The document of version ${version}`}>{v.document}</pre>
          </details>
        )}
      </Asked>
    </Card>
  )
}

// Sides compares the latest decisions of a rollout's nodes with the decisions of the other nodes.
function Sides({ of: r }: { of: Schemas['Rollout'] }) {
  type Side = Schemas['RolloutSide']
  const share = (side: Side, n: number) => (side.requests === 0 ? '–' : `${Number((100 * n / side.requests).toPrecision(3))} %`)
  const both = (its: Side, others: Side, of: (side: Side) => number) => `${share(its, of(its))} / ${share(others, of(others))}`
  const rows = [{ policy: '', its: r.its, others: r.others }, ...r.policies.slice(0, 20)]
  if (r.its.requests + r.others.requests === 0) return <Empty>Nothing was decided in the last five minutes, or since it began.</Empty>
  return (
    <Table
      label="Its nodes / the others, in the last five minutes" rows={rows} id={(one) => one.policy} empty=""
      columns={[
        { title: 'Its nodes / the others', cell: (one) => one.policy || 'All requests' },
        { title: 'Requests', cell: (one) => `${number(one.its.requests)} / ${number(one.others.requests)}` },
        { title: 'Refused', cell: (one) => both(one.its, one.others, (side) => side.refused) },
        { title: 'Waited', cell: (one) => both(one.its, one.others, (side) => side.waited) },
        { title: 'Errors', cell: (one) => both(one.its, one.others, (side) => side.errors) },
      ]}
    />
  )
}

function RolloutCard() {
  const rollout = useRollout()
  const act = useAct()
  const may = useMay('editor')
  if (!rollout.data) return null
  const { data: r, etag } = rollout.data
  const more = may && (
    <span className="buttons">
      <button type="button" onClick={() => act(endRollout(etag, false))}>Take it back</button>
      <button type="button" className="primary" onClick={() => act(endRollout(etag, true))}>Give it to all</button>
    </span>
  )
  return (
    <Card title={`Version ${r.version} is rolled out to ${r.nodes} of the nodes`} more={more}>
      <p>
        {r.summary}. {r.applied} of {r.chosen} chosen nodes have it, {r.refused} refused it; {r.seen} share the limits.
        Begun by {r.by} <Time at={r.since} />.
      </p>
      <progress max={Math.max(1, r.chosen)} value={r.applied} aria-label="Nodes that have the version" />
      {r.abort_if && <p>It is taken back if {r.abort_if}{{ kept: ', which is not so.', broken: `, which is so: ${r.because}.`, 'too few requests': '; too few requests to judge yet.' }[r.verdict ?? 'kept']}</p>}
      {r.apart.length > 0 && <Empty>Both versions count apart for: {r.apart.join(', ')}.</Empty>}
      <Sides of={r} />
    </Card>
  )
}
