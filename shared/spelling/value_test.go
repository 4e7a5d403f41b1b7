package spelling_test

import (
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/spelling"
)

func TestCredentialsHaveOneSpelling(t *testing.T) {
	for in, want := range map[string]string{
		"Bearer abc":              "bearer abc",
		"BEARER   abc ":           "bearer abc",
		"bearer\tabc":             "bearer abc",
		"Bearer aBc":              "bearer aBc",
		"abc":                     "abc",
		" Abc ":                   "Abc",
		"":                        "",
		"Bearer":                  "Bearer",
		"Digest a=1, b=2":         "digest a=1, b=2",
		"Basic dXNlcjpwYXNz":      "basic dXNlcjpwYXNz",
		"basic dXNlcjpwYXN0MQ==":  "basic dXNlcjpwYXN0MQ",
		"Basic dXNl\"cjp!wYXN0MQ": "basic dXNlcjpwYXN0MQ",
		"Basic _-8=":              "basic /+8",
		"Basic !":                 "basic ",
	} {
		if got := string(spelling.AppendCredentials(nil, []byte(in))); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

func TestCookiesHaveOneSpelling(t *testing.T) {
	for in, want := range map[string]string{
		"abc": "abc", " abc\t": "abc", `"abc"`: "abc", `"a\"b"`: `a"b`, `"a\054b"`: "a,b", `"a\0"`: "a0", `"abc`: `"abc`,
		`"`: `"`, `""`: "", "a%62c": "abc", "a%zz": "a%zz", "a+b": "a+b", `a\054`: `a\054`, "": "",
	} {
		if got := string(spelling.AppendCookie(nil, []byte(in))); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
	for in, want := range map[string]string{
		"abc": "abc|", "abc def": "abc def|", "a=b": "a=b|", "abc==": "abc==|", "abc x=1": "abc |x=1",
		"abc  x = 1": "abc  |x = 1", `"a b=c"`: `"a b=c"|`, `"a b=c" d=e`: `"a b=c" |d=e`, " abc": " abc|", " a=b": " a=b|",
		"a= b=c": "a= |b=c", "": "|", "   ": "   |", `"a\" b=c`: `"a\" b=c|`, "x y z=1 q=2": "x y |z=1 q=2",
	} {
		value, further := spelling.CutCookie([]byte(in))
		if got := string(value) + "|" + string(further); got != want {
			t.Errorf("%q is cut into %q, want %q", in, got, want)
		}
	}
}

func FuzzCutCookie(f *testing.F) {
	f.Add(`"a\" b=c`)
	f.Add("a = b c=d")
	f.Fuzz(func(t *testing.T, in string) {
		value, further := spelling.CutCookie([]byte(in))
		if string(value)+string(further) != in || len(further) > 0 && !strings.Contains(string(further), "=") ||
			len(in) > 0 && len(value) == 0 {
			t.Errorf("%q is cut into %q and %q", in, value, further)
		}
		spelling.AppendCookie(nil, []byte(in))
		spelling.AppendCredentials(nil, []byte(in))
	})
}

func number(n float64) []byte { return binary.LittleEndian.AppendUint64(nil, math.Float64bits(n)) }

// pairs is how Envoy hands over a list, or an object: a header map.
func pairs(texts ...string) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(texts)/2))
	for _, text := range texts {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(text)))
	}
	for _, text := range texts {
		b = append(append(b, text...), 0)
	}
	return b
}

func TestClaimsHaveOneSpelling(t *testing.T) {
	for _, c := range []struct {
		in   []byte
		want string
	}{
		{number(7), "7"}, {number(-7), "-7"}, {number(0), "0"}, {number(math.Copysign(0, -1)), "0"},
		{number(1e15), "1000000000000000"}, {number(1 << 53), "9007199254740992"},
		{number(1 << 62), "4611686018427387904"},
		{number(1.5), string(number(1.5))}, {number(1e300), string(number(1e300))},
		{number(math.NaN()), string(number(math.NaN()))},
		{number(math.Inf(1)), string(number(math.Inf(1)))}, {number(1 << 63), string(number(1 << 63))},
		{[]byte{1}, "true"}, {[]byte{0}, "false"}, {[]byte("7"), "7"}, {[]byte("alice"), "alice"},
		{[]byte("eight888"), "eight888"},
		{nil, ""},
	} {
		if got := string(spelling.AppendClaim(nil, c.in)); got != c.want {
			t.Errorf("%q became %q, want %q", c.in, got, c.want)
		}
	}
	nested := string(pairs("a", ""))
	for _, c := range []struct {
		in   []byte
		want spelling.ListKind
	}{
		{[]byte("alice"), spelling.NoList}, {nil, spelling.NoList}, {number(7), spelling.NoList},
		{[]byte("1234"), spelling.NoList},
		{pairs("a", "", "b", ""), spelling.ValueList}, {pairs("a", ""), spelling.ValueList},
		{pairs(), spelling.ValueList},
		{pairs("a", "b"), spelling.ObjectList}, {pairs("a", "", "b", "c"), spelling.ObjectList},
		{pairs(nested, ""), spelling.ObjectList}, {append(pairs("a", ""), 0), spelling.NoList},
		{pairs("a", "")[:13], spelling.NoList},
		{[]byte{255, 255, 255, 255, 1, 1, 1, 1}, spelling.NoList},
	} {
		if got := spelling.KindOf(c.in); got != c.want {
			t.Errorf("%q is %d, want %d", c.in, got, c.want)
		}
	}
}

func FuzzClaim(f *testing.F) {
	f.Add(pairs("a", "", "b", ""))
	f.Add(pairs(string(pairs("a", "b")), ""))
	f.Fuzz(func(t *testing.T, in []byte) {
		if spelling.KindOf(in) == spelling.ValueList {
			size := 0
			for i, at := 0, 0; i == 0 || at > 0; i++ {
				var element []byte
				element, at = spelling.Element(in, i, at)
				size += len(element)
			}
			if size > len(in) {
				t.Errorf("the elements of %q are longer than it", in)
			}
		}
		spelling.AppendClaim(nil, in)
	})
}
