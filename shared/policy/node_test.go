package policy_test

import (
	"strconv"
	"testing"

	"github.com/weir-proxy/weir/shared/policy"
)

// FuzzNumbers checks that whole numbers are read as by the standard library.
func FuzzNumbers(f *testing.F) {
	for _, text := range []string{
		"", "0", "-0", "+0", "007", "12", "-12", "+12", "-", "+", "+-1", "--1", "1_000", "1e3", "0x10", " 1", "1.0",
		"٣",
		"9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809",
		"18446744073709551616", "99999999999999999999999", "-92233720368547758080",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		want, err := strconv.ParseInt(text, 10, 64)
		got, ok := policy.ParseInt(text)
		if ok != (err == nil) || ok && got != want {
			t.Errorf("%q is %d, %v, want %d, %v", text, got, ok, want, err)
		}
	})
}
