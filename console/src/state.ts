// The data that several screens ask of the server, and the state of the page itself.
import { keepPreviousData, useInfiniteQuery, useQuery, useQueryClient, type QueryClient } from '@tanstack/react-query'
import { createContext, useContext, useEffect, useState, useSyncExternalStore } from 'react'
import { answer, client, data, Problem, type PolicySet, type Schemas, type Session } from './api'

// The wait before a page asks again after an error, in milliseconds.
const again = 3000

// The queries of screens about each topic of /v1/changes, by the first part of their keys.
const topics: Record<Schemas['Changes']['changed'][number], string[]> = {
  policyset: ['policyset', 'policies', 'rollout', 'audit'],
  enforcement: ['enforcement', 'policies', 'nodes', 'consumer', 'usage', 'audit'],
  consumers: ['consumer', 'usage', 'audit'],
  penalties: ['penalties', 'audit'],
  nodes: ['nodes', 'rollout'],
  counts: ['top', 'series', 'comparison', 'distribution', 'decisions', 'nodes', 'rollout', 'audit', 'penalties'],
}

// useChanges repeats the queries of screens when their data changes: while the page can be seen,
// one request waits at the server for the next change.
export function useChanges() {
  const of = useQueryClient()
  useEffect(() => {
    const end = new AbortController()
    void follow(of, end.signal)
    return () => end.abort()
  }, [of])
}

async function follow(of: QueryClient, signal: AbortSignal) {
  const askAgain = (changed: (keyof typeof topics)[]) => {
    for (const key of new Set(changed.flatMap((topic) => topics[topic]))) {
      void of.invalidateQueries({ queryKey: [key] })
    }
  }
  for (let since = ''; !signal.aborted; ) {
    await seen(signal)
    try {
      const query = { wait: 10, ...(since && { since }) }
      const got = await data(client.GET('/v1/changes', { params: { query }, signal }))
      if (since) askAgain(got.changed)
      since = got.cursor
    } catch {
      if (signal.aborted) return
      askAgain(Object.keys(topics) as (keyof typeof topics)[])
      await new Promise((wake) => setTimeout(wake, again))
    }
  }
}

// seen waits until the page can be seen.
function seen(signal: AbortSignal): Promise<void> | undefined {
  if (!document.hidden) return
  return new Promise((wake) => {
    const look = () => {
      if (document.hidden && !signal.aborted) return
      removeEventListener('visibilitychange', look)
      signal.removeEventListener('abort', look)
      wake()
    }
    addEventListener('visibilitychange', look)
    signal.addEventListener('abort', look)
  })
}

export const SessionContext = createContext<Session>({ name: '', role: 'viewer' })

// useMay reports whether the token's role includes a needed role.
export function useMay(needed: 'editor' | 'admin'): boolean {
  const { role } = useContext(SessionContext)
  return role === 'admin' || role === needed
}

function subscribe(f: () => void) {
  addEventListener('hashchange', f)
  return () => removeEventListener('hashchange', f)
}

// useRoute returns the decoded parts of the address behind #, and the query behind ?.
export function useRoute(): { parts: string[]; query: URLSearchParams } {
  const hash = useSyncExternalStore(subscribe, () => location.hash)
  const [path = '', query = ''] = hash.replace(/^#\/?/, '').split('?')
  return { parts: path.split('/').map(decode), query: new URLSearchParams(query) }
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}

// encode writes a text into an address. Half a character would make encodeURIComponent throw.
export function encode(text: string): string {
  return encodeURIComponent(text.replace(/\p{Surrogate}/gu, '\ufffd'))
}

// link returns the address of a screen.
export function link(...parts: string[]): string {
  return '#/' + parts.map(encode).join('/')
}

export function go(...parts: string[]) {
  location.hash = link(...parts)
}

const json = { headers: { Accept: 'application/json' } }

export type PolicySetNow = { set: PolicySet; version: number }

export async function getPolicySet(): Promise<PolicySetNow> {
  const got = await answer(client.GET('/v1/policyset', json))
  return { set: got.data as PolicySet, version: Number.parseInt(got.etag.slice(1), 10) }
}

export function usePolicySet() {
  return useQuery({ queryKey: ['policyset'], queryFn: getPolicySet })
}

// usePromises asks for the promises of the policies in force, from the server's own check.
export function usePromises() {
  const now = usePolicySet()
  return useQuery({
    queryKey: ['promises', now.data?.version],
    enabled: now.data !== undefined,
    queryFn: async () => (await check(JSON.stringify(now.data?.set), 'application/json')).policies,
    staleTime: Infinity,
  })
}

export function check(text: string, type: string) {
  return data(
    client.POST('/v1/check', {
      headers: { 'Content-Type': type },
      body: text as never,
      bodySerializer: (body: unknown) => body as string,
    }),
  )
}

// pageSize is the number of rows of a list in one request: the most that the server returns.
const pageSize = 200

type Page = { next_page_token: string }

// usePages asks for a list page by page, as far as the viewer has scrolled. The rows of other
// filters stay until the answer for these filters is there.
function usePages<T extends Page>(key: unknown[], get: (query: { page_size: number; page_token?: string }) => Promise<T>) {
  return useInfiniteQuery({
    queryKey: key,
    queryFn: ({ pageParam }) => get({ page_size: pageSize, ...(pageParam && { page_token: pageParam }) }),
    initialPageParam: '',
    getNextPageParam: (last: T) => last.next_page_token || undefined,
    placeholderData: keepPreviousData,
  })
}

// filled returns a query without its empty parameters.
function filled<T extends object>(filters: T): Partial<T> {
  return Object.fromEntries(Object.entries(filters).filter(([, value]) => value)) as Partial<T>
}

export type PolicyFilters = { search: string; mode: '' | Schemas['PolicyInForce']['mode']; state: '' | Schemas['PolicyInForce']['state'] }

// usePolicies lists the policies that the server finds.
export function usePolicies(filters: PolicyFilters) {
  return usePages(['policies', filters], (page) =>
    data(client.GET('/v1/policies', { params: { query: { ...(filled(filters) as object), ...page } } })))
}

export type NodeFilters = { search: string; behind?: boolean; fallen?: boolean; away?: boolean }

// useNodes lists the nodes that the server finds.
export function useNodes(filters: NodeFilters) {
  return usePages(['nodes', filters], (page) =>
    data(client.GET('/v1/nodes', { params: { query: { ...filled(filters), ...page } } })))
}

export type Fleet = Schemas['Nodes']

// useFleet asks for the numbers of nodes in each state.
export function useFleet() {
  return useQuery({
    queryKey: ['nodes'],
    queryFn: () => data(client.GET('/v1/nodes', { params: { query: { page_size: 1 } } })),
  })
}

export function useEnforcement() {
  return useQuery({
    queryKey: ['enforcement'],
    queryFn: () => answer(client.GET('/v1/enforcement')),
  })
}

export function useAudit(resource = '', size = 50) {
  const query = { page_size: size, ...(resource && { resource }) }
  return useQuery({
    queryKey: ['audit', resource, size],
    queryFn: () => data(client.GET('/v1/audit', { params: { query } })),
  })
}

export function useTop(by: 'refused' | 'requests', policy = '', size = 20) {
  const query = { by, page_size: size, ...(policy && { policy }) }
  return useQuery({
    queryKey: ['top', by, policy, size],
    queryFn: () => data(client.GET('/v1/top', { params: { query } })),
  })
}

// useSeries asks for decisions and requests in flight over time.
export function useSeries(policy: string[], outcome: Schemas['Series']['outcome'][], range: '1h' | '24h', size = 5) {
  const query = { range, outcome, page_size: size, ...(policy.length && { policy }), ...(range === '1h' && { step: '30s' as const }) }
  return useQuery({
    queryKey: ['series', policy, outcome, range, size],
    queryFn: () => data(client.GET('/v1/series', { params: { query } })),
  })
}

// useComparison asks for the refusals of the last minutes against an hour and a day ago.
export function useComparison() {
  return useQuery({
    queryKey: ['comparison'],
    queryFn: () => data(client.GET('/v1/series/comparison', { params: { query: { page_size: 200 } } })),
  })
}

export function useRollout() {
  return useQuery({
    queryKey: ['rollout'],
    queryFn: async () => {
      try {
        return await answer(client.GET('/v1/rollout'))
      } catch (e) {
        if (e instanceof Problem && e.status === 404) return null
        throw e
      }
    },
  })
}

// refresh asks again for everything that a screen shows.
export function refresh(of: QueryClient) {
  void of.invalidateQueries()
}

export function useRefresh() {
  const of = useQueryClient()
  return () => refresh(of)
}

// useNow returns the time, and changes every second.
export function useNow(): number {
  const [now, setNow] = useState(() => Date.now())
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000)
    return () => clearInterval(timer)
  }, [])
  return now
}

// useLater returns a value once it has not changed for a while.
export function useLater<T>(value: T, wait: number): T {
  const [later, setLater] = useState(value)
  useEffect(() => {
    const timer = setTimeout(() => setLater(value), wait)
    return () => clearTimeout(timer)
  }, [value, wait])
  return later
}

const narrow = matchMedia('(max-width: 640px)')

// useNarrow reports whether the page is on a telephone.
export function useNarrow(): boolean {
  return useSyncExternalStore(
    (f) => {
      narrow.addEventListener('change', f)
      return () => narrow.removeEventListener('change', f)
    },
    () => narrow.matches,
  )
}

// sought is the caller of the last search. It lives as long as the page.
export const sought = {
  value: '',
  changed: () => {},
}
