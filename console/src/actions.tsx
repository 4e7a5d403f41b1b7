// All actions that change something. Each has a text for its dialog, a command and a call that do
// the same, and a way to undo it.
import { createContext, type FormEvent, type ReactNode, useContext, useEffect, useState } from 'react'
import { answer, client, data, Problem, type Consumer, type Order, type Schemas } from './api'
import { encode, useRefresh } from './state'
import { type Call, curl, weir } from './shell'
import { Copyable, Dialog, Failed, Field } from './ui'

export type Values = Record<string, string>

export type Input = {
  name: string
  label: string
  kind?: 'text' | 'number' | 'select' | 'time'
  options?: [value: string, label: string][]
  initial?: string
  optional?: boolean
  help?: string
}

export type Undo = { done: string; undo?: () => Promise<unknown> }

export type Action = {
  title: string
  text: ReactNode
  button: string
  inputs: Input[]
  command: (v: Values) => string
  call: (v: Values) => Call
  run: (v: Values) => Promise<Undo>
}

const Context = createContext<(a: Action) => void>(() => {})

// useAct returns a function that opens the dialog of an action.
export function useAct() {
  return useContext(Context)
}

export function Actions({ children }: { children: ReactNode }) {
  const [action, setAction] = useState<Action>()
  const [done, setDone] = useState<Undo>()
  return (
    <Context value={setAction}>
      {children}
      {action && (
        <ActionDialog
          action={action}
          onClose={() => setAction(undefined)}
          onDone={(u) => {
            setAction(undefined)
            setDone(u)
          }}
        />
      )}
      <div className="toasts" role="status" aria-live="polite">
        {done && <Toast of={done} onClose={() => setDone(undefined)} />}
      </div>
    </Context>
  )
}

function Toast({ of, onClose }: { of: Undo; onClose: () => void }) {
  const [error, setError] = useState<unknown>()
  const refresh = useRefresh()
  useEffect(() => {
    const timer = setTimeout(onClose, 60_000)
    return () => clearTimeout(timer)
  }, [of, onClose])
  const undo = async () => {
    try {
      await of.undo?.()
      refresh()
      onClose()
    } catch (e) {
      setError(e)
    }
  }
  return (
    <div className="toast">
      <span>{of.done}</span>
      {of.undo && (
        <button type="button" onClick={undo}>
          Undo
        </button>
      )}
      <button type="button" className="plain" onClick={onClose} aria-label="Close this message">
        ×
      </button>
      {error ? <Failed error={error} /> : null}
    </div>
  )
}

function ActionDialog({ action, onClose, onDone }: {
  action: Action
  onClose: () => void
  onDone: (u: Undo) => void
}) {
  const [values, setValues] = useState<Values>(() =>
    Object.fromEntries(action.inputs.map((i) => [i.name, i.initial ?? ''])),
  )
  const [error, setError] = useState<unknown>()
  const [busy, setBusy] = useState(false)
  const refresh = useRefresh()
  const submit = async (e: FormEvent) => {
    e.preventDefault()
    setBusy(true)
    setError(undefined)
    try {
      const done = await action.run(values)
      refresh()
      onDone(done)
    } catch (e) {
      setError(e)
      setBusy(false)
    }
  }
  return (
    <Dialog title={action.title} onClose={onClose}>
      <form onSubmit={submit}>
        <div className="prose">{action.text}</div>
        {action.inputs.map((input, i) => (
          <InputField
            key={input.name}
            input={input}
            first={i === 0}
            value={values[input.name] ?? ''}
            onChange={(v) => setValues({ ...values, [input.name]: v })}
          />
        ))}
        {error ? <Failed error={error} /> : null}
        <details>
          <summary>The same from a terminal</summary>
          <Copyable label="Command" text={action.command(values)} />
          <Copyable label="REST call" text={curl(action.call(values))} />
        </details>
        <div className="buttons">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" className="primary" disabled={busy}>
            {action.button}
          </button>
        </div>
      </form>
    </Dialog>
  )
}

function InputField({ input, value, first, onChange }: {
  input: Input
  value: string
  first: boolean
  onChange: (v: string) => void
}) {
  const kind = input.kind ?? 'text'
  const options = kind === 'time' ? times : input.options
  return (
    <Field label={input.label} help={input.help}>
      {(id, described) =>
        options ? (
          <select
            id={id}
            name={input.name}
            aria-describedby={described}
            value={value}
            onChange={(e) => onChange(e.target.value)}
          >
            {options.map(([v, label]) => (
              <option key={v} value={v}>
                {label}
              </option>
            ))}
          </select>
        ) : (
          <input
            id={id}
            name={input.name}
            aria-describedby={described}
            type={kind}
            min={kind === 'number' ? 1 : undefined}
            required={!input.optional}
            autoFocus={first}
            autoComplete="off"
            maxLength={256}
            value={value}
            onChange={(e) => onChange(e.target.value)}
          />
        )
      }
    </Field>
  )
}

const times: [string, string][] = [
  ['15m', '15 minutes'],
  ['30m', '30 minutes'],
  ['1h', '1 hour'],
  ['4h', '4 hours'],
  ['24h', '1 day'],
  ['7d', '7 days'],
  ['', 'Until it is taken back'],
]

const units: Record<string, number> = { m: 60, h: 3600, d: 86400 }

function secondsOf(span: string): number {
  return Number(span.slice(0, -1)) * (units[span.slice(-1)] ?? 1)
}

// endOf returns the moment at which a time from now is over, if it ends.
export function endOf(span: string | undefined): { expires_at?: string } {
  if (!span) return {}
  const end = new Date(Date.now() + secondsOf(span) * 1000)
  return { expires_at: end.toISOString().replace(/\.\d+Z$/, 'Z') }
}

const reason: Input = { name: 'reason', label: 'Reason', help: 'Everyone who looks at the audit sees it.' }
const time: Input = { name: 'for', label: 'For how long', kind: 'time', initial: '30m' }

const scopeOf = (o: { policy?: string; tier?: string }) => `${o.policy ?? ''}/${o.tier ?? ''}`

// bare returns an order without the fields that the server adds.
const bare = ({ since: _, by: __, ...order }: Order): Order => order

// changeOrders reads the orders in force, changes them with a function and puts the result. If
// another change came in between, the server answers 412, and it begins anew.
async function changeOrders(change: (orders: Order[]) => Order[]) {
  for (let tries = 0; ; tries++) {
    const now = await answer(client.GET('/v1/enforcement'))
    const orders = change(now.data.orders).map(bare)
    try {
      return await data(
        client.PUT('/v1/enforcement', {
          params: { header: { 'If-Match': now.etag } },
          body: { orders },
        }),
      )
    } catch (e) {
      if (!(e instanceof Problem && e.status === 412 && tries < 3)) throw e
    }
  }
}

const states: [string, string][] = [
  ['shadow', 'Shadow: decide and count, refuse no request'],
  ['off', 'Off: skip policies'],
  ['enforce', 'Enforce: also policies in shadow or off'],
]

// order gives an order about a policy, or about all policies.
export function order(policy: string, others: Order[], state: Order['state'] = 'shadow'): Action {
  const of = policy ? { policy } : {}
  const orderOf = (v: Values): Order => ({
    state: v.state as Order['state'], ...of, reason: v.reason ?? '', ...endOf(v.for),
  })
  return {
    title: policy ? `Set ${policy} to shadow` : 'Switch all policies',
    text: policy ? (
      <p>
        In shadow the policy <b>{policy}</b> goes on to decide and to count, and refuses no request. Every node obeys
        within two seconds.
      </p>
    ) : (
      <p>This wins over the policy set, on every node, within two seconds.</p>
    ),
    button: policy ? 'Set to shadow' : 'Switch',
    inputs: [
      ...(policy ? [] : [{ name: 'state', label: 'All policies', options: states, initial: state }]),
      reason,
      time,
    ],
    command: (v) =>
      weir('enforcement set', [v.state ?? state], { policy, reason: v.reason || 'TEXT', for: v.for }),
    call: (v) => ({
      method: 'PUT', path: '/v1/enforcement', match: true,
      body: { orders: [...others.filter((o) => scopeOf(o) !== scopeOf(of)).map(bare), orderOf({ state, ...v })] },
    }),
    run: async (v) => {
      const given = orderOf({ state, ...v })
      let before: Order | undefined
      await changeOrders((orders) => {
        before = orders.find((o) => scopeOf(o) === scopeOf(given))
        return [...orders.filter((o) => scopeOf(o) !== scopeOf(given)), given]
      })
      return {
        done: policy ? `${policy} is in shadow.` : `All policies: ${given.state}.`,
        undo: () =>
          changeOrders((orders) => [
            ...orders.filter((o) => scopeOf(o) !== scopeOf(given)),
            ...(before ? [before] : []),
          ]),
      }
    },
  }
}

// lift takes an order back.
export function lift(o: Order, all: Order[]): Action {
  const what = [o.policy, o.tier && `tier ${o.tier}`].filter(Boolean).join(', ') || 'all policies'
  return {
    title: `Lift the order about ${what}`,
    text: (
      <p>
        The policy set counts again. The order was: {o.state}, because: {o.reason}
      </p>
    ),
    button: 'Lift',
    inputs: [],
    command: () => weir('enforcement lift', [], { policy: o.policy, tier: o.tier }),
    call: () => ({
      method: 'PUT', path: '/v1/enforcement', match: true,
      body: { orders: all.filter((one) => scopeOf(one) !== scopeOf(o)).map(bare) },
    }),
    run: async () => {
      await changeOrders((orders) => orders.filter((one) => scopeOf(one) !== scopeOf(o)))
      return {
        done: `The order about ${what} is lifted.`,
        undo: () => changeOrders((orders) => [...orders.filter((one) => scopeOf(one) !== scopeOf(o)), o]),
      }
    },
  }
}

export type Who = { id: string; source: string }

const pathOf = (w: Who) =>
  `/v1/consumers/${encode(w.id)}` + (w.source && `?source=${encode(w.source)}`)

export type Given = Schemas['ConsumerInput']

// givenTo returns a consumer's exceptions, without the fields that the server adds.
export function givenTo(c: Consumer | null): Given {
  if (!c) return {}
  const { tier, overrides, banned, bypass } = c
  return {
    ...(tier && { tier }),
    ...(overrides?.length && { overrides }),
    ...(banned && { banned }),
    ...(bypass && { bypass }),
  }
}

const consumerParams = (w: Who) => ({ path: { id: w.id }, query: w.source ? { source: w.source } : {} })

export async function getConsumer(w: Who) {
  return answer(client.GET('/v1/consumers/{id}', { params: consumerParams(w) }))
}

async function known(w: Who): Promise<Given> {
  try {
    return givenTo((await getConsumer(w)).data)
  } catch (e) {
    if (e instanceof Problem && e.status === 404) return {}
    throw e
  }
}

async function putConsumer(w: Who, given: Given) {
  const params = { ...consumerParams(w), header: { 'If-Match': '*' } }
  if (Object.keys(given).length === 0) {
    await data(client.DELETE('/v1/consumers/{id}', { params }))
    return
  }
  await data(client.PUT('/v1/consumers/{id}', { params, body: given }))
}

// callFor returns the REST call of putConsumer.
function callFor(w: Who, given: Given): Call {
  const call = { path: pathOf(w), match: true }
  return Object.keys(given).length === 0 ? { ...call, method: 'DELETE' } : { ...call, method: 'PUT', body: given }
}

async function changeConsumer(w: Who, done: string, change: (g: Given) => Given): Promise<Undo> {
  const before = await known(w)
  await putConsumer(w, change(before))
  return { done, undo: () => putConsumer(w, before) }
}

// override gives a consumer another limit under a policy.
export function override(w: Who, policies: string[], now: Given): Action {
  const limitOf = (v: Values): Schemas['Override']['limit'] => ({ quota: Number(v.quota), window: v.window })
  const overrideOf = (v: Values): Schemas['Override'] => ({
    policy: v.policy ?? '', limit: limitOf(v), ...(v.reason && { reason: v.reason }), ...endOf(v.for),
  })
  const withIt = (g: Given, v: Values): Given => ({
    ...g,
    overrides: [...(g.overrides ?? []).filter((o) => o.policy !== v.policy), overrideOf(v)],
  })
  return {
    title: 'Give this caller another limit',
    text: <p>It counts in place of the policy's own limit, on every node, within a second.</p>,
    button: 'Give this limit',
    inputs: [
      { name: 'policy', label: 'Policy', options: policies.map((p) => [p, p]), initial: policies[0] },
      { name: 'quota', label: 'Requests', kind: 'number', initial: '1000' },
      { name: 'window', label: 'Per', initial: '1m', help: 'Like 10s, 1m, 24h.' },
      time,
      reason,
    ],
    command: (v) =>
      weir('consumers override', [w.id, v.policy ?? '', `${v.quota}/${v.window}`], {
        source: w.source, for: v.for, reason: v.reason || 'TEXT',
      }),
    call: (v) => ({ method: 'PUT', path: pathOf(w), match: true, body: withIt(now, v) }),
    run: (v) => changeConsumer(w, 'The caller has another limit.', (g) => withIt(g, v)),
  }
}

// mark bans a consumer or lets it bypass all limits.
export function mark(w: Who, what: 'banned' | 'bypass', now: Given): Action {
  const markOf = (v: Values) => ({ reason: v.reason ?? '', ...endOf(v.for) })
  const ban = what === 'banned'
  return {
    title: ban ? 'Ban this caller' : 'Let this caller bypass all limits',
    text: ban ? (
      <p>Every request of this caller is refused with 403, before any bucket.</p>
    ) : (
      <p>Requests of this caller are never limited and never charged.</p>
    ),
    button: ban ? 'Ban' : 'Let it bypass',
    inputs: [reason, time],
    command: (v) =>
      weir(ban ? 'consumers ban' : 'consumers bypass', [w.id], {
        source: w.source, for: v.for, reason: v.reason || 'TEXT',
      }),
    call: (v) => ({ method: 'PUT', path: pathOf(w), match: true, body: { ...now, [what]: markOf(v) } }),
    run: (v) =>
      changeConsumer(w, ban ? 'The caller is banned.' : 'The caller bypasses all limits.', (g) => ({
        ...g,
        [what]: markOf(v),
      })),
  }
}

// takeBack takes an exception of a consumer back.
export function takeBack(w: Who, what: 'banned' | 'bypass' | { override: string }, now: Given): Action {
  const without = (g: Given): Given => {
    const rest = { ...g }
    if (typeof what === 'string') {
      delete rest[what]
    } else {
      const left = (g.overrides ?? []).filter((o) => o.policy !== what.override)
      if (left.length) rest.overrides = left
      else delete rest.overrides
    }
    return rest
  }
  const source = { source: w.source }
  const command =
    what === 'banned'
      ? weir('consumers unban', [w.id], source)
      : what === 'bypass'
        ? weir('consumers bypass --off', [w.id], source)
        : weir('consumers override', [w.id, what.override, 'none'], source)
  return {
    title: 'Take it back',
    text: <p>The policy set alone decides about this again.</p>,
    button: 'Take it back',
    inputs: [],
    command: () => command,
    call: () => callFor(w, without(now)),
    run: () => changeConsumer(w, 'It is taken back.', without),
  }
}

// rollback goes back to a version.
export function rollback(version: number, current: number): Action {
  return {
    title: `Roll back to version ${version}`,
    text: <p>The document of version {version} becomes the next version, for all nodes.</p>,
    button: 'Roll back',
    inputs: [],
    command: () => weir('rollback', [String(version)]),
    call: () => ({ method: 'POST', path: `/v1/versions/${version}/rollback`, match: true }),
    run: async () => {
      const back = (to: number, match: string) =>
        data(
          client.POST('/v1/versions/{version}/rollback', {
            params: { path: { version: to }, header: { 'If-Match': match } },
          }),
        )
      const made = await back(version, `"${current}"`)
      return {
        done: `Version ${made.version} has the document of version ${version}.`,
        undo: () => back(current, `"${made.version}"`),
      }
    },
  }
}

// endRollout gives the version of a rollout to all nodes, or takes it back.
export function endRollout(etag: string, promote: boolean): Action {
  return {
    title: promote ? 'Give the version to all nodes' : 'Take the version back',
    text: promote ? <p>It becomes the current version.</p> : <p>All nodes are on the current version again.</p>,
    button: promote ? 'Give it to all' : 'Take it back',
    inputs: [],
    command: () => (promote ? 'weir rollout promote' : 'weir rollout cancel'),
    call: () => ({
      method: promote ? 'PUT' : 'DELETE', path: '/v1/rollout', match: true,
      ...(promote && { body: { nodes: '100%' } }),
    }),
    run: async () => {
      const params = { header: { 'If-Match': etag } }
      if (promote) await data(client.PUT('/v1/rollout', { params, body: { nodes: '100%' } }))
      else await data(client.DELETE('/v1/rollout', { params }))
      return { done: promote ? 'All nodes get the version.' : 'The version is taken back.' }
    },
  }
}

// pardon ends the penalties of a caller.
export function pardon(key: string, policy: string): Action {
  return {
    title: 'Pardon this caller',
    text: <p>Its penalties end and its offences are forgotten, on every node within a second.</p>,
    button: 'Pardon',
    inputs: [reason],
    command: (v) => weir('penalties pardon', [], { policy, key, reason: v.reason || 'TEXT' }),
    call: (v) => ({
      method: 'POST', path: `/v1/penalties/pardon?${new URLSearchParams({ policy, key })}`, body: { reason: v.reason },
    }),
    run: async (v) => {
      await data(
        client.POST('/v1/penalties/pardon', { params: { query: { policy, key } }, body: { reason: v.reason ?? '' } }),
      )
      return { done: 'The caller is pardoned.' }
    },
  }
}
