package filtertest

import (
	"slices"
	"strings"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// Waiting returns the number of requests that wait at a worker.
func (p *Process) Waiting(number int) int { return len(p.workers[number].paused) }

// Delayed reports whether a queue holds back a request that was allowed.
func (p *Process) Delayed(number int, stream uint32) bool {
	return p.workers[number].delayed[stream] != nil
}

// Held returns the process's tokens of a leased bucket, and the instant at which the first of them
// expires.
func (p *Process) Held(bucket keyhash.Key) (tokens int64, until quota.Instant) {
	look := &held{now: p.options.Now()}
	if err := p.beside.Update(bucketstore.Leased, bucket, look.now, look); err != nil {
		return 0, 0
	}
	return look.credit.Available(look.now), look.credit.Expiry(look.now)
}

// Owed returns the tokens of a bucket that requests took from the process's share and that the
// control plane has not charged.
func (p *Process) Owed(bucket keyhash.Key) (tokens int64) {
	for _, w := range p.workers {
		tokens += w.leases.Owed(w.Now(), bucket)
	}
	return tokens
}

// Lapsed returns the number of leased tokens of all buckets that expired unused.
func (p *Process) Lapsed() (tokens uint64) {
	for _, w := range p.workers {
		tokens += w.leases.Stats.Lapsed
	}
	return tokens
}

// Unreported returns the number of an optimistic bucket's tokens that the process has used, without
// an answer to a report of them.
func (p *Process) Unreported(bucket keyhash.Key) int64 {
	look := &held{now: p.options.Now()}
	if err := p.beside.Update(bucketstore.Optimistic, bucket, look.now, look); err != nil {
		return 0
	}
	return look.account.Unknown
}

// held is the change that changes nothing and reads the entry.
type held struct {
	now     quota.Instant
	credit  lease.Credit
	account lease.Account
}

// Apply implements bucketstore.Change.
func (h *held) Apply(e *bucketstore.Entry) bool {
	h.credit, h.account = e.Credit, e.Account
	return false
}

// Counted returns a counter of the filter over all workers, by its name in Envoy. It panics if
// there is no counter of that name.
func (p *Process) Counted(name string) (n uint64) {
	for _, w := range p.workers {
		s := &w.limiter.Stats
		if source, ok := strings.CutPrefix(name, "decisions.by_"); ok {
			n += s.Decided[slices.Index(policy.Sources[:], source)]
			continue
		}
		n += *map[string]*uint64{
			"requests.allowed": &s.Allowed, "requests.refused": &s.Refused, "requests.unlimited": &s.Unlimited,
			"requests.waited": &s.Waited, "requests.queued": &w.flights.Stats.Queued, "requests.gone": &s.Gone,
			"requests.delayed": &s.Delayed, "requests.unanswered": &s.Unanswered, "charged_in_vain": &s.ChargedInVain,
			"shadow.allowed": &s.ShadowAllowed, "shadow.refused": &s.ShadowRefused,
			"shadow.undetermined": &s.ShadowUndetermined,
			"candidate.allowed":   &s.CandidateAllowed, "candidate.refused": &s.CandidateRefused,
			"candidate.undetermined": &s.CandidateUndetermined,
			"costs.reserved_tokens":  &s.Settled.Reserved, "costs.refunded_tokens": &s.Settled.Refunded,
			"costs.overspent_tokens": &s.Settled.Overspent, "costs.settled": &s.Settled.Settled,
			"costs.missing": &s.Settled.Missing, "costs.unanswered": &s.Settled.Kept,
		}[name]
	}
	return n
}
