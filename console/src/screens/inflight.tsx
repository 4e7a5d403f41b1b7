// The fullness of a policy's limits over time, and its requests in flight.
import type { Policy, Schemas } from '../api'
import { Graph, type Line } from '../graph'
import { useSeries } from '../state'
import { Asked, Card, Empty } from '../ui'
import { useRange } from './overview'

type Limit = { in_flight?: unknown }

function inFlightLimits(policy: Policy): unknown[] {
  const limits = [policy.limit ?? [], ...Object.values(policy.limits ?? {})].flat() as Limit[]
  return limits.flatMap((l) => (typeof l === 'object' && l !== null && l.in_flight !== undefined ? [l.in_flight] : []))
}

// limitsFlights reports whether a policy limits requests in flight.
export function limitsFlights(policy: Policy): boolean {
  return policy.adaptive !== undefined || inFlightLimits(policy).length > 0
}

// limitsFlightsFirst reports whether a policy's first limit is of requests in flight. Callers are
// counted by the first limit, and then no tokens are counted.
export function limitsFlightsFirst(policy: Policy): boolean {
  const [first] = [policy.limit ?? []].flat() as Limit[]
  return policy.adaptive !== undefined || first?.in_flight !== undefined
}

// limitOverAll returns the limit for the requests in flight at all Envoys together. It is undefined
// if each Envoy, bucket or tier has its own limit.
function limitOverAll(policy: Policy): number | undefined {
  const [limit, ...others] = inFlightLimits(policy)
  const one = typeof limit === 'number' && others.length === 0 && !policy.partition?.length
  return one && (policy.mode ?? 'leased') === 'leased' ? limit : undefined
}

// flat returns a line at one height.
function flat(label: string, height: number, like: Schemas['Series']): Line {
  return { label, values: like.values.map(() => height), dashed: true, total: height }
}

const line = (label: string, one: Schemas['Series']): Line => ({ label, values: one.values, total: one.total })

// Fullness shows how near the fullest bucket of a policy came to refusing.
function Fullness({ of: used, from, step }: { of: Schemas['Series']; from: string; step: number }) {
  return (
    <Graph
      label="Utilisation" from={from} step={step} height={130} marks={[]}
      lines={[line('in use of the fullest limit, in percent', used), flat('all of it', 100, used)]}
    />
  )
}

// HowFull shows the fullness of a policy that limits rates.
export function HowFull({ name }: { name: string }) {
  const { range, choose } = useRange()
  const series = useSeries([name], ['utilisation'], range)
  return (
    <Card title="How full" more={choose}>
      <Asked of={series}>
        {({ series: [used], from, step_seconds }) => (used && used.total > 0
          ? <Fullness of={used} from={from} step={step_seconds} />
          : <Empty>Less than a hundredth of each limit was used in this time, or no Envoy's filter reports it.</Empty>)}
      </Asked>
    </Card>
  )
}

export function InFlight({ policy }: { policy: Policy }) {
  const { range, choose } = useRange()
  const series = useSeries([policy.name ?? ''], ['in_flight', 'utilisation'], range)
  const limit = limitOverAll(policy)
  return (
    <Card title="In flight" more={choose}>
      <Asked of={series}>
        {(s) => {
          const busy = s.series.find((one) => one.outcome === 'in_flight')
          const used = s.series.find((one) => one.outcome === 'utilisation')
          if (!busy || !used || (busy.total === 0 && used.total === 0)) {
            return <Empty>No request of this policy was in flight in this time, or no Envoy's filter reports it.</Empty>
          }
          return (
            <div className="columns">
              <Graph
                label="In flight" from={s.from} step={s.step_seconds} height={130} marks={[]}
                lines={[line('in flight, on average', busy), ...(limit === undefined ? [] : [flat(`the limit, ${limit}`, limit, busy)])]}
              />
              <Fullness of={used} from={s.from} step={s.step_seconds} />
            </div>
          )
        }}
      </Asked>
    </Card>
  )
}
