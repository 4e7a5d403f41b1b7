package ruleset

// Outcome is the result of one policy's part in a request.
type Outcome uint8

// These are the outcomes of a policy, enforced, in shadow or by its candidate limit. A policy that
// matched a request which another policy refused counts nothing.
const (
	CountAllowed Outcome = iota
	CountRefused
	CountShadowAllowed
	CountShadowRefused
	CountShadowUndetermined
	CountCandidateAllowed
	CountCandidateRefused
	CountCandidateUndetermined
	Outcomes
)

// These are further counts of a policy: requests that waited for its tokens, the milliseconds that
// they waited, and requests that it decided without its bucket, by a share, a failure or a bound.
const (
	CountWaited = Outcomes + iota
	CountHeld
	CountUnsure
	counted
)

// Counts are the counts of one policy.
type Counts [counted]uint32

// String returns the outcome's name in metrics.
func (o Outcome) String() string {
	return [...]string{"allowed", "refused", "shadow_allowed", "shadow_refused", "shadow_undetermined",
		"candidate_allowed", "candidate_refused", "candidate_undetermined"}[o]
}

// Tally counts outcomes by policy until they are reported. The zero value has room for no policy.
type Tally struct {
	counts  []Counts
	touched []uint32
	// used is the highest use of a policy's fullest bucket, in percent.
	used []uint8
}

// Reset makes room for n policies and for All, and sets all counts to 0.
func (t *Tally) Reset(n int) {
	n++
	if cap(t.counts) < n {
		t.counts, t.used = make([]Counts, n), make([]uint8, n)
	}
	t.counts, t.used = t.counts[:n], t.used[:n]
	clear(t.counts)
	clear(t.used)
	t.touched = t.touched[:0]
}

// All returns the index that counts all requests, each once.
func (t *Tally) All() uint32 { return uint32(len(t.counts)) - 1 }

// Add counts an outcome of a policy, n times.
func (t *Tally) Add(policy uint32, o Outcome, n uint32) {
	if int(policy) >= len(t.counts) {
		return
	}
	c := &t.counts[policy]
	if *c == (Counts{}) {
		t.touched = append(t.touched, policy)
	}
	c[o] += n
}

// Wait counts a request that waited for tokens of a policy, for held milliseconds.
func (t *Tally) Wait(policy uint32, held int64) {
	t.Add(policy, CountWaited, 1)
	t.Add(policy, CountHeld, uint32(held))
}

// Use notes the use of a policy's bucket: left of of tokens are left. The same request must also
// Add an outcome of the policy.
func (t *Tally) Use(policy uint32, left, of int64) {
	if int(policy) >= len(t.used) || of <= 0 {
		return
	}
	used := uint8(100)
	if left > 0 {
		used = uint8(100 - float64(min(left, of))*100/float64(of))
	}
	t.used[policy] = max(t.used[policy], used)
}

// TakeUsed returns the highest use since the last TakeUsed, in percent.
func (t *Tally) TakeUsed(policy uint32) (percent int64) {
	percent, t.used[policy] = int64(t.used[policy]), 0
	return percent
}

// Take returns a policy and its counts since it was last taken; false if no policy is left.
func (t *Tally) Take() (policy uint32, counts Counts, ok bool) {
	last := len(t.touched) - 1
	if last < 0 {
		return 0, counts, false
	}
	policy, t.touched = t.touched[last], t.touched[:last]
	counts, t.counts[policy] = t.counts[policy], counts
	return policy, counts, true
}
