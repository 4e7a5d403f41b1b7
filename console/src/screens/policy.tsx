// One policy: its promise, the callers that it meets, and how it is enforced.
import { useQueries, useQuery } from '@tanstack/react-query'
import { useAct } from '../actions'
import type { Policy } from '../api'
import { client, data } from '../api'
import { link, useAudit, useEnforcement, useMay, usePolicySet, usePromises, useTop } from '../state'
import { Asked, Card, Empty, plural, Table, Time, Words } from '../ui'
import { AuditTable, diffOf, useVersions } from './changes'
import { HowFull, InFlight, limitsFlights, limitsFlightsFirst } from './inflight'
import { Refusals as Graph, ShadowButton, shownWords, TopTable, whyLink } from './overview'
import { limitWords, StateOf } from './policies'
import { AnotherLimit } from './slider'

export function PolicyScreen({ name }: { name: string }) {
  const now = usePolicySet()
  const orders = useEnforcement()
  const act = useAct()
  const may = useMay('editor')
  const list = orders.data?.data.orders ?? []
  return (
    <Asked of={now}>
      {({ set }) => {
        const policy = (set.policies ?? []).find((p) => p.name === name)
        if (!policy) {
          return (
            <>
              <h1>{name}</h1>
              <Empty>
                The policy set has no such policy. <a href={link('policies')}>See its policies.</a>
              </Empty>
            </>
          )
        }
        return (
          <>
            <div className="heading">
              <h1>{name}</h1>
              <StateOf policy={policy} orders={list} />
              {may && <ShadowButton name={name} list={list} act={act} />}
              <a className="button" href={link('edit')}>{may ? 'Edit' : 'The document'}</a>
            </div>
            <Graph policy={name} candidate={policy.candidate !== undefined} height={170} />
            {limitsFlights(policy) ? <InFlight policy={policy} /> : <HowFull name={name} />}
            {policy.mode !== 'local' && !limitsFlightsFirst(policy) && <AnotherLimit name={name} />}
            <div className="columns">
              <Promise policy={policy} />
              <Callers name={name} />
            </div>
            <div className="columns">
              <Refusals name={name} />
              <History name={name} />
            </div>
          </>
        )
      }}
    </Asked>
  )
}

function Promise({ policy }: { policy: Policy }) {
  const promises = usePromises()
  const promise = promises.data?.find((p) => p.name === policy.name)
  return (
    <Card title="Promise">
      <Asked of={promises}>
        {() => (
          <dl>
            <dt>Limit</dt>
            <dd>{promise?.limits.map(limitWords).join('; ')}</dd>
            <dt>Bound</dt>
            <dd className="prose">{promise?.bound}</dd>
            <dt>Whose</dt>
            <dd>{policy.partition?.length ? policy.partition.join(', ') : 'everyone together'}</dd>
            <dt>Mode</dt>
            <dd>{promise?.mode}, {promise?.algorithm.replaceAll('_', ' ')}</dd>
            {promise?.notes.map((note) => (
              <div key={note}>
                <dt>Note</dt>
                <dd>{note}</dd>
              </div>
            ))}
          </dl>
        )}
      </Asked>
      <details>
        <summary>As the policy set has it</summary>
        <pre tabIndex={0} aria-label="The policy">{JSON.stringify(policy, null, 2)}</pre>
      </details>
    </Card>
  )
}

function Callers({ name }: { name: string }) {
  const refused = useTop('refused', name, 8)
  const heavy = useTop('requests', name, 8)
  return (
    <Card title="Callers">
      <h3>Refused most</h3>
      <Asked of={refused}>{(t) => <TopTable rows={t.callers} empty="No caller was refused in the last minutes." />}</Asked>
      <h3>Heaviest</h3>
      <Asked of={heavy}>{(t) => <TopTable rows={t.callers} empty="Nodes reported no requests in the last minutes." />}</Asked>
    </Card>
  )
}

function Refusals({ name }: { name: string }) {
  const why = useQuery({
    queryKey: ['decisions', name],
    queryFn: () => data(client.GET('/v1/decisions', { params: { query: { policy: name, page_size: 20 } } })),
  })
  return (
    <Card title="Recent refusals">
      <Asked of={why}>
        {(d) => (
          <Table
            label="Recent refusals" rows={d.decisions} id={(one) => one.id} empty="None in the last hour."
            columns={[
              { title: 'When', width: '6rem', cell: (one) => <Time at={one.at} /> },
              { title: 'Caller', cell: (one) => <a href={whyLink(one)}>{shownWords(one.shown) || <code className="hash">{one.key.slice(0, 10)}</code>}</a> },
              { title: 'Reason', cell: (one) => `${one.reason} (${one.source})` },
              { title: 'Node', wide: true, cell: (one) => one.node },
            ]}
          />
        )}
      </Asked>
    </Card>
  )
}

function History({ name }: { name: string }) {
  const audit = useAudit(`policies/${name}`, 20)
  return (
    <Card title="Its changes" more={<a href={link('changes')}>All versions</a>}>
      <Asked of={audit}>{(a) => <AuditTable entries={a.entries} short />}</Asked>
      <h3>Versions</h3>
      <VersionsOf name={name} />
    </Card>
  )
}

// searched is the number of versions that the screen looks through: each needs a call, once.
const searched = 20

// VersionsOf shows the changes of a policy in the last versions, from the server's differences.
function VersionsOf({ name }: { name: string }) {
  const versions = useVersions(searched)
  const list = versions.data?.versions ?? []
  const diffs = useQueries({ queries: list.map((v) => diffOf(v.version)) })
  const about = list.flatMap((v, i) => {
    const d = diffs[i]?.data?.diff
    if (!d || ![d.added, d.removed, d.changed].some((names) => names.includes(name))) return []
    return [{ ...v, words: d.words.filter((line) => line.replace(/^[^a-z0-9]+/, '').startsWith(`${name}: `)) }]
  })
  const failed = diffs.find((d) => d.error)
  return (
    <Asked of={{ data: failed ? undefined : versions.data, error: versions.error ?? failed?.error, isPending: versions.isPending }}>
      {() => (
        <>
          {about.map((v) => (
            <div key={v.version}>
              <p className="quiet">
                <a href={link('changes', String(v.version))}>Version {v.version}</a> by {v.author || 'the control plane'},{' '}
                <Time at={v.time} />
              </p>
              <Words lines={v.words} />
            </div>
          ))}
          {about.length === 0 && <Empty>None of the last {plural(list.length, 'version')} changed it.</Empty>}
        </>
      )}
    </Asked>
  )
}
