package series

import (
	"reflect"
	"testing"
)

// No bytes do harm, and the samples that were read are written so that they read the same.
func FuzzSamples(f *testing.F) {
	all := newSamples()
	for n := range uint64(5) {
		all.addTokens("api", n<<40, int64(n)+1)
		all.addTokens("login", n, 1<<40)
	}
	f.Add(all.encode())
	f.Add([]byte{})
	f.Add([]byte{1, 'a', 64, 0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 'a'})
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := decodeSamples(b)
		if err != nil {
			return
		}
		again, err := decodeSamples(got.encode())
		if err != nil || !reflect.DeepEqual(again, got) {
			t.Errorf("%x reads as %+v, and written as %+v, %v", b, got, again, err)
		}
	})
}
