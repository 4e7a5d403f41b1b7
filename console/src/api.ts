// The client of the REST interface, made from api/openapi.yaml.
import createClient from 'openapi-fetch'
import type { components, paths } from './api.gen'

export type Schemas = components['schemas']
export type Policy = Schemas['Policy']
export type PolicySet = Schemas['PolicySet']
export type Order = Schemas['Order']
export type Node = Schemas['Node']
export type RefusedNode = Schemas['RefusedNode']
export type Consumer = Schemas['Consumer']
export type Session = Schemas['Session']

// The server takes the cookie of a session only together with this header.
export const client = createClient<paths>({
  baseUrl: '/',
  headers: { 'Weir-Console': '1' },
  credentials: 'same-origin',
  querySerializer: { array: { style: 'form', explode: true } },
})

// Problem is an error in an answer, or a missing answer.
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly detail: string,
    readonly problems: Schemas['FieldProblem'][] = [],
    readonly requestID = '',
  ) {
    super(detail)
  }
}

const listeners = new Set<() => void>()

// onLoggedOut calls a function when the server says that the session has ended.
export function onLoggedOut(f: () => void): () => void {
  listeners.add(f)
  return () => listeners.delete(f)
}

type Answer<T> = { data?: T; error?: unknown; response: Response }

// answer waits for a call and returns its data. If the call fails, it throws a Problem.
export async function answer<T>(call: Promise<Answer<T>>): Promise<{ data: T; etag: string }> {
  let got: Answer<T>
  try {
    got = await call
  } catch {
    throw new Problem(0, 'The control plane does not answer. This page tries again by itself.')
  }
  if (!got.response.ok) {
    const p = (got.error ?? {}) as Partial<Schemas['Problem']>
    if (got.response.status === 401) listeners.forEach((f) => f())
    const detail = p.detail ?? `The control plane answered ${got.response.status}.`
    throw new Problem(got.response.status, detail, p.problems ?? [], p.request_id ?? '')
  }
  return { data: got.data as T, etag: got.response.headers.get('ETag') ?? '' }
}

export async function data<T>(call: Promise<Answer<T>>): Promise<T> {
  return (await answer(call)).data
}
