// Callers: a caller by its value, or by the hash that a list shows.
import { useQuery } from '@tanstack/react-query'
import { type FormEvent, useEffect, useState } from 'react'
import { getConsumer, givenTo, mark, override, pardon, takeBack, useAct, type Who } from '../actions'
import { client, data, type Policy, type PolicySet, Problem, type Schemas } from '../api'
import { Standing } from '../standing'
import { link, sought, useMay, usePolicySet, useRoute, useTop } from '../state'
import { Asked, Badge, Card, Empty, Exact, Field, number, Short, Table, Time } from '../ui'
import { shownWords, TopTable } from './overview'

type Decision = Schemas['Decision']

export function Callers() {
  const { query } = useRoute()
  const now = usePolicySet()
  const key = query.get('key') ?? ''
  const policy = query.get('policy') ?? ''
  return (
    <>
      <div className="heading">
        <h1>Callers</h1>
        <a className="button" href={link('explain')}>Explain a request</a>
      </div>
      {key ? <ByKey policy={policy} hash={key} /> : <Asked of={now}>{({ set }) => <ByValue set={set} />}</Asked>}
    </>
  )
}

// sourcesOf returns the parts of a request that name its consumer, like header:x-api-key.
export function sourcesOf(set: PolicySet): string[] {
  const sources = (set.identity?.consumer ?? []) as unknown[]
  return sources.map((s) => {
    if (typeof s === 'string') return s
    const [[kind, value] = ['', '']] = Object.entries(s as Record<string, unknown>)
    return value === true ? kind : `${kind}:${String(value)}`
  })
}

function ByValue({ set }: { set: PolicySet }) {
  const sources = sourcesOf(set)
  const [who, setWho] = useState<Who>()
  const [text, setText] = useState('')
  const [source, setSource] = useState(sources[0] ?? '')
  useEffect(() => {
    const take = () => {
      if (!sought.value) return
      setText(sought.value)
      setWho({ id: sought.value, source })
      sought.value = ''
    }
    sought.changed = take
    take()
    return () => {
      sought.changed = () => {}
    }
  }, [source])
  const submit = (e: FormEvent) => {
    e.preventDefault()
    setWho({ id: text.trim(), source })
  }
  if (sources.length === 0) {
    return <Empty>The policy set has no <code>identity.consumer</code>, which names the part of a request with its caller.</Empty>
  }
  return (
    <>
      <form className="card find" onSubmit={submit}>
        <Field label="The caller's value" help="Like its API key. The server hashes it and stores it nowhere.">
          {(id, described) => (
            <input id={id} aria-describedby={described} required maxLength={256} autoComplete="off" spellCheck={false}
              value={text} onChange={(e) => setText(e.target.value)} />
          )}
        </Field>
        <Field label="Where requests carry it">
          {(id) => (
            <select id={id} value={source} onChange={(e) => setSource(e.target.value)}>
              {sources.map((s) => <option key={s}>{s}</option>)}
            </select>
          )}
        </Field>
        <button type="submit" className="primary">Find</button>
      </form>
      {who ? <Caller key={who.id + who.source} who={who} set={set} /> : <Heaviest />}
    </>
  )
}

function Heaviest() {
  const refused = useTop('refused', '', 50)
  const heavy = useTop('requests', '', 50)
  return (
    <div className="columns">
      <Card title="Refused most">
        <Asked of={refused}>{(t) => <TopTable rows={t.callers} empty="No caller was refused in the last minutes." />}</Asked>
      </Card>
      <Card title="Heaviest">
        <Asked of={heavy}>{(t) => <TopTable rows={t.callers} empty="Nodes reported no requests in the last minutes." />}</Asked>
      </Card>
    </div>
  )
}

function Caller({ who, set }: { who: Who; set: PolicySet }) {
  const why = useQuery({
    queryKey: ['why', who],
    queryFn: () => data(client.GET('/v1/decisions', { params: { query: { consumer: who.id, ...(who.source && { source: who.source }), page_size: 50 } } })),
    refetchInterval: 3000,
  })
  return (
    <>
      <div className="columns">
        <Has who={who} set={set} />
        <Usage who={who} set={set} />
      </div>
      <Card title="Why was it refused?">
        <Asked of={why}>{(d) => <><Standing all={d.standing} /><Decisions rows={d.decisions} /></>}</Asked>
      </Card>
    </>
  )
}

// byConsumer returns the policies with a limit for each consumer.
const byConsumer = (set: PolicySet): Policy[] =>
  (set.policies ?? []).filter((p) => p.partition?.includes('consumer'))

function Has({ who, set }: { who: Who; set: PolicySet }) {
  const act = useAct()
  const may = useMay('editor')
  const known = useQuery({
    queryKey: ['consumer', who],
    queryFn: async () => {
      try {
        return (await getConsumer(who)).data
      } catch (e) {
        if (e instanceof Problem && e.status === 404) return null
        throw e
      }
    },
  })
  const given = givenTo(known.data ?? null)
  const names = byConsumer(set).map((p) => p.name ?? '')
  const buttons = may && (
    <span className="buttons">
      {names.length > 0 && <button type="button" onClick={() => act(override(who, names, given))}>Another limit</button>}
      <button type="button" onClick={() => act(mark(who, 'bypass', given))}>Bypass</button>
      <button type="button" className="danger" onClick={() => act(mark(who, 'banned', given))}>Ban</button>
    </span>
  )
  const back = (what: Parameters<typeof takeBack>[1]) =>
    may && <button type="button" className="small" onClick={() => act(takeBack(who, what, given))}>Take back</button>
  return (
    <Card title="Exceptions" more={buttons}>
      <Asked of={known}>
        {(c) =>
          c === null || Object.keys(given).length === 0 ? (
            <Empty>None: the policy set alone decides.</Empty>
          ) : (
            <dl>
              {c.tier && <><dt>Tier</dt><dd>{c.tier}</dd></>}
              {c.banned && <><dt>Banned</dt><dd><Badge tone={c.lifted ? 'warn' : 'bad'}>{c.lifted ? 'lifted while limits are off: banned' : 'banned'}</Badge> {c.banned.reason} <Until at={c.banned.expires_at} /> {back('banned')}</dd></>}
              {c.bypass && <><dt>Bypass</dt><dd><Badge tone="warn">never limited</Badge> {c.bypass.reason} <Until at={c.bypass.expires_at} /> {back('bypass')}</dd></>}
              {c.overrides?.map((o) => (
                <div key={o.policy}>
                  <dt>Limit</dt>
                  <dd>{o.policy}: {limitText(o.limit)} {o.reason} <Until at={o.expires_at} /> {back({ override: o.policy })}</dd>
                </div>
              ))}
              <dt>Known as</dt>
              <dd><Short hash={c.key} />, by {c.by} <Time at={c.updated} /></dd>
            </dl>
          )
        }
      </Asked>
    </Card>
  )
}

function Until({ at }: { at: string | undefined }) {
  return at ? <span className="quiet">until <Exact at={at} /></span> : null
}

function limitText(limit: unknown): string {
  if (typeof limit === 'string') return limit
  const list = (Array.isArray(limit) ? limit : [limit]) as { quota?: number; window?: string; in_flight?: number }[]
  return list.map((l) => l.in_flight ? `${l.in_flight} in flight` : `${l.quota ?? 0} per ${l.window}`).join('; ')
}

// Usage shows the tokens in a caller's buckets, for policies whose partition is the consumer alone.
function Usage({ who, set }: { who: Who; set: PolicySet }) {
  const own = byConsumer(set).filter((p) => p.partition?.every((part) => part === 'consumer' || part === 'tier') && !p.partition?.includes('tier'))
  const usage = useQuery({
    queryKey: ['usage', who, own.map((p) => p.name)],
    queryFn: async () => {
      const keys = await Promise.all(own.map((p) => data(client.GET('/v1/keys/{policy}', {
        params: { path: { policy: p.name ?? '' }, query: { partition: [`consumer:${who.id}`], ...(who.source && { source: who.source }) } },
      }))))
      return keys.flatMap((k) => k.buckets.map((b) => ({ policy: k.policy, ...b })))
    },
    refetchInterval: 3000,
  })
  return (
    <Card title="Tokens left">
      {own.length === 0 ? (
        <Empty>No policy has a limit for each caller alone.</Empty>
      ) : (
        <Asked of={usage}>
          {(rows) => (
            <Table
              label="Tokens left" rows={rows} id={(b) => [b.policy, b.version, b.tier, b.limit].join(' ')}
              empty="Its limits are in each Envoy alone."
              columns={[
                { title: 'Policy', width: 'minmax(0, 2fr)', cell: (b) => <><a href={link('policies', b.policy)}>{b.policy}</a>{b.version && ` in version ${b.version}`}</> },
                { title: 'Tier', wide: true, cell: (b) => b.tier ?? '' },
                { title: 'Limit', cell: (b) => b.limit },
                {
                  title: 'Left', width: 'minmax(0, 1.5fr)',
                  cell: (b) => (
                    <span className="meter">
                      <meter min={0} max={b.burst} value={b.level} low={b.burst / 10} aria-label={`Left of ${b.policy}`} />
                      {number(b.level)} of {number(b.burst)}
                    </span>
                  ),
                },
              ]}
            />
          )}
        </Asked>
      )}
    </Card>
  )
}

// reasons and sources are the words of weir why for the same terms of the interface.
const reasons: Record<string, string> = {
  quota: 'the quota was used up',
  too_dear: 'the request costs more than the limit ever allows at once; waiting does not help',
  absent: "the request lacks a part of the policy's partition key, and the policy says if_absent: deny",
  bad_cost: 'the request has no valid cost, and the policy says invalid: deny',
  several: "the request gives several different values for a part of the policy's partition key, and identity.if_several says deny",
  failure: "the counters could not be reached: the Envoy's share of the limit was used up, or on_failure says to refuse then",
  suspended: 'the quota is 0: every request is refused',
  ban_of_address: 'requests from this address are banned',
  ban_of_consumer: 'the consumer is banned',
  ban_of_key: 'its partition key is banned',
  ban_of_one_of_many: 'the request names more callers than can be looked up, and some caller is banned',
  penalty: 'a penalty, because the policy had refused the caller too often',
  too_many_waiting: 'too many requests waited already',
  in_flight: 'the limit of requests in flight was reached',
  shed: 'the upstream was overloaded, and other requests were more important',
  contended: "other requests changed the bucket at each attempt, and the policy's on_failure says to refuse then",
}

const sources: Record<string, string> = {
  local: "the node's own bucket",
  lease: "the node's leased tokens",
  optimistic: "the node's part of an optimistic bucket",
  central: 'the control plane, for this request',
  cached_denial: 'an earlier answer of the control plane',
  share: "the node's share, while the control plane was away",
  failure_deny: 'the last step of the failure ladder',
  request: 'the request itself',
  overload: 'a bound of the node',
  penalty: "the caller's penalty",
}

// reasonOf returns the reason of a refusal in words. A failure that the store itself has decided
// means a bucket that started with fewer tokens after a loss, or permits that this Envoy does not
// hold. While the store is away other sources decide.
function reasonOf({ reason, source, limit }: Decision) {
  if (reason === 'failure' && ['central', 'lease', 'cached_denial', 'optimistic'].includes(source)) {
    return limit.endsWith('in flight')
      ? 'the other permits belong to other Envoys, or their owners are not known'
      : "the store has lost this caller's count, so it allows less than the limit for a time"
  }
  return reasons[reason] ?? reason
}

function Decisions({ rows }: { rows: Decision[] }) {
  return (
    <Table
      label="Refusals" rows={rows} id={(d) => d.id}
      empty="It was not refused in the last hour, as far as nodes reported."
      columns={[
        { title: 'When', width: '6rem', cell: (d) => <Time at={d.at} /> },
        { title: 'Policy', cell: (d) => <a href={link('policies', d.policy)}>{d.policy}</a> },
        { title: 'Why', width: 'minmax(0, 2fr)', cell: (d) => <span title={`${reasonOf(d)}; decided by ${sources[d.source] ?? d.source}`}>{reasonOf(d)}</span> },
        { title: 'Limit', wide: true, cell: (d) => d.limit + (d.tier ? ` (${d.tier})` : '') },
        { title: 'Request', wide: true, width: 'minmax(0, 2fr)', cell: (d) => <span title={shownWords(d.shown)}>{shownWords(d.shown)}</span> },
        { title: 'Node', wide: true, cell: (d) => d.node },
        { title: 'Times', width: '4.500rem', right: true, cell: (d) => number(d.count) },
      ]}
    />
  )
}

// ByKey shows a caller of whom only the hash is known.
function ByKey({ policy, hash }: { policy: string; hash: string }) {
  const act = useAct()
  const may = useMay('editor')
  const why = useQuery({
    queryKey: ['decisions', policy, hash],
    queryFn: () => data(client.GET('/v1/decisions', { params: { query: { ...(policy && { policy }), key: hash, page_size: 50 } } })),
  })
  const penalty = useQuery({
    queryKey: ['penalties', hash],
    queryFn: () => data(client.GET('/v1/penalties', { params: { query: { key: hash } } })),
  })
  return (
    <>
      <p className="lead">
        The caller <Short hash={hash} /> of <a href={link('policies', policy)}>{policy}</a>. Its value is stored nowhere:
        to change its limits, <a href={link('callers')}>find it by its value</a>.
      </p>
      {penalty.data?.penalties.map((p) => (
        <Card key={`${p.policy} ${p.version ?? ''}`} title={p.version ? `Penalty at Envoys of version ${p.version}` : 'Penalty'} more={may && <button type="button" onClick={() => act(pardon(p.key, p.policy))}>Pardon</button>}>
          <p>Level {p.level}, until <Exact at={p.until} />.</p>
        </Card>
      ))}
      <Card title="Why was it refused?">
        <Asked of={why}>{(d) => <Decisions rows={d.decisions} />}</Asked>
      </Card>
    </>
  )
}
