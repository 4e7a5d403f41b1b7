// The frame of every screen: login, navigation, keyboard.
import { useQuery, useQueryClient } from '@tanstack/react-query'
import { Component, type FormEvent, type ReactNode, useEffect, useRef, useState } from 'react'
import { client, data, onLoggedOut, Problem, type Session } from './api'
import { Actions } from './actions'
import { Callers } from './screens/callers'
import { Changes } from './screens/changes'
import { Editor } from './screens/editor'
import { Explain } from './screens/explain'
import { Nodes } from './screens/nodes'
import { Overview } from './screens/overview'
import { Policies } from './screens/policies'
import { PolicyScreen } from './screens/policy'
import { Settings } from './screens/settings'
import { go, link, SessionContext, sought, useChanges, useEnforcement, useFleet, useRoute } from './state'
import { toggleTheme } from './theme'
import { Badge, Dialog, Failed, Field } from './ui'

const screens: [path: string, title: string, key: string][] = [
  ['', 'Overview', 'o'],
  ['policies', 'Policies', 'p'],
  ['callers', 'Callers', 'c'],
  ['nodes', 'Nodes', 'n'],
  ['changes', 'Changes', 'h'],
  ['settings', 'Settings', 's'],
]

export function App() {
  const queries = useQueryClient()
  const [out, setOut] = useState(false)
  useEffect(() => onLoggedOut(() => setOut(true)), [])
  const session = useQuery({
    queryKey: ['session'],
    queryFn: () => data(client.GET('/v1/session')),
    enabled: !out,
    retry: (n, e) => !(e instanceof Problem && e.status === 401) && n < 2,
  })
  if (out || (session.error instanceof Problem && session.error.status === 401)) {
    const enter = (s: Session) => {
      queries.clear()
      queries.setQueryData(['session'], s)
      setOut(false)
    }
    return <Login onDone={enter} />
  }
  if (session.error) return <main className="alone"><Failed error={session.error} /></main>
  if (!session.data) return <main className="alone" aria-busy="true">Loading …</main>
  return (
    <SessionContext value={session.data}>
      <Actions>
        <Frame session={session.data} onLogout={() => setOut(true)} />
      </Actions>
    </SessionContext>
  )
}

function Login({ onDone }: { onDone: (s: Session) => void }) {
  const [token, setToken] = useState('')
  const [error, setError] = useState<unknown>()
  const submit = async (e: FormEvent) => {
    e.preventDefault()
    try {
      onDone(await data(client.POST('/v1/session', { body: { token: token.trim() } })))
    } catch (e) {
      setError(e instanceof Problem && e.status === 401
        ? new Problem(401, 'This control plane does not know the token, or it has expired.', [], e.requestID)
        : e)
    }
  }
  return (
    <main className="alone">
      <form onSubmit={submit} className="card login">
        <h1>Weir console</h1>
        <Field label="Token" help="weir token new makes one. A viewer's is enough to look.">
          {(id, described) => (
            <input
              id={id} name="token" type="password" aria-describedby={described} autoFocus required
              autoComplete="current-password" maxLength={512} value={token}
              onChange={(e) => setToken(e.target.value)}
            />
          )}
        </Field>
        {error ? <Failed error={error} /> : null}
        <button type="submit" className="primary">
          Log in
        </button>
      </form>
    </main>
  )
}

function Frame({ session, onLogout }: { session: Session; onLogout: () => void }) {
  const { parts } = useRoute()
  const [help, setHelp] = useState(false)
  const search = useRef<HTMLInputElement>(null)
  const main = useRef<HTMLElement>(null)
  useKeys(() => search.current?.focus(), () => setHelp(true))
  useChanges()
  const screen = parts[0] ?? ''
  const title = screens.find(([path]) => path === screen)?.[1] ?? 'Editor'
  useEffect(() => {
    document.title = `${title} · Weir`
    main.current?.scrollTo(0, 0)
  }, [title])
  const logout = async () => {
    try {
      await data(client.DELETE('/v1/session'))
    } finally {
      onLogout()
    }
  }
  return (
    <div className="frame">
      <a className="skip" href="#main" onClick={(e) => {
        e.preventDefault()
        main.current?.focus()
      }}>
        Skip to the content
      </a>
      <header className="top">
        <a className="brand" href={link('')}>
          Weir
        </a>
        <nav aria-label="Screens">
          {screens.map(([path, name, key]) => (
            <a
              key={path} href={link(path)} title={`g ${key}`}
              aria-current={path === screen ? 'page' : undefined}
            >
              {name}
            </a>
          ))}
          {session.dashboard_url && (
            <a href={session.dashboard_url} target="_blank" rel="noopener noreferrer">
              Dashboard{'\u00a0'}<span aria-hidden="true">↗</span>
            </a>
          )}
        </nav>
        <Search box={search} />
        <div className="who">
          <span title="The token's name and its role">
            {session.name} <Badge>{session.role}</Badge>
          </span>
          <button type="button" className="plain" onClick={toggleTheme} aria-label="Light or dark">
            ◐
          </button>
          <button type="button" className="plain" onClick={() => setHelp(true)} aria-label="Keys">
            ?
          </button>
          <button type="button" className="small" onClick={logout}>
            Log out
          </button>
        </div>
      </header>
      <Standing />
      <main id="main" ref={main} tabIndex={-1}>
        <Guard key={screen}>
          <Screen screen={screen} of={parts[1] ?? ''} />
        </Guard>
      </main>
      {help && <Help onClose={() => setHelp(false)} />}
    </div>
  )
}

// Guard keeps a fault of one screen from breaking the other screens.
class Guard extends Component<{ children: ReactNode }, { error?: Error }> {
  override state: { error?: Error } = {}

  static getDerivedStateFromError(error: Error) {
    return { error }
  }

  override render() {
    if (!this.state.error) return this.props.children
    const text = `This screen has a fault: ${this.state.error.message}. Load the page again; weir does the same things.`
    return <Failed error={new Problem(0, text)} />
  }
}

function Screen({ screen, of }: { screen: string; of: string }) {
  switch (screen) {
    case '':
      return <Overview />
    case 'policies':
      return of ? <PolicyScreen key={of} name={of} /> : <Policies />
    case 'callers':
      return <Callers />
    case 'explain':
      return <Explain />
    case 'nodes':
      return <Nodes />
    case 'changes':
      return <Changes version={Number(of) || 0} />
    case 'settings':
      return <Settings />
    case 'edit':
      return <Editor />
  }
  return (
    <p className="empty">
      There is no such screen. <a href={link('')}>Go to the overview.</a>
    </p>
  )
}

// Search opens a policy by the beginning of its name, or a caller by its value. The value does not
// appear in the address, because browsers keep addresses.
function Search({ box }: { box: React.RefObject<HTMLInputElement | null> }) {
  const [text, setText] = useState('')
  const submit = (e: FormEvent) => {
    e.preventDefault()
    sought.value = text.trim()
    sought.changed()
    setText('')
    box.current?.blur()
    go('callers')
  }
  return (
    <form role="search" onSubmit={submit}>
      <input
        ref={box} type="search" aria-label="Find a caller by its value" placeholder="Find a caller   /"
        autoComplete="off" spellCheck={false} maxLength={256} value={text}
        onChange={(e) => setText(e.target.value)}
      />
    </form>
  )
}

// Standing shows, on every screen, an order that weakens limits and a control plane without its
// store.
function Standing() {
  const orders = useEnforcement()
  const fleet = useFleet()
  const all = orders.data?.data.orders.find((o) => !o.policy && !o.tier)
  return (
    <>
      {all && (
        <p className="standing" role="status">
          <Badge tone="warn">{all.state}</Badge> is ordered for all policies: {all.reason}.{' '}
          <a href={link('settings')}>See the orders</a>
        </p>
      )}
      {fleet.data && !fleet.data.complete && (
        <p className="standing" role="status">
          <Badge tone="bad">store away</Badge> This is what one control plane knows by itself. Enforcement can still be
          switched.
        </p>
      )}
    </>
  )
}

// useKeys listens for keys that are pressed outside of fields.
function useKeys(search: () => void, help: () => void) {
  const pending = useRef('')
  useEffect(() => {
    const press = (e: KeyboardEvent) => {
      const at = e.target as HTMLElement
      if (e.ctrlKey || e.metaKey || e.altKey || at.closest('input, textarea, select, dialog')) return
      const before = pending.current
      pending.current = ''
      if (before === 'g') {
        const found = screens.find(([, , key]) => key === e.key)
        if (found) go(found[0])
      } else if (e.key === 'g') {
        pending.current = 'g'
      } else if (e.key === '/') {
        e.preventDefault()
        search()
      } else if (e.key === '?') {
        help()
      }
    }
    addEventListener('keydown', press)
    return () => removeEventListener('keydown', press)
  })
}

function Help({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keys" onClose={onClose}>
      <dl className="keys">
        <dt><kbd>/</kbd></dt>
        <dd>find a caller</dd>
        {screens.map(([path, name, key]) => (
          <div key={path}>
            <dt><kbd>g</kbd> <kbd>{key}</kbd></dt>
            <dd>{name}</dd>
          </div>
        ))}
        <dt><kbd>?</kbd></dt>
        <dd>this list</dd>
        <dt><kbd>Esc</kbd></dt>
        <dd>close a window</dd>
      </dl>
      <div className="buttons">
        <button type="button" onClick={onClose}>Close</button>
      </div>
    </Dialog>
  )
}
