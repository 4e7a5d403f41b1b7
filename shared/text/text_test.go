package text_test

import (
	"bytes"
	"encoding/hex"
	"hash/fnv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-proxy/weir/shared/text"
)

// The standard library defines the results of the functions.
func TestAsInTheStandardLibrary(t *testing.T) {
	few := rapid.SliceOfN(rapid.SampledFrom([]byte("ab \t=")), 0, 6)
	rapid.Check(t, func(t *rapid.T) {
		a, b := few.Draw(t, "a"), few.Draw(t, "b")
		if text.Equal(a, b) != bytes.Equal(a, b) || text.Is(a, string(b)) != bytes.Equal(a, b) {
			t.Errorf("%q is %q: %v", a, b, text.Equal(a, b))
		}
		if text.HasPrefix(a, string(b)) != bytes.HasPrefix(a, b) {
			t.Errorf("%q begins with %q: %v", a, b, text.HasPrefix(a, string(b)))
		}
		before, after := text.Cut(a, '=')
		wantBefore, wantAfter, _ := bytes.Cut(a, []byte("="))
		if !bytes.Equal(before, wantBefore) || !bytes.Equal(after, wantAfter) {
			t.Errorf("%q is cut into %q and %q", a, before, after)
		}
		if got, want := string(text.Trim(a)), strings.Trim(string(a), " \t"); got != want {
			t.Errorf("%q trimmed is %q, want %q", a, got, want)
		}
	})
}

func TestUnhexReadsTwoDigits(t *testing.T) {
	for high := range 256 {
		for low := range 256 {
			got, ok := text.Unhex(byte(high), byte(low))
			want, err := hex.DecodeString(string([]byte{byte(high), byte(low)}))
			if ok != (err == nil) || ok && got != want[0] {
				t.Fatalf("%q: %x, %v", []byte{byte(high), byte(low)}, got, ok)
			}
		}
	}
}

func TestHashesAreFNV1a(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
		long, short := fnv.New64a(), fnv.New32a()
		long.Write(b)
		short.Write(b)
		if got := text.NewHash64.Add(b); uint64(got) != long.Sum64() {
			t.Errorf("%x, want %x", got, long.Sum64())
		}
		got, again := text.NewHash32.Add(b), text.NewHash32.AddString(string(b))
		if uint32(got) != short.Sum32() || got != again {
			t.Errorf("%x and %x, want %x", got, again, short.Sum32())
		}
	})
}
