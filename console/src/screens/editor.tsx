// The document of the policy set, checked by the server while it is written.
import { useQuery } from '@tanstack/react-query'
import { useEffect, useState } from 'react'
import { type Action, type Input, rollback, useAct } from '../actions'
import { answer, client, data, Problem, type Schemas } from '../api'
import { piped, typeOf, weir } from '../shell'
import { check, encode, useLater, useMay } from '../state'
import { Asked, Badge, Card, Empty, Failed, plural, Words } from '../ui'
import { limitWords } from './policies'

type Checked = Schemas['CheckedPolicySet']

async function document() {
  // The document as it was written, with comments. The client would ask for JSON.
  const headers = { Accept: 'application/yaml', 'Weir-Console': '1' }
  const call = fetch('/v1/policyset', { headers, cache: 'no-store' })
  const got = await answer(call.then(async (response) => ({ data: await response.text(), response })))
  return { text: got.data, etag: got.etag }
}

export function Editor() {
  const now = useQuery({ queryKey: ['document'], queryFn: document, refetchOnWindowFocus: false, staleTime: Infinity, gcTime: 0 })
  return (
    <>
      <h1>Policy set</h1>
      <Asked of={now}>{(d) => <Editing key={d.etag} text={d.text} etag={d.etag} />}</Asked>
    </>
  )
}

function Editing({ text: before, etag }: { text: string; etag: string }) {
  const may = useMay('editor')
  const act = useAct()
  const [text, setText] = useState(before)
  const asked = useLater(text, 250)
  const checked = useQuery({
    queryKey: ['check', asked],
    queryFn: () => check(asked, typeOf(asked)),
    placeholderData: (last) => last,
    gcTime: 10_000,
  })
  useEffect(() => {
    const ask = (e: BeforeUnloadEvent) => {
      if (text !== before) e.preventDefault()
    }
    addEventListener('beforeunload', ask)
    return () => removeEventListener('beforeunload', ask)
  }, [text, before])
  const fresh = asked === text && !checked.isPlaceholderData
  const ready = fresh && checked.data?.valid && text !== before
  return (
    <div className="columns editor">
      <Card
        title={may ? 'Document' : 'Document (your role may look)'}
        more={may && (
          <span className="buttons">
            <button type="button" disabled={text === before} onClick={() => setText(before)}>Discard</button>
            <button type="button" className="primary" disabled={!ready} onClick={() => act(put(text, etag, checked.data))}>
              Apply …
            </button>
          </span>
        )}
      >
        <textarea
          aria-label="The document of the policy set" spellCheck={false} readOnly={!may} value={text}
          onChange={(e) => setText(e.target.value)}
        />
      </Card>
      <div>
        <Asked of={checked}>{(c) => <Verdict of={c} changed={text !== before} />}</Asked>
      </div>
    </div>
  )
}

function Verdict({ of: c, changed }: { of: Checked; changed: boolean }) {
  if (!c.valid) {
    return (
      <Card title={<><Badge tone="bad">not valid</Badge> {plural(c.problems.length, 'problem')}</>}>
        <div aria-live="polite">
          <Failed error={new Problem(0, 'It cannot be applied like this', c.problems)} />
        </div>
      </Card>
    )
  }
  return (
    <>
      <Card title={<><Badge tone="good">valid</Badge> What would change</>}>
        {changed ? <Words lines={c.diff.words} /> : <Empty>Nothing yet: this is the document in force.</Empty>}
      </Card>
      <Card title="Promises">
        <dl className="promises">
          {c.policies.map((p) => (
            <div key={p.name}>
              <dt>{p.name}</dt>
              <dd>
                {p.limits.map(limitWords).join('; ')} ({p.mode})
                <br />
                <span className="quiet">{p.bound}</span>
                {p.notes.map((n) => <span className="quiet" key={n}><br />{n}</span>)}
              </dd>
            </div>
          ))}
        </dl>
        {c.notes?.map((n) => <p className="quiet" key={n}>{n}</p>)}
      </Card>
    </>
  )
}

export const whichNodes: Input = {
  name: 'nodes', label: 'To which nodes', initial: '100%',
  options: [['100%', 'All nodes'], ['5%', '5 % first'], ['25%', '25 % first'], ['50%', '50 % first']],
  help: 'A part of the nodes first is a rollout: it ends under Changes.',
}

// shareOf returns the parameter of a call for the choice in whichNodes.
export const shareOf = (nodes: string | undefined) => (nodes && nodes !== '100%' ? { nodes } : {})

function put(text: string, etag: string, checked: Checked | undefined): Action {
  return {
    title: 'Apply the policy set',
    text: <Words lines={checked?.diff.words ?? []} />,
    button: 'Apply',
    inputs: [whichNodes],
    // A terminal asks first if many policies are removed. Here the difference has shown them.
    command: (v) => piped(text, weir((checked?.diff.removed.length ?? 0) > 1 ? 'apply --yes' : 'apply', ['-'], shareOf(v.nodes))),
    call: (v) => ({
      method: 'PUT', path: `/v1/policyset${v.nodes === '100%' ? '' : `?nodes=${encode(v.nodes ?? '')}`}`,
      match: true, text,
    }),
    run: async (v) => {
      const made = await data(client.PUT('/v1/policyset', {
        params: { header: { 'If-Match': etag }, query: shareOf(v.nodes) },
        headers: { 'Content-Type': typeOf(text) },
        body: text as never,
        bodySerializer: (body: unknown) => body as string,
      }))
      const old = Number(etag.replaceAll('"', ''))
      if (made.rollout || old === 0) return { done: `Version ${made.version} is stored.` }
      const undo = () => rollback(old, made.version).run({})
      return { done: `Version ${made.version} is in force.`, undo }
    },
  }
}
