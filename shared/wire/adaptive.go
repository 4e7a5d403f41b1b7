package wire

import "github.com/weir-proxy/weir/shared/policy"

// putAdaptive writes an adaptive limit.
//
//go:noinline
func putAdaptive(dst []byte, a policy.Adaptive) []byte {
	return append(putUvarint(putUvarint(dst, a.Min), a.Max), a.Percentile, byte(a.By))
}

// readAdaptive reads the result of putAdaptive. The policy has one limit beside it.
//
//go:noinline
func (r *SetReader) readAdaptive(each func(policy.Adaptive)) {
	least := r.c.readWithin(1, policy.MaxInFlight)
	a := policy.Adaptive{Min: least, Max: r.c.readWithin(least, policy.MaxInFlight)}
	a.Percentile = r.readOneOf(policy.LeastPercentile, policy.MostPercentile)
	a.By = policy.Signals(r.readOneOf(1, uint8(policy.AllSignals)))
	if a.By&policy.ByLatency == 0 || r.policyLimits != 1 {
		r.c.failWith(ErrValue)
	}
	if r.c.err == nil {
		each(a)
	}
}
