package wire

import "github.com/weir-proxy/weir/shared/policy"

// putAdaptive writes an adaptive limit.
//
//go:noinline
func putAdaptive(dst []byte, a policy.Adaptive) []byte {
	return append(putUvarint(putUvarint(dst, a.Min), a.Max), a.Percentile, byte(a.By))
}

// adaptive reads what putAdaptive has written. The policy has one limit beside it.
//
//go:noinline
func (r *SetReader) adaptive(each func(policy.Adaptive)) {
	least := r.c.within(1, policy.MaxInFlight)
	a := policy.Adaptive{Min: least, Max: r.c.within(least, policy.MaxInFlight)}
	a.Percentile = r.oneOf(policy.LeastPercentile, policy.MostPercentile)
	a.By = policy.Signals(r.oneOf(1, uint8(policy.AllSignals)))
	if a.By&policy.ByLatency == 0 || r.policyLimits != 1 {
		r.c.fail(ErrValue)
	}
	if r.c.err == nil {
		each(a)
	}
}
