package text

// NewHash64 and NewHash32 are the FNV-1a hashes of no bytes. They are for checksums and for tables
// of the operator's own texts; a client could choose texts of the same hash.
const (
	NewHash64 Hash64 = 14695981039346656037
	NewHash32 Hash32 = 2166136261
)

// Hash64 is an FNV-1a hash of 64 bits.
type Hash64 uint64

// Add returns the hash with further bytes.
func (h Hash64) Add(b []byte) Hash64 {
	for _, c := range b {
		h = h.AddNumber(uint64(c))
	}
	return h
}

// AddNumber returns the hash with a number, in one step.
func (h Hash64) AddNumber(n uint64) Hash64 { return (h ^ Hash64(n)) * 1099511628211 }

// Hash32 is an FNV-1a hash of 32 bits.
type Hash32 uint32

// Add returns the hash with further bytes.
func (h Hash32) Add(b []byte) Hash32 {
	for _, c := range b {
		h = (h ^ Hash32(c)) * 16777619
	}
	return h
}

// AddString returns the hash with further bytes.
func (h Hash32) AddString(s string) Hash32 {
	for i := range len(s) {
		h = (h ^ Hash32(s[i])) * 16777619
	}
	return h
}
