// Explain: the answer that a request would get, and why.
import { useQuery } from '@tanstack/react-query'
import { type FormEvent, useState } from 'react'
import { client, data, type Schemas } from '../api'
import { Standing } from '../standing'
import { link } from '../state'
import { Asked, Badge, Card, Field, number, Short, Table } from '../ui'

type Input = Schemas['ExplainInput']
type Explained = Schemas['Explained']
type Met = Schemas['ExplainedPolicy']
type Missed = Schemas['MissedPolicy']

// headersOf reads a header from each line, like "x-api-key: alice".
function headersOf(text: string): Input['headers'] {
  return text.split('\n').filter((line) => line.includes(':')).map((line) => {
    const at = line.indexOf(':')
    return { name: line.slice(0, at).trim(), value: line.slice(at + 1).trim() }
  })
}

export function Explain() {
  const [method, setMethod] = useState('GET')
  const [url, setURL] = useState('/')
  const [headers, setHeaders] = useState('')
  const [address, setAddress] = useState('')
  const [asked, setAsked] = useState<Input>()
  const submit = (e: FormEvent) => {
    e.preventDefault()
    setAsked({ method: method.trim(), url: url.trim(), headers: headersOf(headers), ...(address.trim() && { client_ip: address.trim() }) })
  }
  return (
    <>
      <h1>Explain a request</h1>
      <form className="card find" onSubmit={submit}>
        <Field label="Method">
          {(id) => <input id={id} required maxLength={64} value={method} onChange={(e) => setMethod(e.target.value)} />}
        </Field>
        <Field label="Address" help="Like https://shop.example/api, or a path.">
          {(id, described) => (
            <input id={id} aria-describedby={described} required maxLength={8192} spellCheck={false} value={url}
              onChange={(e) => setURL(e.target.value)} />
          )}
        </Field>
        <Field label="Headers" help="One header on each line, like x-api-key: alice. They are stored nowhere.">
          {(id, described) => (
            <textarea className="lines" id={id} aria-describedby={described} rows={2} spellCheck={false} autoComplete="off" value={headers}
              onChange={(e) => setHeaders(e.target.value)} />
          )}
        </Field>
        <Field label="The client's address">
          {(id) => <input id={id} maxLength={64} spellCheck={false} value={address} onChange={(e) => setAddress(e.target.value)} />}
        </Field>
        <button type="submit" className="primary">Explain</button>
      </form>
      {asked && <Answer asked={asked} />}
    </>
  )
}

function Answer({ asked }: { asked: Input }) {
  const answer = useQuery({
    queryKey: ['explain', asked],
    queryFn: () => data(client.POST('/v1/explain', { body: asked })),
    refetchInterval: 3000,
    retry: false,
  })
  return <Asked of={answer}>{(e) => <Explanation e={e} />}</Asked>
}

const tones = { passes: 'good', refused: 'bad', depends: 'warn' } as const

function Explanation({ e }: { e: Explained }) {
  return (
    <>
      <Card title="The answer" more={<span className="quiet">by version {e.version}; nothing is charged</span>}>
        <Standing all={e.standing} />
        <p>
          <Badge tone={tones[e.answer.verdict]}>
            {e.answer.grpc_status ? `gRPC status ${e.answer.grpc_status}` : e.answer.status ?? e.answer.verdict}
          </Badge> {e.answer.sentence}
        </p>
        {e.complete || <p>The store does not answer: the tokens left are not known.</p>}
      </Card>
      <Card title="Policies that it meets">
        <Table label="Policies that it meets" rows={e.policies} id={(p) => p.name} columns={met} empty="None." />
      </Card>
      <Card title="Policies that it does not meet">
        <Table label="Policies that it does not meet" rows={e.others} id={(p) => p.name} columns={missed} empty="None." />
      </Card>
    </>
  )
}

const met = [
  { title: 'Policy', cell: (p: Met) => <a href={link('policies', p.name)}>{p.name}</a> },
  { title: 'State', wide: true, cell: (p: Met) => p.state },
  { title: 'Whose', width: 'minmax(0, 2fr)', cell: (p: Met) => <>{p.caller.join(' ') || '(all)'} {p.key && <Short hash={p.key} />}</> },
  { title: 'Left', cell: (p: Met) => p.limits.map((b) => `${number(b.level)} of ${number(b.burst)}`).join(', ') || '–' },
  { title: 'Verdict', width: 'minmax(0, 2fr)', cell: (p: Met) => <><Badge tone={tones[p.verdict]}>{p.verdict}</Badge> {p.reason ?? p.why}</> },
]

const missed = [
  { title: 'Policy', cell: (m: Missed) => <a href={link('policies', m.name)}>{m.name}</a> },
  { title: 'Why not', width: 'minmax(0, 4fr)', cell: (m: Missed) => <span title={m.fails.join('; ')}>{m.fails.join('; ')}</span> },
]
