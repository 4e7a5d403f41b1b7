// What a policy had in flight over time, beside its limit.
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

// limitsFlightsFirst reports whether its first limit is one: callers are counted by the first limit,
// and nothing is counted of how long they keep requests in flight.
export function limitsFlightsFirst(policy: Policy): boolean {
  const [first] = [policy.limit ?? []].flat() as Limit[]
  return policy.adaptive !== undefined || first?.in_flight !== undefined
}

// limitOverAll is the limit that holds for what all Envoys have in flight together, undefined if there
// is no such figure: then each Envoy, bucket or tier has its own.
function limitOverAll(policy: Policy): number | undefined {
  const [limit, ...others] = inFlightLimits(policy)
  const one = typeof limit === 'number' && others.length === 0 && !policy.partition?.length
  return one && (policy.mode ?? 'leased') === 'leased' ? limit : undefined
}

// flat is a line at one height.
function flat(label: string, height: number, like: Schemas['Series']): Line {
  return { label, values: like.values.map(() => height), dashed: true, total: height }
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
            return <Empty>No request of this policy was in flight in this time, or no Envoy with a filter that says so had one.</Empty>
          }
          const line = (label: string, one: Schemas['Series']): Line => ({ label, values: one.values, total: one.total })
          return (
            <div className="columns">
              <Graph
                label="In flight" from={s.from} step={s.step_seconds} height={130} marks={[]}
                lines={[line('in flight, on average', busy), ...(limit === undefined ? [] : [flat(`the limit, ${limit}`, limit, busy)])]}
              />
              <Graph
                label="Utilisation" from={s.from} step={s.step_seconds} height={130} marks={[]}
                lines={[line('in use of the fullest limit, in percent', used), flat('all of it', 100, used)]}
              />
            </div>
          )
        }}
      </Asked>
    </Card>
  )
}
