// Package assign decides which token buckets the quota filters of Envoy (rate_limit_quota) are
// assigned. It has no clock and does no I/O.
//
// An assignment is a lease. The control plane takes n tokens from the limit's ledger, where they
// count as leased for Lease(ttl). It assigns a token bucket that lets through at most n requests in
// that time, however they arrive: the bucket starts full and earns next to nothing (Fill). The next
// assignment is a new lease, and the unused rest of the last lease is lost. So all filters,
// together with every other node that spends from the ledger, admit at most the bound of the lease
// theorem, burst + rate·t. The bound needs no report of a filter: reports only show where the
// tokens are wanted. The package document of shared/lease has the theorem.
package assign

import (
	"math"

	"github.com/weir-proxy/weir/shared/quota"
)

const (
	// Late is the longest time from the ask for tokens until their assignment reaches its Envoy.
	// Assignments that are not sent in the first half of this time are dropped.
	Late = 250 * quota.Millisecond
	// MaxTTL is the longest life of an assignment.
	MaxTTL = 5 * quota.Minute
	// MaxTokens is the most tokens of one assignment: more would not fit into its fields.
	MaxTokens = math.MaxUint32

	// earnedIn is the number of lives in which an assigned bucket earns its own size. It must earn
	// something: Envoy takes no rate of 0.
	earnedIn = 100
)

// Lease returns the time that the tokens of an assignment count as leased, from the ask for them.
// It is the assignment's life on a clock that runs slow by 1 in 1000, plus Late.
func Lease(ttl quota.Span) quota.Span { return ttl + ttl/1000 + Late }

// Bucket is an assigned token bucket: it starts with Max tokens, and earns PerFill in each
// Interval, a whole number of seconds: Envoy cuts parts of a second off.
type Bucket struct {
	Max, PerFill uint32
	Interval     quota.Span
}

// Fill returns the bucket that lets through at most n requests in Lease(ttl), for n from 1 to
// MaxTokens. Its size and its earnings in that time are together less than n+1 tokens.
func Fill(n int64, ttl quota.Span) Bucket {
	seconds := (Lease(ttl) + quota.Second - 1) / quota.Second
	return Bucket{Max: uint32(n - n/earnedIn), PerFill: uint32(n), Interval: earnedIn * seconds * quota.Second}
}

// Split divides n tokens among the wants so that the smallest share is as large as possible. No
// share is greater than its want. A share below its want is at most one token smaller than any
// other share. first is the index from which the odd tokens are given.
func Split(n int64, wants []int64, first int) []int64 {
	shares := make([]int64, len(wants))
	open := 0
	for _, want := range wants {
		if want > 0 {
			open++
		}
	}
	for n > 0 && open > 0 {
		even := n / int64(open)
		if even == 0 {
			return spreadRest(shares, wants, n, first)
		}
		for i, want := range wants {
			if want <= shares[i] {
				continue
			}
			share := min(even, want-shares[i])
			shares[i] += share
			n -= share
			if shares[i] == want {
				open--
			}
		}
	}
	return shares
}

// spreadRest gives the last n tokens, fewer than there are takers, one each.
func spreadRest(shares, wants []int64, n int64, first int) []int64 {
	for i := range wants {
		at := (first + i) % len(wants)
		if n > 0 && wants[at] > shares[at] {
			shares[at]++
			n--
		}
	}
	return shares
}
