package series

import (
	"encoding/binary"
	"errors"
)

// Bounds on the callers that a replica keeps for one span: of a policy, and in total.
const (
	maxSampled    = 2048
	maxSampledAll = 1 << 15
	// maxUsed is the largest use of one caller that is counted.
	maxUsed = 1 << 53
)

// sample is the use of some callers of a policy in a span. The keyed hash of a bucket selects them,
// so a caller is in the samples of all replicas or of none, and its use is counted in full.
type sample struct {
	// thin is the number of lowest bits that must be 0 in a selected hash: each selected caller
	// represents 1<<thin callers.
	thin uint8
	used map[uint64]int64
}

func newSample() *sample { return &sample{used: map[uint64]int64{}} }

// add counts the tokens of a caller, and reports whether the caller is new in the sample. Tokens
// below 0 came back: if the caller has used none in this span, they belong to an earlier span.
func (s *sample) add(hash uint64, n int64) bool {
	if used, known := s.used[hash]; known && n < 0 {
		s.used[hash] = max(used+n, 0)
	}
	if n <= 0 || hash&(1<<s.thin-1) != 0 {
		return false
	}
	before := len(s.used)
	s.used[hash] = min(s.used[hash]+min(n, maxUsed), maxUsed)
	return len(s.used) > before
}

// halve removes about half of the callers.
func (s *sample) halve() { s.thinTo(s.thin + 1) }

func (s *sample) thinTo(thin uint8) {
	if thin <= s.thin {
		return
	}
	s.thin = thin
	for hash := range s.used {
		if hash&(1<<thin-1) != 0 {
			delete(s.used, hash)
		}
	}
}

// samples are the samples of one span, by policy.
type samples struct {
	of  map[string]*sample
	all int
}

func newSamples() *samples { return &samples{of: map[string]*sample{}} }

// addTokens counts the tokens of a caller. If there are too many callers, samples become thinner.
func (s *samples) addTokens(policy string, hash uint64, n int64) {
	one := s.of[policy]
	if one == nil {
		if len(s.of) >= maxPolicies {
			return
		}
		one = newSample()
		s.of[policy] = one
	}
	if !one.add(hash, n) {
		return
	}
	s.all++
	for len(one.used) > maxSampled {
		s.halve(one)
	}
	for s.all > maxSampledAll {
		s.halve(s.largest())
	}
}

func (s *samples) halve(one *sample) {
	s.all -= len(one.used)
	one.halve()
	s.all += len(one.used)
}

func (s *samples) largest() (most *sample) {
	for _, one := range s.of {
		if most == nil || len(one.used) > len(most.used) {
			most = one
		}
	}
	return most
}

// merge adds the samples of another replica.
func (s *samples) merge(from *samples) {
	for name, other := range from.of {
		one := s.of[name]
		if one == nil {
			one = newSample()
			s.of[name] = one
		}
		one.thinTo(other.thin)
		for hash, n := range other.used {
			one.add(hash, n)
		}
	}
}

// encode writes for each policy its name, its thin, and its callers.
func (s *samples) encode() []byte {
	var b []byte
	for name, one := range s.of {
		b = append(binary.AppendUvarint(b, uint64(len(name))), name...)
		b = binary.AppendUvarint(append(b, one.thin), uint64(len(one.used)))
		for hash, n := range one.used {
			b = binary.AppendUvarint(binary.LittleEndian.AppendUint64(b, hash), uint64(n))
		}
	}
	return b
}

var errSamples = errors.New("cannot read the callers of a replica")

// decodeSamples decodes the result of encode.
func decodeSamples(b []byte) (*samples, error) {
	all, damaged := newSamples(), false
	// number reads the next number.
	number := func() uint64 {
		n, size := binary.Uvarint(b)
		if size <= 0 {
			b, damaged = nil, true
			return 0
		}
		b = b[size:]
		return n
	}
	for len(b) > 0 {
		// Read a policy's name and its thinning.
		length := number()
		if length >= uint64(len(b)) || len(all.of) >= maxPolicies {
			return nil, errSamples
		}
		one := newSample()
		all.of[string(b[:length])] = one
		one.thin = b[length]
		b = b[length+1:]
		// Read its callers.
		count := number()
		if one.thin > 63 || count > maxSampled {
			return nil, errSamples
		}
		for range count {
			if len(b) < 9 {
				return nil, errSamples
			}
			hash := binary.LittleEndian.Uint64(b)
			b = b[8:]
			one.add(hash, int64(min(number(), maxUsed)))
		}
	}
	if damaged {
		return nil, errSamples
	}
	return all, nil
}
