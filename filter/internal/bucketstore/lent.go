package bucketstore

import "github.com/weir-proxy/weir/shared/quota"

// Lent counts the tokens of a bucket that workers have taken in advance, for themselves. They are charged when they are taken, so
// they are used up as far as anybody else can see; but a bucket must not refill what has not been spent yet, or more than its
// burst could be spent at once. So it is never fuller than its burst less what is lent.
//
// Lent tokens are good until the end of the epoch after the one in which they were taken, then nobody has them any more. The zero
// value has nothing lent.
type Lent struct {
	epoch       uint32 // of last
	last, older uint32
}

// What every worker goes by that takes tokens in advance: a request within Busy of a bucket's last change makes it a busy one, of which
// a lot has MinLot tokens at least, or is none, and MaxLot at most.
const (
	Busy           = 2 * quota.Millisecond
	MinLot, MaxLot = 4, 64
)

// Refusing is how long a worker may go by a refusal without looking again.
const Refusing = 5 * quota.Millisecond

// EpochSpan is the length of an epoch: lent tokens are good for one to two of them.
const EpochSpan = 10 * quota.Millisecond

// Epoch is the number of now's epoch. Numbers are compared modulo 2^32, which is more than a year.
func Epoch(now quota.Instant) uint32 { return uint32(uint64(now) / uint64(EpochSpan)) }

// StillLent says whether tokens that were lent in an epoch are good at now.
func StillLent(epoch uint32, now quota.Instant) bool { return Epoch(now)-epoch <= 1 }

// LentUntil is until when tokens lent in an epoch are good, for a now within it.
func LentUntil(now quota.Instant) quota.Instant {
	return now - now%quota.Instant(EpochSpan) + 2*quota.Instant(EpochSpan)
}

// At is what is still lent in the given epoch. An epoch before the last is taken for the last.
func (l Lent) At(epoch uint32) Lent {
	switch age := int32(epoch - l.epoch); {
	case age <= 0:
		return l
	case age == 1:
		return Lent{epoch: epoch, older: l.last}
	}
	return Lent{epoch: epoch}
}

// Tokens is how many are lent.
func (l Lent) Tokens() int64 { return int64(l.last) + int64(l.older) }

// Add lends n tokens in the last epoch, at most 2^16 of which are lent at a time.
func (l Lent) Add(n int64) Lent {
	l.last += uint32(n)
	return l
}

// Return takes back n tokens that were lent in an epoch.
func (l Lent) Return(n int64, epoch uint32) Lent {
	switch age := l.epoch - epoch; {
	case age == 0:
		l.last -= min(uint32(n), l.last)
	case age == 1:
		l.older -= min(uint32(n), l.older)
	}
	return l
}
