package redisstore_test

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// The scripts and the Go code name their figures apart, and mean the same.
func TestTheScriptsHaveTheFiguresOfGo(t *testing.T) {
	for _, c := range []struct {
		file, before string
		want         int64
	}{
		{"tokens", "RESERVED = ", int64(lease.ReservedFor)},
		{"tokens", "MAX_PAIRS = ", lease.MaxPairs},
		{"tokens", "SATURATED = ", quota.MaxUnits + quota.MaxUnits/4},
		{"permits", "GIVEN_BACK = ", int64(leases.GivenBackIn)},
		{"whole", "LATE = ", int64(lease.Late)},
		{"whole", "MAX_UNITS = ", quota.MaxUnits},
		{"whole", `max\(tokens, 0\) \* `, quota.Parts},
		{"windows", "MAX_MARKS = ", quota.MaxMarks},
		{"windows", `start_of\(released \+ `, int64(2 * lease.Deadline)},
	} {
		script, err := os.ReadFile("scripts/" + c.file + ".lua")
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(c.before + `(\d+)`).FindSubmatch(script)
		if found == nil {
			t.Errorf("%s.lua has no %s", c.file, c.before)
			continue
		}
		if got, err := strconv.ParseInt(string(found[1]), 10, 64); err != nil || got != c.want {
			t.Errorf("%s.lua has %s%s, want %d", c.file, c.before, found[1], c.want)
		}
	}
}
